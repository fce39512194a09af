"""Node load as Koordinator's NodeMetric objects (slo.koordinator.sh/v1alpha1), as koordlet reports it.

koordlet reports amounts in millicores and bytes: the mean over an aggregation period, and the mean and four percentiles
over each of several durations. `measure` computes these values for all nodes, in percent of a node's capacity;
LoadAwareScheduling uses them. `make_report` converts them to objects, so only for nodes with a known capacity; for all
other nodes there is a reason. A node needs both CPU and memory, because readers of a NodeMetric treat a missing value
as zero.

Unknown data is left out: NUMA, reclaimable resources, and without pods the system usage.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.core.koordinator.collect_policy import CollectPolicy
from watcher.core.kubernetes.times import time_text
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import SLOT_S, Pod, by_node
from watcher.model import METRIC_BY_KEY, Snapshot

API_VERSION: Literal["slo.koordinator.sh/v1alpha1"] = "slo.koordinator.sh/v1alpha1"
PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
METRIC_KEYS = ("CPU", "Memory")
"""Metrics of a NodeMetric."""
GPU_KEY = "GPU"
WARM_SHARE = 0.5
"""Fraction of a duration: an entry whose samples span less has no resources."""


class Capacity(NamedTuple):
    """Capacity of a node: CPU in thousandths of a core, memory in bytes."""

    milli_cores: int
    memory: int


# --- JSON types ------------------------------------------------------------------------------------------------------


class ResourceMap(msgspec.Struct, omit_defaults=True):
    """Kubernetes quantities by resource: cpu in millicores ("250m"), memory in bytes. Empty if unknown."""

    resources: dict[str, str] = {}


class NodeAggregatePolicy(msgspec.Struct):
    """The durations of the aggregated usages, in Go's format ("5m0s")."""

    durations: list[str]


class NodeMetricCollectPolicy(msgspec.Struct, rename="camel"):
    """Collect policy of a node: aggregation and report intervals in seconds, and the durations of aggregated usages."""

    aggregate_duration_seconds: int
    report_interval_seconds: int
    node_aggregate_policy: NodeAggregatePolicy


class KoordinatorSpec(msgspec.Struct, rename="camel"):
    """Spec of a NodeMetric: the collect policy that the status follows."""

    metric_collect_policy: NodeMetricCollectPolicy


class AggregatedUsage(msgspec.Struct):
    """Usage over one duration by avg, p50, p90, p95 and p99; each is empty while the samples span less than half of the
    duration."""

    duration: str
    usage: dict[str, ResourceMap]


class KoordinatorNodeUsage(msgspec.Struct, rename="camel", omit_defaults=True):
    """Mean usage over the aggregation period, and the aggregated usages. `systemUsage` is the mean usage minus the
    usage of all pods; it is present if pod usage is known."""

    node_usage: ResourceMap
    aggregated_node_usages: list[AggregatedUsage]
    system_usage: ResourceMap | msgspec.UnsetType = msgspec.UNSET


class PodClass(NamedTuple):
    """Koordinator's priority class ("koord-prod") and QoS class ("LS") of a pod."""

    priority: str
    qos: str


UNKNOWN_CLASS = PodClass("", "")


class KoordinatorPodUsage(msgspec.Struct, rename="camel", omit_defaults=True):
    """Mean usage of a pod over the aggregation period. `priority` and `qos` are Koordinator's classes, left out if
    unknown."""

    namespace: str
    name: str
    pod_usage: ResourceMap
    priority: str = ""
    qos: str = ""


class KoordinatorStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """Status of a NodeMetric; `updateTime` is the time of the node's newest sample. `podsMetric` is left out if pod
    usage is unknown."""

    update_time: str
    node_metric: KoordinatorNodeUsage
    pods_metric: list[KoordinatorPodUsage] | msgspec.UnsetType = msgspec.UNSET


class KoordinatorMetadata(msgspec.Struct):
    """Metadata of a NodeMetric; its name is that of the node."""

    name: str


