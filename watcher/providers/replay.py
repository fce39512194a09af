"""A recording as a source: a trace, or the history in a file of a load-watcher, at its own pace or a faster one.

What is replayed is a pattern. Samples are stamped with the time at which they are taken, at any speed; only the pattern
moves faster. It begins at its beginning with the first question, and where it begins anew at its end it also went on
before that, so the windows are whole at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from watcher.arrays import F64
from watcher.core.koordinator.report import Capacity
from watcher.model import METRIC_BY_KEY, METRIC_BY_NAME, SeriesBatch
from watcher.providers.base import Fetch, ProviderError, ProviderMalformed, ProviderUnreachable, QueryPlan
from watcher.store.errors import StoreError, StoreUnusable
from watcher.store.replay_history import is_database, read_history
from watcher.traces.files import read_trace
from watcher.traces.parsing import TraceError
from watcher.traces.pattern import HistoryPattern, Pattern, pattern_of

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

log = logging.getLogger(__name__)

SOURCE = "Replay"
AtEnd = Literal["loop", "stop"]
PERCENT = "percent"


class TraceEnded(ProviderError):
    """There is nothing after the end of a recording that is not to begin anew."""

    kind = "ended"


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """`speed` seconds of the recording pass in a second; a sample is taken every `resolution` seconds."""

    file: Path
    speed: float = 1.0
    at_end: AtEnd = "loop"
    resolution: int = 15


class ReplayProvider:
    """Samples of a recording."""

    source = SOURCE
    remembers = True

    def __init__(self, config: ReplayConfig) -> None:
        self._config = config
        self._reading: asyncio.Task[Pattern] | None = None
        self._pattern: Pattern | None = None
        self._begun: float | None = None
        self._lap = 0

    async def start(self) -> None:
        """Begin to read the file, which may take a while."""
        self._read_on()

    async def close(self) -> None:
        """What still reads is left to itself."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def capacities(self) -> Mapping[str, Capacity]:
        """How large the nodes are, where the recording says it."""
        sizes = {} if self._pattern is None else self._pattern.sizes
        return {name: Capacity(int(cores * 1000), size) for name, (cores, size) in sizes.items()}

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """What the nodes of the recording used, by the times of now."""
        pattern = await self._read()
        if self._begun is None:
            self._begun = until
            log.info("replaying %s, %s", self._config.file, self._described(pattern))
        self._tell_end(pattern, self._begun, since, until)
        keys = [key for key in pattern.keys if only is None or METRIC_BY_KEY[key].name in only]
        batches = await asyncio.to_thread(self._batches, pattern, keys, since, until, self._begun)
        plans = {METRIC_BY_KEY[key].name: self._plan(pattern, key, self._begun) for key in keys}
        return Fetch(batches, plans=plans, clock_offset_s=0.0)

    # --- the file ----------------------------------------------------------------------------------------------------

    def _read_on(self) -> asyncio.Task[Pattern]:
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(read_pattern, self._config.file), name="replay")
            self._reading.add_done_callback(_look_at)
        return self._reading

    async def _read(self) -> Pattern:
        """The recording. Raises ProviderError; the next question reads the file again, which may be mended by then."""
        if self._pattern is None:
            reading = self._read_on()
            try:
                self._pattern = await asyncio.shield(reading)  # a tick that is over in time must not end it
            except ProviderError:
                self._reading = None
                raise
        return self._pattern

    # --- its time ----------------------------------------------------------------------------------------------------

    def _tell_end(self, pattern: Pattern, begun: float, since: float, until: float) -> None:
        """Say that the recording is over: once each time. Raises TraceEnded where that is the end of it."""
        lap = math.floor((until - begun) * self._config.speed / pattern.length_s)
        if lap > self._lap:
            what = "the recording %s is over" if self._config.at_end == "stop" else "the recording %s begins anew"
            log.info(what, self._config.file)
            self._lap = lap
        ended = begun + pattern.length_s / self._config.speed
        if self._config.at_end == "stop" and since > ended:
            raise TraceEnded(
                f"the recording {self._config.file} ended {until - ended:.0f} s ago",
                hint='provider.at_end = "loop" has it begin anew; a restart does so too.',
            )

    def _batches(
        self, pattern: Pattern, keys: Collection[str], since: float, until: float, begun: float
    ) -> tuple[SeriesBatch, ...]:
        """In a thread."""
        step = self._config.resolution
        time = step * np.arange(math.ceil(since / step), math.floor(until / step) + 1, dtype=np.float64)
        passed = (time - begun) * self._config.speed
        if self._config.at_end == "loop":
            passed = np.mod(passed, pattern.length_s)
        else:
            inside = (passed >= 0.0) & (passed <= pattern.length_s)
            time, passed = time[inside], passed[inside]
        return tuple(_batch(pattern, key, time, passed) for key in keys)

    # --- in words ----------------------------------------------------------------------------------------------------

    def _plan(self, pattern: Pattern, key: str, begun: float) -> QueryPlan:
        """Begun at another time, or at another speed, it is another series: samples of two must not share a window."""
        expression = f"replay of {self._config.file.name} at speed {self._config.speed:g} from {begun:.0f} on"
        smoothing_s = pattern.smoothing_s / self._config.speed
        reason = f"it is a recording, not the present: {self._described(pattern)}"
        return QueryPlan(METRIC_BY_KEY[key].name, expression, PERCENT, "node", smoothing_s, reason)

    def _described(self, pattern: Pattern) -> str:
        end = "then again" if self._config.at_end == "loop" else "and then no more"
        hours = pattern.length_s / 3600
        speed = f"{self._config.speed:g} times as fast, " if self._config.speed != 1.0 else ""
        return f"{pattern.what}: {hours:.4g} h of {len(pattern.nodes)} nodes, {speed}{end}"


