"""The section [forecast] of the settings: bounds of future load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import HORIZON, HORIZONS
from watcher.core.config.quantities import DAY


@dataclass(frozen=True, repr=False)
class ForecastSettings(SettingsTable, section="forecast"):
    """Upper bounds of the load of the next hours, from the maxima of the last days."""

    enabled: Annotated[bool, values.BOOLEAN] = True
    """Whether the maxima of CPU and Memory are kept and bounds computed: 5 kB of memory per node."""
    history: Annotated[int, quantities.whole_seconds(lowest=int(DAY), highest=int(28 * DAY))] = int(7 * DAY)
    """How long the maxima of five minutes are kept, in memory and in the store. A node with less than a day of history,
    or than three times the horizon, has no bound."""
    level: Annotated[float, values.number(lowest=0.5, highest=0.999)] = 0.95
    """Share of the bounds that the load does not exceed."""
    horizons: Annotated[tuple[int, ...], HORIZONS] = (1, 6, 24)
    """Times ahead that bounds are computed for; whole hours."""
    horizon: Annotated[int, HORIZON] = 6
    """The default of horizons: served if a request names none, and on /metrics."""

    @property
    def slots(self) -> int:
        """Number of maxima that are kept of a node."""
        from watcher.core.forecast.maxima import SLOT_S  # NumPy, which the agent does not load to read its settings

        return self.history // SLOT_S