class KoordinatorNodeMetric(msgspec.Struct, rename="camel"):
    """Body of GET /api/v1/nodemetrics/{host}: one NodeMetric."""

    api_version: Literal["slo.koordinator.sh/v1alpha1"]
    kind: Literal["NodeMetric"]
    metadata: KoordinatorMetadata
    spec: KoordinatorSpec
    status: KoordinatorStatus


class KoordinatorNodeMetricList(msgspec.Struct, rename="camel"):
    """Body of GET /api/v1/nodemetrics, in the order of the nodes' names."""

    api_version: Literal["slo.koordinator.sh/v1alpha1"]
    kind: Literal["NodeMetricList"]
    metadata: dict[str, str]
    items: list[KoordinatorNodeMetric]


# --- arithmetic ------------------------------------------------------------------------------------------------------


def percentile(values: F64, p: float) -> F64:
    """Return koordlet's percentile of each column of `values` [rows, n], NaN if empty: in ascending order, the sample
    with index int(count * p) - 1, at least 0, without interpolation. `p` is 0 to 1. Raises ValueError without rows."""
    return percentiles(values, (p,))[0]


def percentiles(values: F64, shares: Iterable[float]) -> list[F64]:
    """Return several percentiles of each column; sorts the values once. Raises ValueError without rows."""
    if not len(values):
        raise ValueError("cannot compute a percentile without samples")
    ordered = np.sort(values, axis=0)  # NaN comes last
    count = np.count_nonzero(~np.isnan(ordered), axis=0)

    def at(p: float) -> F64:
        index = np.maximum((count * p).astype(np.int64) - 1, 0)
        return np.asarray(np.take_along_axis(ordered, index[None, :], axis=0)[0], dtype=np.float64)

    return [at(p) for p in shares]


def mean(values: F64) -> F64:
    """Return the mean of the values that are not NaN in each column of `values` [rows, n]; NaN for an empty column."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    found: F64 = np.divide(total, count, out=np.full(values.shape[1], np.nan), where=count > 0)
    return found


def warm(time: F64, seconds: int) -> Bool:
    """Return whether the samples of each column span at least half of `seconds`; `time` [rows, n], NaN if none."""
    span = np.fmax.reduce(time, axis=0) - np.fmin.reduce(time, axis=0)
    return np.asarray(span >= WARM_SHARE * seconds, dtype=np.bool_)


def go_duration(seconds: int) -> str:
    """Format a duration as Go does: 300 seconds are "5m0s"."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"


def whole(amounts: F64) -> I64:
    """Truncate millicores or bytes to integers as koordlet does, 0 for NaN. Values are first rounded to thousandths,
    because smaller differences are rounding errors of the percentages."""
    return np.trunc(np.round(np.nan_to_num(amounts, nan=0.0), 3)).astype(np.int64)


def _resources(cpu: float, memory: float) -> ResourceMap:
    """Return the quantities of CPU in millicores and memory in bytes; a NaN value is left out."""
    found = {}
    if cpu == cpu:
        found["cpu"] = f"{int(round(cpu, 3))}m"
    if memory == memory:
        found["memory"] = str(int(round(memory, 3)))
    return ResourceMap(found)


# --- all nodes at once -----------------------------------------------------------------------------------------------

TYPES = ("avg", *PERCENTILES)
"""Statistics of an aggregated usage."""


@dataclass(frozen=True, slots=True)
class NodeUsages:
    """Usage of n nodes by koordlet's rules, in percent of their capacity, NaN if unknown. `usage[key]` [n], with key
    "CPU", "Memory", or "GPU" if the source measures it, is the mean over each node's aggregation period.
    `aggregated[key, type, seconds]` [n] is a statistic (see TYPES) over a duration, NaN while the samples span less
    than half of it. `interval` and `period` [n] are each node's report interval and aggregation period in seconds."""

    usage: Mapping[str, F64]
    aggregated: Mapping[tuple[str, str, int], F64]
    interval: F64
    period: I64

    @property
    def durations(self) -> tuple[int, ...]:
        """Durations of the aggregated usages in seconds, in ascending order."""
        return tuple(sorted({seconds for _, _, seconds in self.aggregated}))


