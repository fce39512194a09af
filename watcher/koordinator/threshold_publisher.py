"""Writes the usage thresholds of nodes as Koordinator's annotation (koordinator.thresholds), by server-side apply.

The replica that holds the Lease writes a node's annotation if a threshold differs from the written one by STEP points,
at most once in PAUSE_S seconds, the largest difference first; WRITES_PER_SECOND limits the writes to all nodes. A node
that has no bound for REMOVE_AFTER_S loses its annotation. The annotation of a node whose usage is not known stays.

An annotation of another program is not changed: apply without force is refused (409) if another field manager has the
annotation with another value. Such a node is tried again once its annotation has changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from watcher.core.koordinator.usage_thresholds import (
    ANNOTATION,
    NO_THRESHOLDS,
    STEP,
    ThresholdRange,
    UsageThresholds,
    differ,
    node_thresholds,
    read_thresholds,
)
from watcher.core.kubernetes.errors import KubeConflict, KubeError, KubeNotFound
from watcher.core.kubernetes.objects import NODES, ObjectMetadata
from watcher.core.publishing.documents import Published
from watcher.core.review.findings import some_of
from watcher.koordinator.publisher_source import PublisherSource
from watcher.platform.elected_writer import ElectedWriter, Outcome, WriteBudget
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.leases import RENEW_EVERY_S, Election
from watcher.platform.kube.parameters import PatchKind

log = logging.getLogger(__name__)

THRESHOLD_MANAGER = "load-watcher-thresholds"
"""Field manager of the annotations: not that of other writes, so that applying them changes nothing else."""
STEP_S = 1.0
WRITES_PER_SECOND = 5.0
"""5,000 nodes take 17 minutes."""
PAUSE_S = 300.0
"""Least time in seconds between two writes of a node."""
REMOVE_AFTER_S = 3600.0
"""Seconds without a bound until the annotation of a node is removed: after a start without stored maxima, they are
fetched from the source first."""


@dataclass(slots=True)
class ThresholdStats:
    """Statistics for /metrics; `outcomes` never decrease. `left`: the annotation of another writer by node."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    left: dict[str, str] = field(default_factory=dict)


class ThresholdPublisher(ElectedWriter[PublisherSource]):
    """Writes the annotations from `start` to `close`; `ranges` are by resource. See ElectedWriter."""

    def __init__(
        self,
        client: KubeClient,
        source: PublisherSource,
        *,
        election: Election,
        ranges: Mapping[str, ThresholdRange],
        writes_per_second: float = WRITES_PER_SECOND,
        step: float = STEP_S,
        renew_every: float = RENEW_EVERY_S,
    ) -> None:
        super().__init__(client, source, election=election, what="usage threshold", step=step, renew_every=renew_every)
        self.stats = ThresholdStats()
        self._ranges = ranges
        self._budget = WriteBudget(writes_per_second)
        self._due: dict[str, UsageThresholds] = {}
        self._tag = ""
        self._written_at: dict[str, float] = {}
        self._unbounded_since: dict[str, float] = {}
        self._leaves = False

    async def _step(self) -> None:
        published = self._ready()
        if published is None or not self._may_write():
            self._tag = ""  # the annotations may be others once this replica writes again
            return
        if published.tag != self._tag:
            self._due = await asyncio.to_thread(self._find_due, published)
            self._tag = published.tag
        self._budget.refill(self._source.monotonic())
        for node, wanted in list(self._due.items()):
            if not self._may_write() or self._budget.spent:
                break
            outcome = await self._try_to_write(node, wanted)
            self.stats.outcomes[outcome] += 1
            if outcome not in ("unreachable", "forbidden"):
                del self._due[node]
        self._log_left()

    def _find_due(self, published: Published) -> dict[str, UsageThresholds]:
        """Return the nodes to write and their thresholds, the largest difference first."""
        wanted = node_thresholds(published.snapshot, self._ranges)
        now, known = self._source.monotonic(), set(published.snapshot.nodes)
        self._unbounded_since = {node: at for node, at in self._unbounded_since.items() if node in known}
        self._written_at = {node: at for node, at in self._written_at.items() if node in known and now - at < PAUSE_S}
        found: list[tuple[int, str]] = []
        for node, thresholds in wanted.items():
            metadata = self._source.node_metadata(node)
            if metadata is None or node in self._written_at or self._waits(node, thresholds, now):
                continue
            text = metadata.annotations.get(ANNOTATION, "")
            if node in self.stats.left and self.stats.left[node] != text:
                del self.stats.left[node]
            points = differ(thresholds, read_thresholds(text) if text else NO_THRESHOLDS)
            if points >= STEP and node not in self.stats.left:
                found.append((-points, node))
        return {node: wanted[node] for _, node in sorted(found)}

    def _waits(self, node: str, wanted: UsageThresholds, now: float) -> bool:
        """Whether a node without a bound may still get one soon."""
        if wanted.usage_thresholds:
            self._unbounded_since.pop(node, None)
            return False
        return now - self._unbounded_since.setdefault(node, now) < REMOVE_AFTER_S

    async def _try_to_write(self, node: str, wanted: UsageThresholds) -> Outcome:
        metadata = self._source.node_metadata(node)
        if metadata is None:
            return "conflict"
        text = metadata.annotations.get(ANNOTATION, "")
        self._budget.spend()
        try:
            outcome = await apply_thresholds(self._client, metadata, wanted)
        except KubeNotFound:
            return "conflict"
        except KubeError as error:
            return self._failed(error, node=node)
        self._succeeded(node)
        if outcome == "left" and text:
            self.stats.left[node] = text
        elif outcome != "left":
            self._written_at[node] = self._source.monotonic()
        return outcome

    def _log_left(self) -> None:
        """Log when some nodes have an annotation of another writer, and when none has any more."""
        if self.stats.left and not self._leaves:
            names = some_of(sorted(self.stats.left))
            log.warning(
                "not writing the usage thresholds of %s: another writer set the annotation %s", names, ANNOTATION
            )
        elif self._leaves and not self.stats.left:
            log.info("no node has usage thresholds of another writer any more")
        self._leaves = bool(self.stats.left)


async def apply_thresholds(client: KubeClient, node: ObjectMetadata, wanted: UsageThresholds) -> Outcome:
    """Apply the annotation of a node, or remove it (NO_THRESHOLDS): return "written", "removed", or "left" if it
    belongs to another writer. Raises KubeError."""
    annotations = {ANNOTATION: wanted.text()} if wanted.usage_thresholds else {}
    # the uid: without it, apply would create a Node that was deleted meanwhile
    metadata = {"name": node.name, "uid": node.uid, **({"annotations": annotations} if annotations else {})}
    content = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    try:
        after = await client.patch(NODES, node.name, content, kind=PatchKind.APPLY, manager=THRESHOLD_MANAGER)
    except KubeConflict:
        return "left"
    if annotations:
        return "written"
    return "left" if ANNOTATION in after.metadata.annotations else "removed"


async def remove_all(
    client: KubeClient, *, writes_per_second: float = WRITES_PER_SECOND
) -> tuple[list[str], list[str]]:
    """Remove the annotations that load-watcher wrote; return the nodes that had one, and those that keep one of another
    writer. Raises KubeError."""
    removed: list[str] = []
    left: list[str] = []
    for node in sorted((await client.list(NODES)).items, key=lambda node: node.metadata.name):
        if ANNOTATION in node.metadata.annotations:
            outcome = await apply_thresholds(client, node.metadata, NO_THRESHOLDS)
            (removed if outcome == "removed" else left).append(node.metadata.name)
            await asyncio.sleep(1.0 / writes_per_second)
    return removed, left
