"""Writes the marks to the nodes, by the replica that holds the Lease.

A node is written if its marks differ from the plan: at most WRITES_PER_SECOND nodes per second, removals first, then
the highest degrees. Taints and annotation of a node are changed in one patch, which the API server refuses if the node
changed since it was read (`node_changes.set_marks`).

All marks are removed when the load becomes stale, and when the service stops; what a stop within REMOVE_WITHIN_S
leaves, the next holder of the Lease removes or corrects. A replica that loses the Lease writes nothing more: the marks
belong to the new holder.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scorers.marks.annotation import ABSENT, ANNOTATION_KEY, score_text
from scorers.marks.degrees import KEYS, taints_of
from scorers.marks.planner import NO_MARKS, MarkPlan, MarkPlanner, NodeMarks, marks_of
from watcher.core.kubernetes.errors import KubeConflict, KubeError, KubeNotFound
from watcher.core.kubernetes.objects import Node
from watcher.platform.elected_writer import ElectedWriter, LoadSource, Outcome, WriteBudget
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import own_namespace
from watcher.platform.kube.events import EventSource, EventSubject, report
from watcher.platform.kube.leases import RENEW_EVERY_S, Election
from watcher.platform.kube.node_changes import MARK_MANAGER, set_marks

log = logging.getLogger(__name__)

MARKS_LEASE = "load-watcher-marks"
STEP_S = 1.0
WRITES_PER_SECOND = 10.0
REMOVE_WITHIN_S = 5.0
"""Time in seconds for the removal of the marks at a stop: the service has 10 s to stop."""
AT_ONCE = 16
"""Maximum number of concurrent requests at a stop."""


@dataclass(slots=True)
class MarkStats:
    """Statistics for /metrics; `outcomes` never decrease."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)


class MarkWriter(ElectedWriter[LoadSource]):
    """Writes from `start` to `close`. `nodes` returns the nodes of the cluster by name. `planner` makes the
    plans, which the owner of the writer sets. `now` returns unix seconds, for Events."""

    def __init__(
        self,
        client: KubeClient,
        source: LoadSource,
        *,
        election: Election,
        nodes: Callable[[], Mapping[str, Node]],
        planner: MarkPlanner,
        now: Callable[[], float],
        writer: EventSource,
        step: float = STEP_S,
        renew_every: float = RENEW_EVERY_S,
    ) -> None:
        super().__init__(client, source, election=election, what="mark", step=step, renew_every=renew_every)
        self.stats = MarkStats()
        self.plan: MarkPlan | None = None
        """The newest plan, set by the owner of the writer; None until the load was known once."""
        self._nodes = nodes
        self._planner = planner
        self._now = now
        self._writer = writer
        self._budget = WriteBudget(WRITES_PER_SECOND)
        self._seen: MarkPlan | None = None
        self._due: dict[str, NodeMarks] = {}

    def _wants_lease(self) -> bool:
        """Also while the load is stale, as long as a node has marks to remove."""
        return self.plan is not None and (self.plan.is_fresh or bool(self._due) or bool(self.marked()))

    def marked(self) -> dict[str, NodeMarks]:
        """Return the nodes that have marks, by name."""
        return {name: marks for name, node in self._nodes().items() if (marks := marks_of(node)) != NO_MARKS}

    async def _step(self) -> None:
        if self.plan is None or not self._may_write():
            self._seen = None
            return
        if self.plan is not self._seen or not (self._due or self.plan.is_fresh):  # stale: until no node has marks
            self._seen, self._due = self.plan, self._find_due(self.plan)
        self._budget.refill(self._source.monotonic())
        for node, wanted in list(self._due.items()):
            if not self._may_write() or self._budget.spent:
                break
            self._budget.spend()
            outcome = await self._write(node, wanted)
            if outcome not in ("unreachable", "forbidden"):
                self._due.pop(node, None)

    def _find_due(self, plan: MarkPlan) -> dict[str, NodeMarks]:
        """Return the nodes to write in the order of writing. Marks that another program changed are corrected after the
        pause, too."""
        nodes, now = self._nodes(), self._source.monotonic()
        due = [
            (wanted != NO_MARKS, -wanted.degree, name)
            for name, wanted in plan.wanted.items()
            if name in nodes and marks_of(nodes[name]) != wanted
            if wanted == NO_MARKS or not self._planner.is_paused(name, now)
        ]
        return {name: plan.wanted[name] for _, _, name in sorted(due)}

    async def _write(self, node: str, wanted: NodeMarks) -> Outcome:
        """Change the marks of one node, and count the outcome."""
        known = self._nodes().get(node)
        before = NO_MARKS if known is None else marks_of(known)
        try:
            changed = await write_marks(self._client, node, wanted)
        except (KubeNotFound, KubeConflict):
            outcome = "conflict"
        except KubeError as error:
            outcome = self._failed(error, node=node)
        else:
            self._succeeded(node)
            outcome = "unchanged" if not changed else "removed" if wanted == NO_MARKS else "written"
            self._planner.changed(node, wanted, self._source.monotonic())
            if changed and wanted.degree != before.degree:
                await self._report(node, before.degree, wanted.degree)
        self.stats.outcomes[outcome] += 1
        return outcome

    async def _report(self, node: str, before: int, after: int) -> None:
        """Write an Event about the taints of a node; an error is only logged, at debug level."""
        message = f"soft taints: {before} before, {after} now, by the load compared with the other nodes"
        reason = "LoadMarked" if after else "LoadMarkRemoved"
        try:
            await report(
                self._client,
                EventSubject("Node", node),
                reason=reason,
                message=message,
                warning=False,
                by=self._writer,
                now=self._now(),
            )
        except KubeError as error:
            log.debug("no Event about the marks of %s: %s", node, error)

    async def _close_sources(self) -> None:
        """Remove all marks before the Lease is released; the tainted nodes first."""
        if not self._election.held:
            return
        order = sorted(self.marked().items(), key=lambda each: (-each[1].degree, each[0]))
        slots = asyncio.Semaphore(AT_ONCE)

        async def remove(node: str) -> None:
            async with slots:
                await self._write(node, NO_MARKS)

        try:
            async with asyncio.timeout(REMOVE_WITHIN_S):
                await asyncio.gather(*(remove(node) for node, _ in order))
        except TimeoutError:
            log.warning(
                "not all marks were removed in %g s; the next replica removes them, or load-watcher marks remove",
                REMOVE_WITHIN_S,
            )


async def write_marks(client: KubeClient, node: str, wanted: NodeMarks) -> bool:
    """Give a node these marks in one patch; return whether it was changed. Raises KubeError."""
    annotation = None if wanted.score == ABSENT else score_text(wanted.score)
    return await set_marks(
        client, node, taints=taints_of(wanted.degree), keys=KEYS, annotations={ANNOTATION_KEY: annotation}
    )


def marks_election(client: KubeClient, *, now: Callable[[], float], monotonic: Callable[[], float]) -> Election:
    """Create the participation of this process in the election for the Lease, which is in the namespace of this pod, or
    else in "default"."""
    return Election(
        client,
        f"{own_namespace() or 'default'}/{MARKS_LEASE}",
        identity=f"{socket.gethostname()}_{secrets.token_hex(4)}",
        manager=MARK_MANAGER,
        now=now,
        monotonic=monotonic,
    )