def _batch(pattern: Pattern, key: str, time: F64, passed: F64) -> SeriesBatch:
    values = pattern.at(key, passed)
    series, moment = np.nonzero(~np.isnan(values))
    return SeriesBatch(METRIC_BY_KEY[key], pattern.nodes, series, time[moment], values[series, moment])


def _look_at(reading: asyncio.Task[Pattern]) -> None:
    """Whoever asks is told of a failure; where nobody does, nobody is to be warned of it."""
    if not reading.cancelled():
        reading.exception()


def read_pattern(path: Path) -> Pattern:
    """A recording from its file. Raises ProviderError."""
    try:
        if is_database(path):
            return _of_history(path)
        return pattern_of(read_trace(path))
    except OSError as error:
        told = f"the recording {path} cannot be read: {error.strerror or error}"
        raise ProviderUnreachable(told, hint="Check provider.trace.") from error
    except StoreUnusable as error:  # what the store advises is for one's own database
        raise ProviderMalformed(str(error), hint="Name another file in provider.trace.") from error
    except (TraceError, StoreError) as error:
        raise ProviderMalformed(str(error), hint=error.hint or "Check provider.trace.") from error
    except ValueError as error:
        told = f"the recording {path} cannot be replayed: {error}"
        raise ProviderMalformed(told, hint="A recording needs two moments at least.") from error


def _of_history(path: Path) -> HistoryPattern:
    history = read_history(path)
    values = {METRIC_BY_NAME[name].key: found for name, found in history.values.items() if name in METRIC_BY_NAME}
    what = "the history of a load-watcher"
    return HistoryPattern(history.nodes, what, history.time - history.time[0], values, float(history.window_s))


def from_settings(settings: Settings) -> ReplayProvider:
    """The provider that these settings describe. Raises ValueError for settings that cannot work."""
    provider = settings.provider
    if provider.trace is None:
        raise ValueError("provider.trace is not set")
    at_end: AtEnd = "stop" if provider.at_end == "stop" else "loop"
    return ReplayProvider(ReplayConfig(provider.trace, provider.speed, at_end, resolution=settings.refresh.resolution))
