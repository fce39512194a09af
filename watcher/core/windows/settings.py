"""The section [refresh] of the settings: when samples are fetched, and their windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher import model
from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import DEFAULT_WINDOWS, WINDOWS
from watcher.core.config.quantities import MINUTE
from watcher.core.windows.slot_widths import FINEST_S, POINT_RESOLUTION_S, usable_widths

FETCH_SHARE = 0.75
"""Share of the interval that a fetch may take: slightly less than the 0.8 of a tick, so that a late metric
fails without failing the tick."""


@dataclass(frozen=True, repr=False)
class RefreshSettings(SettingsTable, section="refresh"):
    """How often samples are fetched, and the windows that are computed from them."""

    interval: Annotated[float, quantities.duration(lowest=1, highest=600).flagged("--interval")] = MINUTE
    """Interval at which samples are fetched. A refresh that takes longer than 0.8 of the interval is aborted."""
    resolution: Annotated[int, quantities.whole_seconds_or_auto(lowest=1, highest=60)] = 0
    """Width of a slot of the history. If a slot has several samples, the last is used. auto: the interval of the
    source's samples, from 5s to 15s, unless the samples would need more than a tenth of the memory limit of the
    container, or 256 MiB without a limit; 15s for sources without history (docs/concepts/scale.md)."""
    windows: Annotated[tuple[model.Window, ...], WINDOWS] = DEFAULT_WINDOWS
    """Lengths of the windows to compute; whole multiples of resolution, with auto of 5s, 6s, 10s, 12s or 15s. The
    history is as long as the longest."""
    pods: Annotated[str, values.choice(("auto", "on", "off"))] = "auto"
    """Whether the usage of pods is fetched once a minute (docs/reference/pods.md); this costs the source more than all
    node metrics. auto: from the first request for pod usage until 15 minutes after the last one."""
    max_staleness: Annotated[float, quantities.duration(lowest=1)] = 5 * MINUTE
    """Maximum age of samples. Older metrics of a node are omitted; if all are older, requests return an error."""

    @property
    def fetch_deadline(self) -> float:
        """Timeout in seconds of a fetch with all its queries and retries. A query that exceeds it fails its metric
        only."""
        return FETCH_SHARE * self.interval

    @property
    def longest_s(self) -> int:
        """Length of the longest window in seconds. Older samples are not requested."""
        return max(window.seconds for window in self.windows)

    @property
    def point_resolution(self) -> int:
        """Seconds between two readings of a source without history: as long as the windows allow."""
        return self.resolution or next(iter(usable_widths(self.windows)), POINT_RESOLUTION_S)

    @property
    def finest_resolution(self) -> int:
        """The smallest distance in seconds of samples that are requested from a source with history."""
        return self.resolution or FINEST_S
