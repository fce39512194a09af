"""Writing NodeMetrics to the cluster, where koord-scheduler looks for them (koordinator.publish).

Each node's object is written once in its report interval, at a moment of that interval that is the node's own, so that
5,000 nodes are 83 small patches a second and never a burst. Written is what GET /api/v1/nodemetrics shows: a merge
patch of the status, and where there is no object yet, one with the policy in its spec, owned by its node, so that it
goes when the node does.

What is not written, and why:

* a node that is stale, not in the snapshot, or none of the cluster: its updateTime ages, and who reads it sees that;
* where somebody else reports, koordlet as a rule: the object's managed fields say who wrote updateTime last, and a
  report younger than two report intervals stands;
* over what others wrote and we know nothing of: a merge patch leaves it. Only pods that we wrote ourselves go when we
  know of none any more;
* by a replica that does not hold the Lease. Two that write the same would do no harm but twice the work, and a watch
  event more for everybody who watches; and one whose source is away would keep quiet while the other writes.

What goes wrong is a line in the log when it begins and one when it ends, and a count by outcome. An API that is away or
busy is left alone for a while, and so is one that refuses us.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.koordinator.collect_policy import CollectPolicies, PolicyPart
from watcher.core.koordinator.report import (
    Capacity,
    KoordinatorSpec,
    NodeStatuses,
    PodClass,
    go_duration,
    node_statuses,
)
from watcher.core.koordinator.written_objects import MANAGER, WRITTEN, WrittenNodeMetric
from watcher.core.kubernetes.errors import (
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeNoApi,
    KubeNotFound,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.kubernetes.times import read_time
from watcher.core.pods.table import Pod, PublishedPods
from watcher.core.publishing.documents import Published
from watcher.core.review.findings import some_of
from watcher.model import Window
from watcher.platform.kube.client import KubeClient, PatchKind
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.leases import RENEW_EVERY_S, Election

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

STEP_S = 1.0
AT_ONCE = 8
"""Requests under way; a patch of a NodeMetric takes an API server a few milliseconds."""
DELAYS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""After the first failure in a row, the second, …"""
REFUSED_S = 60.0
GIVE_BACK_S = 2.0
"""At the end; a Lease that is not given back ends by itself."""

Outcome = str
"""written, created, unchanged, left (somebody else reports), strange (no node of the cluster), refused, forbidden,
unreachable, conflict."""


class Source(Protocol):
    """What is written, and by which rules: the service."""

    @property
    def published(self) -> Published | None: ...

    @property
    def pods(self) -> PublishedPods | None: ...

    @property
    def max_staleness(self) -> float: ...

    @property
    def windows(self) -> tuple[Window, ...]: ...

    @property
    def collect_policies(self) -> CollectPolicies: ...

    def want_pods(self) -> str: ...

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def node_metadata(self, node: str) -> ObjectMetadata | None: ...

    def node_labels(self, node: str) -> Mapping[str, str]: ...

    def pod_classes(self) -> Mapping[Pod, PodClass]: ...

    async def capacities(self) -> Mapping[str, Capacity]: ...


