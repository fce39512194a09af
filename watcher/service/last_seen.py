"""Last-seen times and values of nodes without samples since the start, from the store.

A node that is not in the store is looked up only once, and only a limited number of nodes per call, so that a cluster
with many unmonitored nodes does not cause load.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

import numpy as np

from watcher.core.config.settings import Settings
from watcher.core.windows.settings import RefreshSettings
from watcher.core.windows.stored_series import StoredSeries
from watcher.model import METRIC_BY_KEY, LastSample, Operator
from watcher.store.errors import StoreError
from watcher.store.settings import StoreSettings
from watcher.store.store import Store
from watcher.tick.tick import Refresher

AT_ONCE = 50  # nodes per call; reading one node takes a few milliseconds

Ask = Callable[[str], Coroutine[Any, Any, Sequence[StoredSeries]]]
"""Reads the stored averages of a node over the shortest window, which ends first when a node falls silent."""


class LastSeenLookup:
    """Looks up last-seen values, and remembers the nodes that are not in the store."""

    def __init__(self) -> None:
        self._sought: set[str] = set()

    async def update(self, refresher: Refresher, store: Store, *, settings: Settings, now: float) -> None:
        """Read the last-seen times of nodes without samples since the start from the store. `now` is in unix
        seconds."""
        unheard = refresher.never_seen
        if not unheard:
            return
        end = int(now)
        ask = partial(
            store.history,
            metrics=[METRIC_BY_KEY[key].name for key in ("CPU", "Memory")],
            operators=[Operator.AVG],
            window=settings[RefreshSettings].windows[0].label,
            start=end - int(settings[StoreSettings].retention),
            end=end,
        )
        try:
            found = await self.find(unheard, lambda host: ask(host=host))
        except StoreError:
            return  # the store logs its errors itself
        if found:
            refresher.add_last_seen(found)

    async def find(self, unheard: Collection[str], ask: Ask) -> dict[str, LastSample]:
        """Look up the next nodes of `never_seen`; return the last-seen values of stored nodes. Raises the errors
        of `ask`; nodes already known to be missing from the store are not looked up again."""
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
    """Return the last stored values of CPU and Memory, None if there are none."""
    values: dict[str, float] = {}
    sampled = -np.inf
    for series in stored:
        known = np.flatnonzero(~np.isnan(series.value))
        if len(known):
            values[series.metric] = float(series.value[known[-1]])
            sampled = max(sampled, float(series.time[known[-1]]))
    cpu, memory = (values.get(METRIC_BY_KEY[key].name) for key in ("CPU", "Memory"))
    return LastSample(sampled, cpu, memory) if values else None
