"""Takes over the samples of other replicas before the first tick, if the source has no history to fetch."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from watcher.platform.memory import memory_limit
from watcher.replicas import transfer
from watcher.tick.shared import TICK_SHARE

if TYPE_CHECKING:
    from watcher.clock import Clock
    from watcher.model import RestoredSamples
    from watcher.replicas.peers import Peers
    from watcher.tick.tick import Refresher

MEMORY_PER_CELL = 40
"""Bytes of the memory limit per cell of a replica's samples, which takes 10 bytes; merging needs a copy."""


async def take_over_samples(
    refresher: Refresher, peers: Peers, *, origin: transfer.TransferOrigin, timeout: float, clock: Clock
) -> None:
    """Merge the samples of other replicas with the local samples, if the source has no history to fetch. `timeout` is
    in seconds."""
    if refresher.provider.remembers:
        return
    config = refresher.config

    def read(body: bytes) -> RestoredSamples:
        bounds = transfer.TransferBounds(
            now=clock.now(),
            windows=config.windows,
            max_staleness=config.max_staleness,
            max_ahead=config.limits.max_ahead_s,
            max_cells=memory_limit() // MEMORY_PER_CELL,
        )
        return transfer.decode(body, own_origin=origin, bounds=bounds)

    given = await peers.ask(read, timeout=min(timeout, TICK_SHARE * config.interval))
    if not given:
        return
    own = await refresher.samples()
    everything = [*given] if own is None else [own, *given]
    everything.sort(key=lambda each: each.end)
    await refresher.restore(reduce(transfer.merge_samples, everything))
