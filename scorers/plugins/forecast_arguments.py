"""Arguments of the plug-ins that can use forecasts of the load."""

from __future__ import annotations

from typing import Literal

from scorers.cluster.table import ClusterTable, DataNeeds
from scorers.plugin_api.arguments import Arguments

DEFAULT_HORIZON = "6h"


class ForecastArguments(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Additions of load-watcher. With `use` "forecast", the CPU and memory load of a node is the higher one of the
    measured load and the upper bound of the load over the next `horizon`; a node without a bound has the measured load
    ("window")."""

    use: Literal["window", "forecast"] = "window"
    horizon: Literal["1h", "6h", "24h"] = "6h"

    @property
    def ahead(self) -> str:
        """The horizon of the forecasts that are used, "" for windows only."""
        return self.horizon if self.use == "forecast" else ""

    @property
    def forecast_needs(self) -> DataNeeds:
        """The forecasts that the plug-in needs from the watcher."""
        return DataNeeds(horizons=(self.ahead,) if self.ahead else ())

    def problems(self) -> list[str]:
        """Report a horizon that is not used."""
        if self.use == "window" and self.horizon != DEFAULT_HORIZON:
            return [f'horizon: windows have none; set use to "forecast" (given: {self.horizon!r})']
        return []


def missing_forecasts(arguments: ForecastArguments, table: ClusterTable) -> str:
    """Return why no node of the cluster has a forecast, "" if one has, and for plug-ins that use windows."""
    return table.load.missing_forecasts(arguments.ahead) if arguments.ahead and table.known.any() else ""
