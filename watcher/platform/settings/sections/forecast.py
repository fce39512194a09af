"""Settings for the bounds of future load: [forecast]."""

from __future__ import annotations

from dataclasses import dataclass

from watcher import model
from watcher.platform.settings import quantities, values
from watcher.platform.settings.field_metadata import SettingsTable, setting
from watcher.platform.settings.model_values import DEFAULT_HORIZONS, HORIZON, HORIZONS
from watcher.platform.settings.quantities import DAY


@dataclass(frozen=True, repr=False)
class ForecastSettings(SettingsTable):
    """Upper bounds of the load of the next hours, from the maxima of the last days."""

    enabled: bool = setting(
        True,
        values.BOOLEAN,
        "Whether the maxima of CPU and Memory are kept and bounds computed: 5 kB of memory per node.",
    )
    history: int = setting(
        int(7 * DAY),
        quantities.whole_seconds(lowest=int(DAY), highest=int(28 * DAY)),
        "How long the maxima of five minutes are kept, in memory and in the store. A node with less than a day of "
        "history, or than three times the horizon, has no bound.",
    )
    level: float = setting(
        0.95,
        values.number(lowest=0.5, highest=0.999),
        "Share of the bounds that the load does not exceed.",
    )
    horizons: tuple[model.Window, ...] = setting(
        DEFAULT_HORIZONS, HORIZONS, "Times ahead that bounds are computed for; whole hours."
    )
    horizon: model.Window = setting(
        DEFAULT_HORIZONS[1], HORIZON, "The default of horizons: served if a request names none, and on /metrics."
    )