def measure(
    snapshot: Snapshot, *, policies: Sequence[CollectPolicy], durations: Iterable[int] | None = None
) -> NodeUsages:
    """Compute the usages of a snapshot's nodes; `policies` are in the order of the nodes. Aggregated usages cover all
    windows, or `durations` (seconds, at most the longest window). Takes tens of milliseconds for thousands of nodes:
    call it in a thread."""
    wanted = sorted({window.seconds for window in snapshot.windows} if durations is None else set(durations))
    periods = np.array([each.aggregate_duration_s for each in policies], dtype=np.int64)
    with_gpu = any(windows.metric.key == GPU_KEY for windows in snapshot.metrics)
    samples = {key: _samples(snapshot, key) for key in ((*METRIC_KEYS, GPU_KEY) if with_gpu else METRIC_KEYS)}
    usage: dict[str, F64] = {}
    for key, (values, _) in samples.items():
        usage[key] = np.full(len(snapshot.nodes), np.nan)
        for seconds in np.unique(periods).tolist():
            mine = np.flatnonzero(periods == seconds)
            usage[key][mine] = mean(values[: seconds // snapshot.resolution, mine])
    intervals = np.array([each.report_interval_s for each in policies], dtype=np.float64)
    return NodeUsages(usage, AggregatedUsages(samples, wanted, snapshot.resolution), intervals, periods)


class AggregatedUsages(Mapping[tuple[str, str, int], F64]):
    """The aggregated usages of `NodeUsages`, each duration of a metric computed at its first use. `samples[key]` are
    values (percent) and times (unix seconds), each [slots, n]; `resolution` is the width of a slot in seconds."""

    def __init__(self, samples: Mapping[str, tuple[F64, F64]], durations: Sequence[int], resolution: int) -> None:
        self._samples, self._durations, self._resolution = samples, durations, resolution
        self._computed: dict[tuple[str, int], dict[str, F64]] = {}

    def __getitem__(self, of: tuple[str, str, int]) -> F64:
        key, name, seconds = of
        if key not in self._samples or seconds not in self._durations:
            raise KeyError(of)
        if (key, seconds) not in self._computed:
            self._computed[key, seconds] = self._compute(key, seconds)
        return self._computed[key, seconds][name]

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        return iter(product(self._samples, TYPES, self._durations))

    def __len__(self) -> int:
        return len(self._samples) * len(TYPES) * len(self._durations)

    def _compute(self, key: str, seconds: int) -> dict[str, F64]:
        rows = seconds // self._resolution
        values, time = (each[:rows] for each in self._samples[key])
        enough = warm(time, seconds)
        found = (mean(values), *percentiles(values, PERCENTILES.values()))
        return {name: np.where(enough, each, np.nan) for name, each in zip(TYPES, found, strict=True)}


def _samples(snapshot: Snapshot, key: str) -> tuple[F64, F64]:
    """Return values (percent) and times (unix seconds) of a metric over the longest window, each [slots, n]; all NaN
    for a node that currently lacks the metric."""
    name = METRIC_BY_KEY[key].name
    served = [windows for windows in snapshot.metrics if windows.metric.name == name]
    if not served or snapshot.samples is None:
        nothing = np.full((snapshot.windows[-1].seconds // snapshot.resolution, len(snapshot.nodes)), np.nan)
        return nothing, nothing
    values, time = snapshot.samples(name)
    gone = np.isnan(served[0].latest)
    return np.where(gone, np.nan, values), np.where(gone, np.nan, time)


# --- one report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeMetricReport:
    """Report of all nodes: the JSON of each NodeMetric by node name, in the order of names, and in `missing` the reason
    for each node without one. `periods` is the policy and the number of the report interval in which each was created,
    `made` the time (unix seconds); `policies` are all policies in use."""

    objects: Mapping[str, bytes]
    missing: Mapping[str, str]
    periods: Mapping[str, tuple[CollectPolicy, int]] = field(default_factory=dict)
    made: Mapping[str, float] = field(default_factory=dict)
    policies: frozenset[CollectPolicy] = frozenset()

    def body(self) -> bytes:
        """Return the JSON of the NodeMetricList with all objects."""
        head = f'{{"apiVersion":"{API_VERSION}","kind":"NodeMetricList","metadata":{{}},"items":['.encode()
        return head + b",".join(self.objects.values()) + b"]}"


@dataclass(frozen=True, slots=True)
class NodeStatuses:
    """Computes the statuses of a snapshot's nodes, one per call; `missing` has the reason for nodes without one."""

    snapshot: Snapshot
    policies: Sequence[CollectPolicy]
    missing: Mapping[str, str]
    _amounts: Sequence[_Amounts]
    _pods: _PodAmounts | None

    def status(self, row: int) -> KoordinatorStatus:
        """Return the status of the node in this row, which must not be in `missing`."""
        pods = self._pods_on(row)
        usage = _usage(self._amounts, row, self.policies[row].durations_s or self._windows)
        if pods is not None:
            usage.system_usage = _resources(*(max(0.0, float(each)) for each in self._used(row) - pods.total))
        return KoordinatorStatus(
            time_text(self.snapshot.sampled[row]),
            usage,
            msgspec.UNSET if pods is None else pods.usages,
        )

    def _pods_on(self, row: int) -> _PodsOfNode | None:
        """Return the pods of the node in this row, None if their usage is unknown."""
        node, pods = self.snapshot.nodes[row], self._pods
        if pods is None or not pods.coverage.known(node, self.snapshot.timestamp):
            return None
        return pods.on(node, self.policies[row])

    def spec(self, row: int) -> KoordinatorSpec:
        """Return the spec of the node in this row: its collect policy."""
        policy = self.policies[row]
        durations = [go_duration(seconds) for seconds in policy.durations_s or self._windows]
        aggregate = NodeAggregatePolicy(durations)
        return KoordinatorSpec(
            NodeMetricCollectPolicy(policy.aggregate_duration_s, policy.report_interval_s, aggregate)
        )

    def object(self, row: int) -> KoordinatorNodeMetric:
        """Return the whole NodeMetric of the node in this row."""
        metadata = KoordinatorMetadata(self.snapshot.nodes[row])
        return KoordinatorNodeMetric(API_VERSION, "NodeMetric", metadata, self.spec(row), self.status(row))

    @property
    def _windows(self) -> tuple[int, ...]:
        return tuple(window.seconds for window in self.snapshot.windows)

    def _used(self, row: int) -> F64:
        return np.array([each.usage[row] for each in self._amounts])


def node_statuses(
    snapshot: Snapshot,
    *,
    capacities: Mapping[str, Capacity],
    pods: PublishedPods | None,
    policies: Sequence[CollectPolicy],
    classes: Mapping[Pod, PodClass] = {},
) -> NodeStatuses:
    """Prepare the statuses of a snapshot's nodes; `policies` are in the order of the nodes. `pods` is None if pod usage
    is unknown; `classes` are the known classes of pods by namespace and name. Takes tens of milliseconds: call it in a
    thread."""
    durations = {seconds for policy in set(policies) for seconds in policy.durations_s or ()}
    windows = {window.seconds for window in snapshot.windows}
    usages = measure(snapshot, policies=policies, durations=windows | durations)
    sizes = np.array([capacities.get(node, (np.nan, np.nan)) for node in snapshot.nodes], dtype=np.float64)
    amounts = [
        _Amounts.of(usages, key, sizes.reshape(-1, len(METRIC_KEYS))[:, column])
        for column, key in enumerate(METRIC_KEYS)
    ]
    missing: dict[str, str] = {}
    for row, node in enumerate(snapshot.nodes):
        without = [key for key in METRIC_KEYS if np.isnan(usages.usage[key][row])]
        if node not in capacities:
            missing[node] = "its capacity is unknown"
        elif without:
            period = policies[row].aggregate_duration_s
            missing[node] = f"no samples of {' and '.join(without)} in the last {period} s"
    return NodeStatuses(snapshot, policies, missing, amounts, None if pods is None else _PodAmounts(pods, classes))


def make_report(
    statuses: NodeStatuses, *, before: NodeMetricReport | None = None, max_age: float = math.inf
) -> NodeMetricReport:
    """Create the report of all nodes as JSON. A node's NodeMetric from `before` is reused until its report interval
    ends, for at most `max_age` seconds."""
    snapshot = statuses.snapshot
    objects: dict[str, bytes] = {}
    periods: dict[str, tuple[CollectPolicy, int]] = {}
    made: dict[str, float] = {}
    for row, node in enumerate(snapshot.nodes):
        if node in statuses.missing:
            continue
        periods[node] = period = period_of(statuses.policies[row], snapshot.timestamp)
        if before and before.periods.get(node) == period and snapshot.timestamp - before.made[node] <= max_age:
            objects[node], made[node] = before.objects[node], before.made[node]
        else:
            objects[node], made[node] = msgspec.json.encode(statuses.object(row)), snapshot.timestamp
    return NodeMetricReport(objects, statuses.missing, periods, made, frozenset(each for each, _ in periods.values()))


def period_of(policy: CollectPolicy, timestamp: float) -> tuple[CollectPolicy, int]:
    """Return the policy and the number of its report interval at `timestamp` (unix seconds)."""
    return policy, int(timestamp // policy.report_interval_s)


@dataclass(frozen=True, slots=True)
class _Amounts:
    """One resource of n nodes in millicores or bytes: `usage` [n] over the aggregation period, `aggregated[seconds]`
    [types, n]; NaN if unknown."""

    usage: F64
    aggregated: Mapping[int, F64]

    @classmethod
    def of(cls, usages: NodeUsages, key: str, sizes: F64) -> _Amounts:
        aggregated = {
            seconds: np.array([usages.aggregated[key, name, seconds] for name in TYPES]) * sizes / 100.0
            for seconds in usages.durations
        }
        return cls(usages.usage[key] * sizes / 100.0, aggregated)


def _usage(amounts: Sequence[_Amounts], row: int, durations: Iterable[int]) -> KoordinatorNodeUsage:
    cpu, memory = amounts
    entries = []
    for seconds in durations:
        # both or none: readers treat a missing value as zero
        pairs = np.stack([cpu.aggregated[seconds][:, row], memory.aggregated[seconds][:, row]], axis=1)
        pairs[np.isnan(pairs).any(axis=1)] = np.nan
        usage = {kind: _resources(*pair) for kind, pair in zip(TYPES, pairs.tolist(), strict=True)}
        entries.append(AggregatedUsage(go_duration(seconds), usage))
    return KoordinatorNodeUsage(_resources(float(cpu.usage[row]), float(memory.usage[row])), entries)


class _PodsOfNode(NamedTuple):
    """Usages of a node's pods, ordered by namespace and name, and their `total`: millicores and bytes."""

    usages: list[KoordinatorPodUsage]
    total: F64


class _PodAmounts:
    """Usage of pods over any period; pods with unknown cpu or memory in the period are left out, as in koordlet."""

    def __init__(self, pods: PublishedPods, classes: Mapping[Pod, PodClass]) -> None:
        self.coverage = pods.coverage
        self._table = pods.table
        self._classes = classes
        self._rows = by_node(pods.table.nodes)
        self._means: dict[int, F64] = {}

    def on(self, node: str, policy: CollectPolicy) -> _PodsOfNode | None:
        """Return the pods of a node, over its aggregation period; None if the node has pods, but no usage of any."""
        amounts = self._amounts(max(1, policy.aggregate_duration_s // SLOT_S))
        rows = self._rows.get(node, np.empty(0, dtype=np.int64))
        there = ~np.isnan(amounts[:, rows]).any(axis=0)
        if len(rows) and not there.any():  # the source lacks a resource: readers treat a missing pod as idle
            return None
        rows = rows[there]
        return _PodsOfNode([self._usage(row, amounts) for row in rows.tolist()], amounts[:, rows].sum(axis=1))

    def _amounts(self, minutes: int) -> F64:
        if minutes not in self._means:
            cores, memory = mean(self._table.recent_cores[-minutes:]), mean(self._table.recent_memory[-minutes:])
            self._means[minutes] = np.array([cores * 1000.0, memory])
        return self._means[minutes]

    def _usage(self, row: int, amounts: F64) -> KoordinatorPodUsage:
        pod = self._table.pods[row]
        (namespace, name), (priority, qos) = pod, self._classes.get(pod, UNKNOWN_CLASS)
        return KoordinatorPodUsage(namespace, name, _resources(*amounts[:, row].tolist()), priority, qos)
