"""Publishes NodeMetric objects to the cluster, where koord-scheduler reads them (koordinator.publish).

Each node's object is written once per report interval, at a fixed offset in the interval that differs by node, which
prevents bursts. koordinator.writes_per_second limits the writes: if more nodes are due, those that have waited longest
come first, and the interval between two writes of a node is longer than its report interval. The content is that of
GET /api/v1/nodemetrics: a merge patch of the status. A missing object is created with the policy in its spec and with
its node as owner, so that it is deleted with the node.

Not written:

* nodes that are stale, not in the snapshot, or not in the cluster: readers see that the updateTime ages;
* nodes that another program reports, usually koordlet: the object's managed fields name the last writer of updateTime,
  and a report younger than two report intervals is respected;
* fields that load-watcher does not have: a merge patch leaves them unchanged. Only pods that load-watcher wrote itself
  are removed when pod usage becomes unknown;
* anything, by a replica that does not hold the Lease. Two writing replicas would be harmless, but would double the work
  and the watch events; a replica whose source is down releases the Lease, so that another replica writes.

Errors are counted by outcome; `elected_writer` has the pauses after them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.koordinator.collect_policy import CollectPolicies, PolicyOverride
from watcher.core.koordinator.report import (
    KoordinatorSpec,
    NodeStatuses,
    go_duration,
    node_statuses,
)
from watcher.core.koordinator.written_objects import MANAGER, WRITTEN, WrittenNodeMetric
from watcher.core.kubernetes.errors import (
    KubeConflict,
    KubeError,
    KubeNoApi,
    KubeNotFound,
)
from watcher.core.kubernetes.times import read_time
from watcher.core.publishing.documents import Published
from watcher.core.review.findings import some_of
from watcher.koordinator.publisher_source import PublisherSource
from watcher.platform.elected_writer import ElectedWriter, Outcome, WriteBudget
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.leases import RENEW_EVERY_S, Election
from watcher.platform.kube.parameters import PatchKind

log = logging.getLogger(__name__)

STEP_S = 1.0
EXPIRES_S = 180.0
"""koord-scheduler ignores older NodeMetrics by default (nodeMetricExpirationSeconds of LoadAwareScheduling)."""
AT_ONCE = 8
"""Maximum number of concurrent requests; a patch of a NodeMetric takes an API server a few milliseconds."""


@dataclass(slots=True)
class PublishStats:
    """Statistics for /metrics; `outcomes` never decrease. `reported_elsewhere` are the nodes that another program
    reports."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    reported_elsewhere: set[str] = field(default_factory=set)


