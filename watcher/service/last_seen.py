"""What the store knows of nodes that nothing was heard of since the start: when it last had a window of each, and what
that said. One that is not in it is looked for once, and some are at a time: a cluster full of nodes without monitoring
must keep nobody busy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

import numpy as np

from watcher.core.windows.stored_series import StoredSeries
from watcher.model import METRIC_BY_KEY, LastSample

AT_ONCE = 50  # nodes, each some milliseconds of reading

Ask = Callable[[str], Coroutine[Any, Any, Sequence[StoredSeries]]]
"""The stored averages of a node over the shortest window, which is the first to end when it falls silent."""


class Recall:
    """Remembers who was looked for in vain."""

    def __init__(self) -> None:
        self._sought: set[str] = set()

    async def of(self, unheard: Collection[str], ask: Ask) -> dict[str, LastSample]:
        """What is stored of the next of these nodes, of those of which something is. Raises what `ask` does; then all
        are looked for again, but for those of which nothing is."""
        self._sought &= set(unheard)
        found = {}
        for name in [name for name in unheard if name not in self._sought][:AT_ONCE]:
            last = last_of(await ask(name))
            if last is None:
                self._sought.add(name)
            else:
                found[name] = last
        return found


def last_of(stored: Sequence[StoredSeries]) -> LastSample | None:
    """The last known values of CPU and Memory; None where there is not one."""
    values: dict[str, float] = {}
    sampled = -np.inf
    for series in stored:
        known = np.flatnonzero(~np.isnan(series.value))
        if len(known):
            values[series.metric] = float(series.value[known[-1]])
            sampled = max(sampled, float(series.time[known[-1]]))
    cpu, memory = (values.get(METRIC_BY_KEY[key].name) for key in ("CPU", "Memory"))
    return LastSample(sampled, cpu, memory) if values else None
