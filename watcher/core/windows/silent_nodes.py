"""Silent nodes: nodes that are not served because they have no recent samples, with their last-seen times and values.

A snapshot contains no node without a sample that is young enough to serve, so schedulers do not use it. An operator who
investigates an incident must still find such a node: it is listed here until it has samples again or has left. If the
nodes of the cluster are known, a node that is not among them has left. Otherwise a node has left when, for a day, it
had no sample and the nodes of the cluster were unknown.

The store keeps the last known values, so that a restart does not forget a node that fell silent before.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from watcher.arrays import F64
from watcher.model import LastSample, MetricWindows, Snapshot

FORGET_S = 24 * 3600.0  # seconds, if the cluster's nodes are unknown; equals the default retention of the store
MAX_NODES = 20_000  # names, if the cluster's nodes are unknown; limits the memory if a source keeps producing new names


class SilentNode(msgspec.Struct, frozen=True):
    """A silent node: the time of its last sample in unix seconds, and its last CPU and Memory in percent. `sampled` is
    null for a node of the cluster that never had a sample."""

    name: str
    sampled: float | None = None
    cpu: float | None = None
    memory: float | None = None


class SilentDocument(msgspec.Struct, frozen=True):
    """Body of /api/v1/silent, ordered by name. `listed`: the nodes of the cluster are known. In that case other nodes
    are left out, and nodes that never had a sample are included. `lost` maps each node that is lost in a partial outage
    to the unix time of its last sample, and `served` is the number of nodes with recent samples. `source_ok` is false
    while the source does not respond or responds with incomplete data: nodes may then lack samples because of the
    source."""

    listed: bool
    nodes: list[SilentNode]
    lost: dict[str, float] = {}
    served: int = 0
    source_ok: bool = True


def last_samples(
    nodes: Sequence[str], rows: Sequence[int], sampled: F64, metrics: Sequence[MetricWindows]
) -> dict[str, LastSample]:
    """Return the last known values of the nodes in `rows`, by name; `sampled` [n] and `metrics` as in a Snapshot."""
    latest = {windows.metric.key: windows.latest for windows in metrics}

    def last(key: str, row: int) -> float | None:
        value = float(latest[key][row]) if key in latest else np.nan
        return None if np.isnan(value) else value

    return {nodes[row]: LastSample(float(sampled[row]), last("CPU", row), last("Memory", row)) for row in rows}


class SilentNodes:
    """Stores the last known values of nodes that are not served. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[str, LastSample] = {}
        self._renamed = False
        self._listed_at = -np.inf  # unix seconds: when the cluster's nodes were last known, or the state was restored
        self.document = SilentDocument(listed=False, nodes=[])
        """The silent nodes as of the last step."""

    def forget(self) -> None:
        """Reset, when a source names the nodes differently."""
        self._last, self._renamed = {}, True

    @property
    def last(self) -> Mapping[str, LastSample]:
        """The last known values of the nodes that are not served, for the store."""
        return self._last

    def restore(self, last: Mapping[str, LastSample], *, now: float) -> None:
        """Continue with the stored values of `last`. Until the nodes of the cluster are known, all of them stay, for
        FORGET_S from `now` (unix seconds)."""
        self._last = {**last, **self._last}
        self._listed_at = now
        nodes = [_silent_node(name, each) for name, each in sorted(self._last.items())]
        self.document = SilentDocument(listed=False, nodes=nodes)

    @property
    def never_seen(self) -> tuple[str, ...]:
        """Nodes of the cluster without any sample, sorted by name."""
        return tuple(node.name for node in self.document.nodes if node.sampled is None)

    def add_last_seen(self, found: Mapping[str, LastSample]) -> None:
        """Add last-seen values from the store for nodes without any sample."""
        known = {name: found[name] for name in self.never_seen if name in found}
        self._last |= known
        nodes = [
            _silent_node(node.name, known[node.name]) if node.name in known else node for node in self.document.nodes
        ]
        self.document = msgspec.structs.replace(self.document, nodes=nodes)

    def update(
        self, snapshot: Snapshot, *, before: Snapshot | None, now: float, listed: Collection[str] | None
    ) -> SilentDocument:
        """Return the silent nodes at `now` (unix seconds), from this tick's snapshot and the snapshot published
        `before`, which may be from before a restart, because a node may vanish in the meantime. `listed` are the nodes
        of the cluster, None if unknown. Quarantined and lost nodes are not included."""
        served = set(snapshot.nodes)
        if before is not None and before.source == snapshot.source and not self._renamed:
            gone = [row for row, name in enumerate(before.nodes) if name not in served]
            self._last |= before.left_out
            self._last |= last_samples(before.nodes, gone, before.sampled, before.metrics)
        self._renamed = False
        self._last |= snapshot.left_out
        if listed is not None:
            self._listed_at = now
        self._last = {
            name: last
            for name, last in self._last.items()
            if name not in served
            and (now - max(last.sampled, self._listed_at) <= FORGET_S if listed is None else name in listed)
        }
        if listed is None and len(self._last) > MAX_NODES:
            newest = sorted(self._last.items(), key=lambda item: (-item[1].sampled, item[0]))
            self._last = dict(newest[:MAX_NODES])
        elsewhere = served | snapshot.quarantined | snapshot.lost.keys()
        silent = [_silent_node(name, last) for name, last in self._last.items() if name not in elsewhere]
        silent.extend(SilentNode(name) for name in set(listed or ()) - elsewhere - self._last.keys())
        self.document = SilentDocument(
            listed is not None,
            sorted(silent, key=lambda node: node.name),
            {name: round(sampled, 3) for name, sampled in sorted(snapshot.lost.items())},
            len(served),
        )
        return self.document


def _silent_node(name: str, last: LastSample) -> SilentNode:
    return SilentNode(name, round(last.sampled, 3), _percent(last.cpu), _percent(last.memory))


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