class NodeMetricPublisher(ElectedWriter[PublisherSource]):
    """Writes NodeMetrics in the background from `start` to `close`. `close` also closes `client`; `election` decides
    whether this replica writes, `writes_per_second` limits its requests. `step` and `renew_every` are in seconds."""

    def __init__(
        self,
        client: KubeClient,
        source: PublisherSource,
        *,
        election: Election,
        writes_per_second: int,
        step: float = STEP_S,
        renew_every: float = RENEW_EVERY_S,
    ) -> None:
        super().__init__(client, source, election=election, what="NodeMetric", step=step, renew_every=renew_every)
        self.stats = PublishStats()
        self._budget = WriteBudget(writes_per_second)
        self._late = False
        self._objects = Informer(client, WRITTEN, on_change=self._note)
        self._specs: dict[str, PolicyOverride] = {}
        self._specs_copy: Mapping[str, PolicyOverride] | None = {}
        self._unserved: set[int] = set()
        self._due: Schedule | None = None
        self._leaves = False

    @property
    def specs(self) -> Mapping[str, PolicyOverride]:
        """Collect policies that other programs wrote into the objects, by node; a new mapping after each change."""
        if self._specs_copy is None:
            self._specs_copy = dict(self._specs)
        return self._specs_copy

    async def start(self) -> None:
        """Start the informer and the background tasks."""
        await self._objects.start()
        await super().start()

    async def _close_sources(self) -> None:
        await self._objects.close()

    # --- what is due -------------------------------------------------------------------------------------------------

    def _ready(self) -> Published | None:
        """Return the published snapshot if it is fresh and the existing objects are known, otherwise None."""
        known = self._objects.synced.is_set() and not isinstance(self._objects.error, KubeNoApi)
        return super()._ready() if known else None

    async def _step(self) -> None:
        """Write the nodes that are due now."""
        if not self._election.held:
            self._due = None  # after losing the Lease, begin with a new schedule, not with all nodes at once
            return
        published = self._ready()
        if published is None or self._pauses():
            return
        schedule = await self._schedule(published)
        self._budget.refill(self._source.monotonic())
        await self._write_all(schedule, schedule.due(self._source.now()))
        self._log_reported_elsewhere()
        self._log_late(schedule)

    async def _schedule(self, published: Published) -> Schedule:
        """Return the schedule of the published snapshot's statuses; computed again only if the data has changed."""
        source, before = self._source, self._due
        policies = source.collect_policies
        source.request_pods()
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
        self.stats.reported_elsewhere.intersection_update(snapshot.nodes)
        return self._due

    # --- writing -----------------------------------------------------------------------------------------------------

    async def _write_all(self, schedule: Schedule, rows: Sequence[int]) -> None:
        """Write nodes with limited concurrency; stop at the first failure that affects more than one node."""
        waiting = iter(rows)

        async def work() -> None:
            for row in waiting:
                if self._pauses() or not self._election.held or self._budget.spent:
                    return
                try:
                    outcome = await self._write(schedule.statuses, row)
                except KubeConflict:
                    outcome = "conflict"  # the object changed: retried after the watch event
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
        """Write one node's NodeMetric unless another program reports it; return the outcome."""
        node, there = statuses.snapshot.nodes[row], self._objects.objects.get(statuses.snapshot.nodes[row])
        known = self._source.node_metadata(node)
        if known is None:
            return "strange"
        if node in self._objects.undecodable:
            return "refused"
        status, interval = statuses.status(row), statuses.policies[row].report_interval_s
        self.stats.reported_elsewhere.discard(node)
        if there is not None and there.reported_by_another(now=self._source.now(), interval=interval):
            self.stats.reported_elsewhere.add(node)
            return "left"
        spec = msgspec.to_builtins(statuses.spec(row))
        if there is None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": known.uid}
            metadata = {"name": node, **({"ownerReferences": [owner]} if known.uid else {})}
            head = {"apiVersion": WRITTEN.group_version, "kind": "NodeMetric", "metadata": metadata}
            self._budget.spend()
            await self._client.create(WRITTEN, {**head, "spec": spec}, manager=MANAGER)
        elif there.policy_of_others() is None and there.policy != _as_part(statuses.spec(row)):
            self._budget.spend()
            await self._client.patch(WRITTEN, node, {"spec": spec}, kind=PatchKind.MERGE, manager=MANAGER)
        elif there.updated is not None and there.updated >= (read_time(status.update_time) or 0.0):
            return "unchanged"
        change = msgspec.to_builtins(status)
        if status.pods_metric is msgspec.UNSET and there is not None and there.has_own_pods:
            change = {**change, "podsMetric": None, "nodeMetric": {**change["nodeMetric"], "systemUsage": None}}
        self._budget.spend()
        await self._client.patch(
            WRITTEN, node, {"status": change}, kind=PatchKind.MERGE, subresource="status", manager=MANAGER
        )
        self._succeeded(node)
        return "written" if there is not None else "created"

    # --- policies of other programs ----------------------------------------------------------------------------------

    def _note(self, node: str, _old: WrittenNodeMetric | None, new: WrittenNodeMetric | None) -> None:
        message = None if new is None else new.policy_of_others()
        if new is None:
            self.stats.reported_elsewhere.discard(node)
        if message == self._specs.get(node):
            return
        self._specs_copy = None
        if message is None:
            del self._specs[node]
        else:
            self._specs[node] = message
            self._log_unserved_durations(node, message)

    def _log_unserved_durations(self, node: str, override: PolicyOverride) -> None:
        windows = self._source.windows
        unserved = set(override.durations_s or ()) - {window.seconds for window in windows} - self._unserved
        if unserved:
            self._unserved |= unserved
            log.warning(
                "the NodeMetric of %s, and possibly others, requests usage over %s, which is not served; served "
                "windows are %s: add the duration to refresh.windows",
                node,
                ", ".join(map(go_duration, sorted(unserved))),
                ", ".join(window.label for window in windows),
            )

    # --- log messages ------------------------------------------------------------------------------------------------

    def _log_late(self, schedule: Schedule) -> None:
        """Log when the limit of writes makes the data older than koord-scheduler accepts, and when it no longer
        does."""
        age, late = self._budget.age_s(len(schedule.statuses.snapshot.nodes), interval=schedule.interval_s), self._late
        self._late = age > max(EXPIRES_S, 2 * schedule.interval_s)
        if self._late and not late:
            log.warning(
                "with %d writes per second, NodeMetrics become %.0f s old; koord-scheduler ignores them after %.0f s "
                "unless its nodeMetricExpirationSeconds is larger: raise koordinator.writes_per_second",
                self._budget.per_second,
                age,
                EXPIRES_S,
            )
        elif late and not self._late:
            log.info("NodeMetrics are written within %.0f s again", EXPIRES_S)

    def _log_reported_elsewhere(self) -> None:
        """Log when another program reports NodeMetrics, and when none does any more."""
        left = self.stats.reported_elsewhere
        if left and not self._leaves:
            names = sorted(left)
            who = {there.reporter for name in names if (there := self._objects.objects.get(name)) is not None}
            by = ", ".join(sorted(name or "unknown" for name in who))
            log.warning("not publishing NodeMetrics for %s: already reported by %s", some_of(names), by)
        elif self._leaves and not left:
            log.info("no other program reports NodeMetrics any more; publishing them for all nodes")
        self._leaves = bool(left)