@dataclass(slots=True)
class PublishStats:
    """How it went so far; `outcomes` only grow. `left` are the nodes that somebody else reports."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    holds_lease: bool = False
    left: set[str] = field(default_factory=set)


class NodeMetricPublisher:
    """Writes as long as it is started. `client` is closed with it; `election` says whether it is our turn."""

    def __init__(
        self,
        client: KubeClient,
        source: Source,
        *,
        election: Election,
        step: float = STEP_S,
        renew_every: float = RENEW_EVERY_S,
    ) -> None:
        self.stats = PublishStats()
        self._client = client
        self._source = source
        self._election = election
        self._step_s = step
        self._renew_every = renew_every
        self._objects = Informer(client, WRITTEN, on_change=self._note)
        self._specs: dict[str, PolicyPart] = {}
        self._told: Mapping[str, PolicyPart] | None = {}
        self._unserved: set[int] = set()
        self._due: Schedule | None = None
        self._stand_at = float("-inf")
        self._trouble = ""
        self._failures = 0
        self._quiet_until = float("-inf")
        self._refused: set[str] = set()
        self._leaves = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def specs(self) -> Mapping[str, PolicyPart]:
        """The policies that others wrote into objects, by node; another mapping whenever one changes."""
        if self._told is None:
            self._told = dict(self._specs)
        return self._told

    async def start(self) -> None:
        """Begin in the background."""
        await self._objects.start()
        self._tasks = [
            asyncio.create_task(self._forever(self._stand), name="node-metrics-lease"),
            asyncio.create_task(self._forever(self._step), name="node-metrics"),
        ]

    async def close(self) -> None:
        """Stop, and let another replica go on at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._objects.close()
        try:
            async with asyncio.timeout(GIVE_BACK_S):
                await self._election.give_back()
        except TimeoutError:
            log.debug("the Lease %s was not given back in time", self._election.key)
        await self._client.close()

    async def _forever(self, do: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await do()
            except Exception:  # a fault of ours must not end it for good, nor go unseen
                log.exception("writing NodeMetrics failed in a way that was not foreseen")
            await asyncio.sleep(self._step_s)

    # --- whose turn it is --------------------------------------------------------------------------------------------

    async def _stand(self) -> None:
        """Only who has something to write holds the Lease."""
        if self._ready() is None:
            await self._election.give_back()
        elif (now := self._source.monotonic()) >= self._stand_at:
            self._stand_at = now + self._renew_every
            try:
                await self._election.stand()
            except KubeError as error:
                self._failed(error, doing=f"the Lease {self._election.key} cannot be had")
        self.stats.holds_lease = self._election.held

    def _ready(self) -> Published | None:
        """What can be written: something fresh, once it is known what there is already."""
        published = self._source.published
        if published is None or not self._objects.synced.is_set() or isinstance(self._objects.error, KubeNoApi):
            return None
        return published if published.age(self._source.monotonic()) <= self._source.max_staleness else None

    # --- what is due -------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Write what is due."""
        if not self._election.held:
            self._due = None  # who takes it up again begins anew, and not with all nodes at once
            return
        published = self._ready()
        if published is None or self._source.monotonic() < self._quiet_until:
            return
        schedule = await self._schedule(published)
        await self._write_all(schedule, schedule.due(self._source.now()))
        self._tell_left()

    async def _schedule(self, published: Published) -> Schedule:
        """The statuses of what is published, made when that is new."""
        source, before = self._source, self._due
        policies = source.collect_policies
        source.want_pods()
        pods = source.pods
        if pods is not None and pods.age(source.monotonic()) > source.max_staleness:
            pods = None
        made_of = (published.tag, id(policies), "" if pods is None else pods.tag)
        if before is not None and before.made_of == made_of:
            return before
        capacities, snapshot = await source.capacities(), published.snapshot

        def make() -> NodeStatuses:
            mine = policies.of_all(snapshot.nodes, source.node_labels)
            return node_statuses(
                snapshot, capacities=capacities, pods=pods, policies=mine, classes=source.pod_classes()
            )

        statuses = await asyncio.to_thread(make)
        self._due = Schedule(statuses, made_of=made_of, policies=policies, before=before, now=source.now())
        self.stats.left.intersection_update(snapshot.nodes)
        return self._due

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _write_all(self, schedule: Schedule, rows: Sequence[int]) -> None:
        """A few at a time; the first failure that is about more than one node leaves the others for later."""
        waiting = iter(rows)

        async def work() -> None:
            for row in waiting:
                if self._source.monotonic() < self._quiet_until or not self._election.held:
                    return
                try:
                    outcome = await self._write(schedule.statuses, row)
                except KubeConflict:
                    outcome = "conflict"  # it changed meanwhile: when the watch has told, again
                except KubeNoApi as error:
                    outcome = self._failed(error)
                except KubeNotFound:
                    outcome = "conflict"
                except KubeError as error:
                    outcome = self._failed(error, node=schedule.statuses.snapshot.nodes[row])
                self.stats.outcomes[outcome] += 1
                if outcome not in ("conflict", "unreachable", "forbidden"):
                    schedule.done(row)

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(rows)))))

    async def _write(self, statuses: NodeStatuses, row: int) -> Outcome:
        """One node's NodeMetric, if it is for us to write."""
        node, there = statuses.snapshot.nodes[row], self._objects.objects.get(statuses.snapshot.nodes[row])
        known = self._source.node_metadata(node)
        if known is None:
            return "strange"
        if node in self._objects.unread:
            return "refused"
        status, interval = statuses.status(row), statuses.policies[row].report_interval_s
        self.stats.left.discard(node)
        if there is not None and there.reported_by_another(now=self._source.now(), interval=interval):
            self.stats.left.add(node)
            return "left"
        spec = msgspec.to_builtins(statuses.spec(row))
        if there is None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": known.uid}
            metadata = {"name": node, **({"ownerReferences": [owner]} if known.uid else {})}
            head = {"apiVersion": WRITTEN.group_version, "kind": "NodeMetric", "metadata": metadata}
            await self._client.add(WRITTEN, {**head, "spec": spec}, manager=MANAGER)
        elif there.told_by_others() is None and there.policy != _as_part(statuses.spec(row)):
            await self._client.patch(WRITTEN, node, {"spec": spec}, kind=PatchKind.MERGE, manager=MANAGER)
        elif there.updated is not None and there.updated >= (read_time(status.update_time) or 0.0):
            return "unchanged"
        change = msgspec.to_builtins(status)
        if status.pods_metric is msgspec.UNSET and there is not None and there.has_pods_of_ours:
            change = {**change, "podsMetric": None, "nodeMetric": {**change["nodeMetric"], "systemUsage": None}}
        await self._client.patch(
            WRITTEN, node, {"status": change}, kind=PatchKind.MERGE, subresource="status", manager=MANAGER
        )
        self._well(node)
        return "written" if there is not None else "created"

    # --- what others write -------------------------------------------------------------------------------------------

    def _note(self, node: str, _old: WrittenNodeMetric | None, new: WrittenNodeMetric | None) -> None:
        told = None if new is None else new.told_by_others()
        if new is None:
            self.stats.left.discard(node)
        if told == self._specs.get(node):
            return
        self._told = None
        if told is None:
            del self._specs[node]
        else:
            self._specs[node] = told
            self._tell_unserved(node, told)

    def _tell_unserved(self, node: str, told: PolicyPart) -> None:
        windows = self._source.windows
        unserved = set(told.durations_s or ()) - {window.seconds for window in windows} - self._unserved
        if unserved:
            self._unserved |= unserved
            log.warning(
                "the NodeMetric of %s, and maybe others, wants usage over %s, which is not served; there are %s, and "
                "refresh.windows can have more",
                node,
                ", ".join(map(go_duration, sorted(unserved))),
                ", ".join(window.label for window in windows),
            )

    # --- what is said ------------------------------------------------------------------------------------------------

    def _failed(self, error: KubeError, *, node: str = "", doing: str = "NodeMetrics cannot be written") -> Outcome:
        """Keep quiet for a while, if it is about more than one node; one line when trouble of a kind begins."""
        kind, wait = _kind_of(error)
        if kind == "refused" and node:
            if node not in self._refused:
                self._refused.add(node)
                log.warning("the NodeMetric of %s cannot be written: %s. %s", node, error, error.hint)
            return kind
        wait = wait or DELAYS_S[min(self._failures, len(DELAYS_S) - 1)]
        self._failures += 1
        wait = max(wait, min(error.retry_after or 0.0, DELAYS_S[-1]))
        self._quiet_until = self._source.monotonic() + wait
        if self._trouble != kind:
            self._trouble = kind
            log.warning("%s: %s. %s", doing, error, error.hint)
        return kind

    def _well(self, node: str) -> None:
        self._refused.discard(node)
        if self._trouble:
            log.info("NodeMetrics are written again")
        self._trouble, self._failures = "", 0

    def _tell_left(self) -> None:
        """One line when somebody else turns out to report, and one when nobody does any more."""
        left = self.stats.left
        if left and not self._leaves:
            names = sorted(left)
            who = {there.reporter for name in names if (there := self._objects.objects.get(name)) is not None}
            by = ", ".join(sorted(name or "somebody unnamed" for name in who))
            log.warning("NodeMetrics of %s are left to who reports them already (%s)", some_of(names), by)
        elif self._leaves and not left:
            log.info("nobody else reports NodeMetrics any more: all of them are ours")
        self._leaves = bool(left)


