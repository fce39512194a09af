"""Node names over time: the history has each machine under one name, and no node has another node's load.

Resolutions change while the service runs. The node list arrives late, so that samples stored under an address must be
assigned to a node; a node joins that was scraped before; a node is replaced, and its address is assigned to another
node. `NodeRenames` resolves the names of batches and detects such changes; `apply_renames` applies them to the history
and the guard.

Pure: no I/O, no clock. name_resolver.py resolves names at one moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from watcher.core.naming.evidence import Match, Resolution
from watcher.core.naming.name_resolver import NodeIndex, describe_match
from watcher.core.review.findings import report
from watcher.core.review.outage import OutageGuard
from watcher.core.windows.history import History
from watcher.model import Finding, FindingKind, Remedy, SeriesBatch


@dataclass(frozen=True, slots=True)
class NamedBatch:
    """A batch with node names (unchanged if `resolution` is None), and the renames to apply to the stored samples of
    its metric: `renamed` maps old names to new names, None if the samples are another machine's and must be removed."""

    batch: SeriesBatch
    resolution: Resolution | None = None
    renamed: Mapping[str, str | None] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def translated(self) -> bool:
        """Whether any source name differs from its node name."""
        return self.resolution is not None and self.resolution.translated


@dataclass(slots=True)
class _NameState:
    """State of one metric's source names: the resolution of the newest batch; the last resolved node of each
    name; and the time (unix seconds) from which on its samples belong to its current node."""

    resolution: Resolution | None = None
    owners: dict[str, str] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)


class NodeRenames:
    """Resolves the names of batches, and detects when a source name resolves to another node than before.

    Each metric is tracked separately, because its series may have other names. A name that was unknown and becomes a
    node's is the same machine, so its samples are renamed, and renamed back if the node leaves the cluster and its
    exporter stays. A name that changes from one node to another (a reassigned address) is another machine: earlier
    samples stay with the earlier node, or are removed with it.
    """

    def __init__(self) -> None:
        self._metrics: dict[str, _NameState] = {}

    def name(self, batch: SeriesBatch, index: NodeIndex, *, now: float) -> NamedBatch:
        """Resolve a batch of the newest samples; `now` is in unix seconds."""
        known = self._metrics.setdefault(batch.metric.name, _NameState())
        resolution = index.resolve(batch.nodes)
        renamed: dict[str, str | None] = {}
        found: tuple[Finding, ...] = ()
        if resolution is not known.resolution:
            renamed, found = _changes(known, resolution, index, now=now)
            known.resolution = resolution
        return NamedBatch(_apply(batch, resolution.nodes, resolution, known, now=now), resolution, renamed, found)

    def name_past(self, batch: SeriesBatch, index: NodeIndex, *, now: float) -> NamedBatch:
        """Resolve a slice of the past. Names of the newest batch keep their resolution. Another name may resolve to a
        node that no name of the newest batch resolves to. Stored samples are not renamed."""
        known = self._metrics.setdefault(batch.metric.name, _NameState())
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
        return NamedBatch(_apply(batch, nodes, resolution, known, now=now), resolution)


def _changes(
    known: _NameState, resolution: Resolution, index: NodeIndex, *, now: float
) -> tuple[dict[str, str | None], tuple[Finding, ...]]:
    """Return the renames of one metric's history after its names resolve to other nodes, and the findings; updates
    `known`.

    A name that is seen for the first time may be in the history unresolved: stored before the cluster was known.
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
    now_is = describe_match(match, index)
    reason = f"{match.source} {now_is}, but was node {owner} before; the earlier samples belong to the previous node"
    return Finding(FindingKind.NODE_NAMES, match.node, "", now, reason, Remedy.DROPPED)


def _apply(
    batch: SeriesBatch, nodes: tuple[str, ...], resolution: Resolution, known: _NameState, *, now: float
) -> SeriesBatch:
    """Return the batch with these names, without samples from before a node was created or got its current name."""
    named = replace(batch, nodes=nodes)
    newest = max((resolution.newest, *known.since.values()))
    if not batch.time.size or newest <= batch.time.min():
        return named
    # a creation time in the future comes from another clock and cannot limit the past
    starts = {name: time for name, time in resolution.created.items() if time <= now} | known.since
    start = np.array([starts.get(name, -np.inf) for name in batch.nodes])
    early = batch.time < start[batch.series]
    return replace(named, series=batch.series[~early], time=batch.time[~early], value=batch.value[~early])


# --- apply renames ---------------------------------------------------------------------------------------------------


def apply_renames(
    named: Iterable[NamedBatch], *, history: History, guard: OutageGuard, now: float
) -> tuple[Finding, ...]:
    """Apply renames to the history and the guard; return findings. `now` is in unix seconds."""
    done: dict[str, str | None] = {}
    for each in named:
        done.update((name, each.renamed[name]) for name in history.rename(each.batch.metric.name, each.renamed))
    if not done:
        return ()
    gone = set(history.drop_empty_nodes())
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
        reason=lambda i: f"it was known as {pairs[i][0]} before; the samples of that name are now under this name",
        summary="they were known by other names before; their samples are now under these names",
    )