def _as_part(spec: KoordinatorSpec) -> PolicyOverride | None:
    """Return the policy of a spec as it is read back from the API."""
    written = msgspec.convert({"spec": msgspec.to_builtins(spec)}, WrittenNodeMetric)
    return written.policy


class Schedule:
    """Determines which nodes of one snapshot are due. Each node is due once per report interval, at the same offset in
    every interval and on every replica; a new node waits for its first due time."""

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
        self._policies = policies  # referenced, so that its id is not reused
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
        """Return the number of the report interval that each node is in; [n]."""
        return np.floor((now - self._offset) / self._interval).astype(np.int64)

    def due(self, now: float) -> list[int]:
        """Return the rows of the nodes that are not done in their current interval, longest due first; `now` is in unix
        seconds."""
        self._now = self._number(now)
        rows = np.flatnonzero((self._now != self._done) & ~self._missing)
        since = (self._done[rows] + 1) * self._interval[rows] + self._offset[rows]
        due: list[int] = rows[np.argsort(since, kind="stable")].tolist()
        return due

    @property
    def interval_s(self) -> float:
        """The mean report interval in seconds."""
        return float(self._interval.mean()) if len(self._interval) else 0.0

    def done(self, row: int) -> None:
        """Mark a row as done for the interval of the last `due` call."""
        self._done[row] = self._now[row]


def moment(node: str) -> float:
    """Return the fraction of the interval, 0 to 1, at which a node is due: a hash of its name, so always the same."""
    return int.from_bytes(hashlib.blake2s(node.encode(), digest_size=4).digest()) / 2**32
