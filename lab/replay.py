"""Provider that replays a recording: a trace or the history in a load-watcher database, at its own or a higher speed.

The provider replays the pattern of the recording. Samples have current timestamps at any speed; only the pattern is
accelerated. The pattern starts at the first fetch. With at_end = "loop" it also extends backwards in time, so all
windows are full from the start.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lab.traces.files import read_trace
from lab.traces.parsing import TraceError
from lab.traces.pattern import HistoryPattern, ReplayPattern, pattern_of
from watcher.arrays import F64
from watcher.core.koordinator.report import Capacity
from watcher.core.windows.settings import RefreshSettings
from watcher.model import METRIC_BY_KEY, METRIC_BY_NAME, SeriesBatch
from watcher.sources.base import Fetch, QueryPlan
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderUnreachable
from watcher.sources.settings import ProviderSettings
from watcher.store.errors import StoreError, StoreUnusable
from watcher.store.history.replay import is_database, read_history

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings

log = logging.getLogger(__name__)

SOURCE = "Replay"
PERCENT = "percent"


class TraceEnded(ProviderError):
    """The recording ended, and provider.at_end is "stop"."""

    kind = "ended"


class ReplayProvider:
    """Provider of the samples of one recording. Raises ValueError without one."""

    source = SOURCE
    remembers = True

    def __init__(self, settings: ProviderSettings, refresh: RefreshSettings) -> None:
        if settings.trace is None:
            raise ValueError("provider.trace is not set")
        self._file, self._settings = settings.trace, settings
        self._resolution = refresh.point_resolution
        self._reading: asyncio.Task[ReplayPattern] | None = None
        self._pattern: ReplayPattern | None = None
        self._begun: float | None = None
        self._lap = 0

    async def start(self) -> None:
        """Start reading the file in a worker thread."""
        self._read_on()

    async def close(self) -> None:
        """Cancel the read. Its worker thread is not interrupted."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def capacities(self) -> Mapping[str, Capacity]:
        """CPU and memory capacity by node name, as far as the recording contains it."""
        sizes = {} if self._pattern is None else self._pattern.sizes
        return {name: Capacity(int(cores * 1000), size) for name, (cores, size) in sizes.items()}

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Usage of the recorded nodes with since <= time <= until (unix seconds), at current timestamps."""
        pattern = await self._read()
        if self._begun is None:
            self._begun = until
            log.info("replaying %s, %s", self._file, self._described(pattern))
        self._tell_end(pattern, self._begun, since, until)
        keys = [key for key in pattern.keys if only is None or METRIC_BY_KEY[key].name in only]
        batches = await asyncio.to_thread(self._batches, pattern, keys, since, until, self._begun)
        plans = {METRIC_BY_KEY[key].name: self._plan(pattern, key, self._begun) for key in keys}
        return Fetch(batches, plans=plans, clock_offset_s=0.0)

    # --- file --------------------------------------------------------------------------------------------------------

    def _read_on(self) -> asyncio.Task[ReplayPattern]:
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(read_pattern, self._file), name="replay")
            self._reading.add_done_callback(_look_at)
        return self._reading

    async def _read(self) -> ReplayPattern:
        """The recording. Raises ProviderError; the next fetch then reads the file again."""
        if self._pattern is None:
            reading = self._read_on()
            try:
                self._pattern = await asyncio.shield(reading)  # the timeout of a tick must not cancel the read
            except ProviderError:
                self._reading = None
                raise
        return self._pattern

    # --- time --------------------------------------------------------------------------------------------------------

    def _tell_end(self, pattern: ReplayPattern, begun: float, since: float, until: float) -> None:
        """Log each end of the recording. Raises TraceEnded if at_end is "stop" and the range starts after the end."""
        lap = math.floor((until - begun) * self._settings.speed / pattern.length_s)
        if lap > self._lap:
            what = "recording %s ended" if self._settings.at_end == "stop" else "recording %s ended and restarts"
            log.info(what, self._file)
            self._lap = lap
        ended = begun + pattern.length_s / self._settings.speed
        if self._settings.at_end == "stop" and since > ended:
            raise TraceEnded(
                f"the recording {self._file} ended {until - ended:.0f} s ago",
                hint='Set provider.at_end = "loop" to repeat it, or restart load-watcher to replay it again.',
            )

    def _batches(
        self, pattern: ReplayPattern, keys: Collection[str], since: float, until: float, begun: float
    ) -> tuple[SeriesBatch, ...]:
        """Samples of the replay at multiples of the resolution; runs in a worker thread."""
        step = self._resolution
        time = step * np.arange(math.ceil(since / step), math.floor(until / step) + 1, dtype=np.float64)
        passed = (time - begun) * self._settings.speed
        if self._settings.at_end == "loop":
            passed = np.mod(passed, pattern.length_s)
        else:
            inside = (passed >= 0.0) & (passed <= pattern.length_s)
            time, passed = time[inside], passed[inside]
        return tuple(_batch(pattern, key, time, passed) for key in keys)

    # --- texts -------------------------------------------------------------------------------------------------------

    def _plan(self, pattern: ReplayPattern, key: str, begun: float) -> QueryPlan:
        """Plan with an expression that contains start time and speed, so that samples of two replays do not share a
        window."""
        expression = f"replay of {self._file.name} at speed {self._settings.speed:g} from {begun:.0f} on"
        smoothing_s = pattern.smoothing_s / self._settings.speed
        reason = f"a recording, not current data: {self._described(pattern)}"
        return QueryPlan(METRIC_BY_KEY[key].name, expression, PERCENT, "node", smoothing_s, reason)

    def _described(self, pattern: ReplayPattern) -> str:
        end = "repeated" if self._settings.at_end == "loop" else "played once"
        hours = pattern.length_s / 3600
        speed = f"{self._settings.speed:g} times the speed, " if self._settings.speed != 1.0 else ""
        return f"{pattern.what}: {hours:.4g} h of {len(pattern.nodes)} nodes, {speed}{end}"


def _batch(pattern: ReplayPattern, key: str, time: F64, passed: F64) -> SeriesBatch:
    values = pattern.at(key, passed)
    series, moment = np.nonzero(~np.isnan(values))
    return SeriesBatch(METRIC_BY_KEY[key], pattern.nodes, series, time[moment], values[series, moment])


def _look_at(reading: asyncio.Task[ReplayPattern]) -> None:
    """Mark the exception as retrieved. A fetch raises it; without a fetch, asyncio would log a warning."""
    if not reading.cancelled():
        reading.exception()


def read_pattern(path: Path) -> ReplayPattern:
    """Read a recording from its file. Raises ProviderError."""
    try:
        if is_database(path):
            return _of_history(path)
        return pattern_of(read_trace(path))
    except OSError as error:
        message = f"the recording {path} cannot be read: {error.strerror or error}"
        raise ProviderUnreachable(message, hint="Check provider.trace.") from error
    except StoreUnusable as error:  # the store's hint applies to the service's own database only
        raise ProviderMalformed(str(error), hint="Name another file in provider.trace.") from error
    except (TraceError, StoreError) as error:
        raise ProviderMalformed(str(error), hint=error.hint or "Check provider.trace.") from error
    except ValueError as error:
        message = f"the recording {path} cannot be replayed: {error}"
        raise ProviderMalformed(message, hint="A recording needs at least two points in time.") from error


def _of_history(path: Path) -> HistoryPattern:
    history = read_history(path)
    values = {METRIC_BY_NAME[name].key: found for name, found in history.values.items() if name in METRIC_BY_NAME}
    what = "the history of a load-watcher database"
    return HistoryPattern(history.nodes, what, history.time - history.time[0], values, float(history.window_s))


def from_settings(settings: Settings) -> ReplayProvider:
    """Build the provider from the settings. Raises ValueError for settings that cannot work."""
    return ReplayProvider(settings[ProviderSettings], settings[RefreshSettings])
