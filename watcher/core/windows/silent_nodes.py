"""The nodes that are in no list because nothing is heard of them: since when, and what they showed last.

What is published has no node without a sample young enough to serve, so that nobody schedules by it. Who looks for that
very node in an incident must find it all the same: here it stays until it is heard of again, or has really gone. Where
the nodes of the cluster are known, that is when it is none of them any more; elsewhere, after a day without a sample.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np

from watcher.arrays import F64
from watcher.model import LastSample, MetricWindows, Snapshot

FORGET_S = 24 * 3600.0  # without a list of nodes: the history of what was stored goes as far back by default
MOST_KEPT = 20_000  # names; a source that has new ones for ever must not fill the memory


class SilentNode(msgspec.Struct, frozen=True):
    """A node that is in no list: the time of its last sample in unix seconds, and its last CPU and Memory in percent.
    `sampled` is null where the cluster has that node and nothing was ever heard of it."""

    name: str
    sampled: float | None = None
    cpu: float | None = None
    memory: float | None = None


class SilentDocument(msgspec.Struct, frozen=True):
    """Body of /api/v1/silent, by name. `listed` says whether the nodes of the cluster are known: then those that are
    none of them are left out, and those that nothing was ever heard of are among these."""

    listed: bool
    nodes: list[SilentNode]


def last_samples(
    nodes: Sequence[str], rows: Sequence[int], sampled: F64, metrics: Sequence[MetricWindows]
) -> dict[str, LastSample]:
    """What the nodes of these rows showed last, by name; `sampled` [n] and the arrays of `metrics` as in a Snapshot."""
    latest = {windows.metric.key: windows.latest for windows in metrics}

    def last(key: str, row: int) -> float | None:
        value = float(latest[key][row]) if key in latest else np.nan
        return None if np.isnan(value) else value

    return {nodes[row]: LastSample(float(sampled[row]), last("CPU", row), last("Memory", row)) for row in rows}


class SilentNodes:
    """Remembers what was last heard of nodes that are not served. For one thread at a time."""

    def __init__(self) -> None:
        self._last: dict[str, LastSample] = {}
        self._renamed = False
        self.document = SilentDocument(listed=False, nodes=[])
        """As of the last step."""

    def forget(self) -> None:
        """Start anew, when a source comes to name the nodes differently."""
        self._last, self._renamed = {}, True

    @property
    def unheard(self) -> tuple[str, ...]:
        """The nodes of the cluster that nothing was heard of, by name."""
        return tuple(node.name for node in self.document.nodes if node.sampled is None)

    def recall(self, found: Mapping[str, LastSample]) -> None:
        """What somebody else knows of nodes that nothing was heard of here."""
        known = {name: found[name] for name in self.unheard if name in found}
        self._last |= known
        nodes = [_told(node.name, known[node.name]) if node.name in known else node for node in self.document.nodes]
        self.document = SilentDocument(self.document.listed, nodes)

    def step(
        self, snapshot: Snapshot, *, before: Snapshot | None, now: float, listed: Collection[str] | None
    ) -> SilentDocument:
        """The nodes that are silent at `now` (unix seconds), of what this tick knows and what was published `before`
        it, also before a restart: a node may go while nobody looks. `listed` are the nodes of the cluster, None where
        they are not known. Nodes that are in quarantine or lost have another reason and are not among them."""
        served = set(snapshot.nodes)
        if before is not None and before.source == snapshot.source and not self._renamed:
            gone = [row for row, name in enumerate(before.nodes) if name not in served]
            self._last |= before.left_out
            self._last |= last_samples(before.nodes, gone, before.sampled, before.metrics)
        self._renamed = False
        self._last |= snapshot.left_out
        self._last = {
            name: last
            for name, last in self._last.items()
            if name not in served and (now - last.sampled <= FORGET_S if listed is None else name in listed)
        }
        if len(self._last) > MOST_KEPT:
            newest = sorted(self._last.items(), key=lambda item: (-item[1].sampled, item[0]))
            self._last = dict(newest[:MOST_KEPT])
        elsewhere = served | snapshot.quarantined | snapshot.lost.keys()
        silent = [_told(name, last) for name, last in self._last.items() if name not in elsewhere]
        silent.extend(SilentNode(name) for name in set(listed or ()) - elsewhere - self._last.keys())
        self.document = SilentDocument(listed is not None, sorted(silent, key=lambda node: node.name))
        return self.document


def _told(name: str, last: LastSample) -> SilentNode:
    return SilentNode(name, round(last.sampled, 3), _percent(last.cpu), _percent(last.memory))


def _percent(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