def _kind_of(error: KubeError) -> tuple[Outcome, float]:
    """What kind of trouble it is, and for how long to let it be, 0 for as the number of failures says."""
    if isinstance(error, KubeForbidden | KubeUnauthorized | KubeNoApi):
        return "forbidden", REFUSED_S
    return ("unreachable", 0.0) if isinstance(error, KubeUnreachable) else ("refused", 0.0)


def _as_part(spec: KoordinatorSpec) -> PolicyPart | None:
    """The spec as it will be read back."""
    written = msgspec.convert({"spec": msgspec.to_builtins(spec)}, WrittenNodeMetric)
    return written.policy


class Schedule:
    """Which of the nodes of one snapshot are due. In each report interval of a node there is one moment for it, the
    same in every interval and replica; a node that comes waits for its first."""

    def __init__(
        self,
        statuses: NodeStatuses,
        *,
        made_of: tuple[object, ...],
        policies: CollectPolicies,
        before: Schedule | None,
        now: float,
    ) -> None:
        self.statuses = statuses
        self.made_of = made_of
        self._policies = policies  # kept, so that its id is not given to another
        nodes = statuses.snapshot.nodes
        self._row: dict[str, int] = {node: row for row, node in enumerate(nodes)}
        self._interval: F64 = np.array([each.report_interval_s for each in statuses.policies], dtype=np.float64)
        known: dict[str, float] = {} if before is None else before._shares
        self._shares: dict[str, float] = {node: known[node] if node in known else moment(node) for node in nodes}
        self._offset: F64 = np.array([self._shares[node] for node in nodes]) * self._interval
        self._missing: Bool = np.array([node in statuses.missing for node in nodes], dtype=np.bool_)
        self._done: I64 = self._number(now)
        if before is not None:
            for row, node in enumerate(nodes):
                old = before._row.get(node)
                if old is not None and before._interval[old] == self._interval[row]:
                    self._done[row] = before._done[old]
        self._now = self._done

    def _number(self, now: float) -> I64:
        """Of the interval that each node is in."""
        return np.floor((now - self._offset) / self._interval).astype(np.int64)

    def due(self, now: float) -> list[int]:
        """The rows of the nodes that were not done in their interval yet."""
        self._now = self._number(now)
        rows: list[int] = np.flatnonzero((self._now != self._done) & ~self._missing).tolist()
        return rows

    def done(self, row: int) -> None:
        """For this interval."""
        self._done[row] = self._now[row]


def moment(node: str) -> float:
    """The share of an interval, 0 to 1, at which a node has its turn: as good as random, and always the same."""
    return int.from_bytes(hashlib.blake2s(node.encode(), digest_size=4).digest()) / 2**32
