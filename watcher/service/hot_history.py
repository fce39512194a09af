"""Starts of high loads from before the samples in memory, from the stored windows.

Each load is looked up once, and only a limited number of loads per call, so that a hot fleet does not cause load.
"""

from __future__ import annotations

from watcher.core.config.settings import Settings
from watcher.core.windows.hot_loads import HotLoads, LoadStart, NodeMetric, stored_start
from watcher.core.windows.settings import RefreshSettings
from watcher.model import Operator
from watcher.service.last_seen import AT_ONCE
from watcher.store.errors import StoreError
from watcher.store.settings import StoreSettings
from watcher.store.store import Store
from watcher.tick.tick import Refresher


class HotHistory:
    """Looks up the starts of high loads, and remembers the loads that were looked up."""

    def __init__(self) -> None:
        self._sought: set[NodeMetric] = set()

    async def update(self, refresher: Refresher, store: Store, *, settings: Settings, now: float) -> None:
        """Read since when loads are high that were high in the first sample in memory. `now` is in unix seconds."""
        if refresher.published is None:
            return
        try:
            found = await self.find(refresher.published.hot, store, settings=settings, now=now)
        except StoreError:
            return  # the store logs its errors itself
        if found:
            refresher.continue_hot(found)

    async def find(self, hot: HotLoads, store: Store, *, settings: Settings, now: float) -> dict[NodeMetric, LoadStart]:
        """Look up the next loads; return the starts that the stored means know to be earlier. Raises StoreError."""
        self._sought &= hot.starts.keys()
        wanted = sorted(key for key, start in hot.starts.items() if start.longer and key not in self._sought)
        windows = settings[RefreshSettings].windows
        found = {}
        for node, metric in wanted[:AT_ONCE]:
            start = hot.starts[node, metric]
            stored = await store.history(
                host=node,
                metrics=[metric],
                operators=[Operator.AVG],
                window=windows[0].label,
                start=int(now - settings[StoreSettings].retention),
                end=int(start.since),
            )
            self._sought.add((node, metric))
            for series in stored:
                earlier = stored_start(series, start, gap_s=windows[-1].seconds)
                if earlier is not None:
                    found[node, metric] = earlier
        return found
