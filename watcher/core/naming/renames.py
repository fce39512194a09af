"""The names of nodes over time: the history must hold each machine under one name, and no node another's load.

Names change under way. The list of nodes comes late, so that what was kept under an address becomes a node's; a node
joins that was scraped before; a node is replaced, and its address is the next one's. `Naming` gives batches the names
of nodes and notices such changes; `follow` has the history and the guard go along.

Pure: no I/O, no clock. What a name means at one moment is in names.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from watcher.core.naming.node_index import NodeIndex, told
from watcher.core.naming.resolution import Match, Resolution
from watcher.core.review.findings import report
from watcher.core.review.outage import Guard
from watcher.core.windows.history import History
from watcher.model import Finding, FindingKind, Remedy, SeriesBatch


@dataclass(frozen=True, slots=True)
class Named:
    """A batch under the names of nodes (without a `resolution` as it was), and what becomes of what is kept of its
    metric: `renamed` maps old names to new ones, None where the samples are another machine's and must go."""

    batch: SeriesBatch
    resolution: Resolution | None = None
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def translated(self) -> bool:
        """Whether any name changed."""
        return self.resolution is not None and self.resolution.translated


@dataclass(slots=True)
class _Known:
    """What is known of one metric's names: the resolution of the newest batch; the node that a name had when it last
    had one; and from when on (unix seconds) the samples under it are those of its present node."""

    resolution: Resolution | None = None
    owners: dict[str, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)


class Naming:
    """Gives batches the names of nodes, and notices when a name of the source comes to mean another one.

    Each metric is followed by itself: its series may be named in another way than those of the others. A name that was
    unknown and becomes a node's is the same machine, so its samples move along, and back again if the node leaves the
    cluster and its exporter stays. A name that goes from one node to another (an address given anew) is another
    machine: what was sampled before stays with the node before, or goes with it.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, _Known] = {}

    def name(self, batch: SeriesBatch, index: NodeIndex, *, now: float) -> Named:
        """The present: a batch as the source answers now (`now` in unix seconds)."""
        known = self._metrics.setdefault(batch.metric.name, _Known())
        resolution = index.resolve(batch.nodes)
        renamed: dict[str, str | None] = {}
        found: tuple[Finding, ...] = ()
        if resolution is not known.resolution:
            renamed, found = _changes(known, resolution, index, now=now)
            known.resolution = resolution
        return Named(_apply(batch, resolution.nodes, resolution, known, now=now), resolution, renamed, found)

    def name_past(self, batch: SeriesBatch, index: NodeIndex, *, now: float) -> Named:
        """A slice of the past. The present has decided what its names mean; one that is no more may mean a node that
        no name of the present means, and changes nothing of what is kept."""
        known = self._metrics.setdefault(batch.metric.name, _Known())
        resolution = index.resolve(batch.nodes)
        present = known.resolution
        nodes = resolution.nodes
        if present is not None and present is not resolution:
            taken = {match.node for match in present.matches.values()}
            decided = {**resolution.matches, **present.matches}
            nodes = tuple(
                node if (node := decided[name].node) and (name in present.matches or node not in taken) else name
                for name in batch.nodes
            )
        return Named(_apply(batch, nodes, resolution, known, now=now), resolution)


def _changes(
    known: _Known, resolution: Resolution, index: NodeIndex, *, now: float
) -> tuple[dict[str, str | None], tuple[Finding, ...]]:
    """What becomes of the history of one metric when its names come to mean other nodes; `known` is brought up to date.

    A name that is seen for the first time may be in the history as it is: stored before the cluster was known.
    """
    before = known.resolution.matches if known.resolution is not None else {}
    taken = {match.node for match in resolution.matches.values()}
    renamed: dict[str, str | None] = {}
    moved: list[Finding] = []
    for name, match in resolution.matches.items():
        was, is_now = (before[name].node if name in before else "") or name, match.node or name
        owner = known.owners.get(name, match.node)
        if match.node and owner != match.node:
            known.since[name] = now
            renamed[name] = None
            if was == owner and owner not in index.nodes:
                renamed[owner] = None
            moved.append(_moved(match, owner, index, now=now))
        elif was != is_now and was not in taken:
            renamed[was] = is_now
        if match.node:
            known.owners[name] = match.node
    if len(known.owners) > 2 * len(resolution.matches) + 100:
        known.owners = {name: node for name, node in known.owners.items() if name in resolution.matches}
        known.since = {name: time for name, time in known.since.items() if name in resolution.matches}
    return renamed, tuple(moved)


def _moved(match: Match, owner: str, index: NodeIndex, *, now: float) -> Finding:
    reason = f"{match.source} {told(match, index)} now and was node {owner}; what it told before is not this node's"
    return Finding(FindingKind.NODE_NAMES, match.node, "", now, reason, Remedy.DROPPED)


def _apply(
    batch: SeriesBatch, nodes: tuple[str, ...], resolution: Resolution, known: _Known, *, now: float
) -> SeriesBatch:
    """The batch under these names, without samples from before a node was created, or had the name it has now."""
    named = replace(batch, nodes=nodes)
    newest = max((resolution.newest, *known.since.values()))
    if not batch.time.size or newest <= batch.time.min():
        return named
    # one that was created in the future has another clock than ours, and says nothing of the past
    starts = {name: time for name, time in resolution.created.items() if time <= now} | known.since
    start = np.array([starts.get(name, -np.inf) for name in batch.nodes])
    early = batch.time < start[batch.series]
    return replace(named, series=batch.series[~early], time=batch.time[~early], value=batch.value[~early])


# --- what goes along -------------------------------------------------------------------------------------------------


def follow(named: Iterable[Named], *, history: History, guard: Guard, now: float) -> tuple[Finding, ...]:
    """Bring what is kept under old names under the new ones; `now` in unix seconds."""
    done: dict[str, str | None] = {}
    for each in named:
        done.update((name, each.renamed[name]) for name in history.rename(each.batch.metric.name, each.renamed))
    if not done:
        return ()
    gone = set(history.forget_silent())
    guard.rename({name: new for name, new in done.items() if name in gone})
    return _renamings(done, now=now)


def _renamings(done: Mapping[str, str | None], *, now: float) -> tuple[Finding, ...]:
    pairs = [(old, new) for old, new in sorted(done.items()) if new is not None]
    return report(
        FindingKind.NODE_NAMES,
        Remedy.RENAMED,
        metric="",
        nodes=[new for _, new in pairs],
        times=[now] * len(pairs),
        reason=lambda i: f"it was known as {pairs[i][0]} so far; what was kept under that name is now under this one",
        summary="they were known by other names so far; what was kept is now under these",
    )
