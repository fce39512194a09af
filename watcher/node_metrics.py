"""The windows as Koordinator's NodeMetric objects (slo.koordinator.sh/v1alpha1), as koordlet would report them.

koordlet reports amounts: millicores and bytes, the mean over an aggregation period, and for each of some durations the
mean and four percentiles (reference/koordinator.md, 2.1 and 2.2). We have percents of a node's capacity, so only nodes
whose capacity is known have one; of the others there is a reason. A node needs both CPU and memory, since a reader of a
NodeMetric takes what is left out for zero.

What the watcher does not know is left out: the pods' priority and QoS classes, system usage, NUMA, reclaimable.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from watcher.model import F64, METRIC_BY_KEY, Bool, Snapshot
from watcher.pods import SLOT_S, PublishedPods, by_node

API_VERSION: Literal["slo.koordinator.sh/v1alpha1"] = "slo.koordinator.sh/v1alpha1"
PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
METRIC_KEYS = ("CPU", "Memory")
WARM = 0.5
"""Of a duration: an entry whose samples span less has no resources."""


class Capacity(NamedTuple):
    """What a node has in all: thousandths of a core, and bytes."""

    milli_cores: int
    memory: int


@dataclass(frozen=True, slots=True)
class CollectPolicy:
    """How often a report is made, and over how many seconds its usage is averaged."""

    report_interval_s: int = 60
    aggregate_duration_s: int = 300


# --- shapes on the wire ----------------------------------------------------------------------------------------------


class ResourceMap(msgspec.Struct, omit_defaults=True):
    """Kubernetes quantities by resource: cpu in millicores ("250m"), memory in bytes. Empty where it is not known."""

    resources: dict[str, str] = {}


class NodeAggregatePolicy(msgspec.Struct):
    """The durations of the aggregated usages, as Go writes them ("5m0s")."""

    durations: list[str]


class NodeMetricCollectPolicy(msgspec.Struct, rename="camel"):
    """How the node is measured."""

    aggregate_duration_seconds: int
    report_interval_seconds: int
    node_aggregate_policy: NodeAggregatePolicy


class KoordinatorSpec(msgspec.Struct, rename="camel"):
    """The policy that the status follows."""

    metric_collect_policy: NodeMetricCollectPolicy


class AggregatedUsage(msgspec.Struct):
    """Usage over one duration by avg, p50, p90, p95 and p99; each is empty while the samples span less than half."""

    duration: str
    usage: dict[str, ResourceMap]


class KoordinatorNodeUsage(msgspec.Struct, rename="camel"):
    """Mean over the aggregation period, and the aggregated usages."""

    node_usage: ResourceMap
    aggregated_node_usages: list[AggregatedUsage]


class KoordinatorPodUsage(msgspec.Struct, rename="camel"):
    """Mean of a pod over the aggregation period."""

    namespace: str
    name: str
    pod_usage: ResourceMap


class KoordinatorStatus(msgspec.Struct, rename="camel", omit_defaults=True):
    """What was measured; `updateTime` is the time of the node's newest sample. Without `podsMetric` nothing is known of
    pods."""

    update_time: str
    node_metric: KoordinatorNodeUsage
    pods_metric: list[KoordinatorPodUsage] | msgspec.UnsetType = msgspec.UNSET


class KoordinatorMetadata(msgspec.Struct):
    """The name of the node."""

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
    """koordlet's percentile of each column of `values` [rows, n], NaN where empty: of the samples in ascending order
    that with index int(count * p) - 1, at least 0. Never interpolated. Raises ValueError without rows."""
    if not len(values):
        raise ValueError("there is no percentile of no samples")
    ordered = np.sort(values, axis=0)  # NaN comes last
    count = np.count_nonzero(~np.isnan(ordered), axis=0)
    index = np.maximum((count * p).astype(np.int64) - 1, 0)
    return np.asarray(np.take_along_axis(ordered, index[None, :], axis=0)[0], dtype=np.float64)


def mean(values: F64) -> F64:
    """Of what is there in each column of `values` [rows, n]; NaN for an empty one."""
    known = ~np.isnan(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    found: F64 = np.divide(total, count, out=np.full(values.shape[1], np.nan), where=count > 0)
    return found


def warm(time: F64, seconds: int) -> Bool:
    """Whether the samples of each column span at least half of so many seconds; `time` [rows, n], NaN for none."""
    span = np.fmax.reduce(time, axis=0) - np.fmin.reduce(time, axis=0)
    return np.asarray(span >= WARM * seconds, dtype=np.bool_)


def go_duration(seconds: int) -> str:
    """As Go writes a duration: 300 is "5m0s"."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _resources(cpu: float, memory: float) -> ResourceMap:
    """Of millicores and bytes, cut to whole ones as koordlet does. Below a thousandth is noise of the percents."""
    found = {}
    if cpu == cpu:
        found["cpu"] = f"{int(round(cpu, 3))}m"
    if memory == memory:
        found["memory"] = str(int(round(memory, 3)))
    return ResourceMap(found)


# --- one report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeMetricReport:
    """What is reported of all nodes at one time: the JSON of each NodeMetric by the node's name, in the order of names,
    and why the others have none."""

    objects: Mapping[str, bytes]
    missing: Mapping[str, str]

    def body(self) -> bytes:
        """The NodeMetricList."""
        head = f'{{"apiVersion":"{API_VERSION}","kind":"NodeMetricList","metadata":{{}},"items":['.encode()
        return head + b",".join(self.objects.values()) + b"]}"


def make_report(
    snapshot: Snapshot, *, capacities: Mapping[str, Capacity], pods: PublishedPods | None, policy: CollectPolicy
) -> NodeMetricReport:
    """The NodeMetrics of a snapshot's nodes; `pods` None means that nothing is known of them."""
    sizes = np.array([capacities.get(node, (np.nan, np.nan)) for node in snapshot.nodes], dtype=np.float64)
    amounts = [
        _Amounts.of(snapshot, key, sizes.reshape(-1, len(METRIC_KEYS))[:, column], policy)
        for column, key in enumerate(METRIC_KEYS)
    ]
    spec = _spec(snapshot, policy)
    of_pods = None if pods is None else _pods_by_node(pods, policy)
    objects: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for row, node in enumerate(snapshot.nodes):
        without = [key for key, each in zip(METRIC_KEYS, amounts, strict=True) if np.isnan(each.usage[row])]
        if node not in capacities:
            missing[node] = "its capacity is not known"
        elif without:
            missing[node] = f"of {' and '.join(without)} nothing is known in the last {policy.aggregate_duration_s} s"
        else:
            status = KoordinatorStatus(
                datetime.fromtimestamp(int(snapshot.sampled[row]), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                _usage(snapshot, amounts, row),
                msgspec.UNSET if of_pods is None else of_pods.get(node, []),
            )
            made = KoordinatorNodeMetric(API_VERSION, "NodeMetric", KoordinatorMetadata(node), spec, status)
            objects[node] = msgspec.json.encode(made)
    return NodeMetricReport(objects, missing)


@dataclass(frozen=True, slots=True)
class _Amounts:
    """One resource of n nodes: `usage` [n] over the aggregation period, `aggregated` [W, types, n]; NaN: not known."""

    usage: F64
    aggregated: F64

    @classmethod
    def of(cls, snapshot: Snapshot, key: str, sizes: F64, policy: CollectPolicy) -> _Amounts:
        name, nodes = METRIC_BY_KEY[key].name, len(snapshot.nodes)
        served = [windows for windows in snapshot.metrics if windows.metric.name == name]
        if not served or snapshot.samples is None:
            return cls(np.full(nodes, np.nan), np.full((len(snapshot.windows), 1 + len(PERCENTILES), nodes), np.nan))
        values, time = snapshot.samples(name)
        amount = np.where(np.isnan(served[0].latest), np.nan, values * sizes / 100.0)
        aggregated = []
        for window in snapshot.windows:
            rows = window.seconds // snapshot.resolution
            part = amount[:rows]
            types = [mean(part), *(percentile(part, p) for p in PERCENTILES.values())]
            aggregated.append(np.where(warm(time[:rows], window.seconds), types, np.nan))
        return cls(mean(amount[: policy.aggregate_duration_s // snapshot.resolution]), np.array(aggregated))


def _usage(snapshot: Snapshot, amounts: Sequence[_Amounts], row: int) -> KoordinatorNodeUsage:
    cpu, memory = amounts
    entries = []
    for number, window in enumerate(snapshot.windows):
        # both or none: a reader takes what is left out for zero
        pairs = np.stack([cpu.aggregated[number, :, row], memory.aggregated[number, :, row]], axis=1)
        pairs[np.isnan(pairs).any(axis=1)] = np.nan
        usage = {kind: _resources(*pair) for kind, pair in zip(("avg", *PERCENTILES), pairs.tolist(), strict=True)}
        entries.append(AggregatedUsage(go_duration(window.seconds), usage))
    return KoordinatorNodeUsage(_resources(float(cpu.usage[row]), float(memory.usage[row])), entries)


def _spec(snapshot: Snapshot, policy: CollectPolicy) -> KoordinatorSpec:
    durations = [go_duration(window.seconds) for window in snapshot.windows]
    return KoordinatorSpec(
        NodeMetricCollectPolicy(policy.aggregate_duration_s, policy.report_interval_s, NodeAggregatePolicy(durations))
    )


def _pods_by_node(pods: PublishedPods, policy: CollectPolicy) -> Mapping[str, list[KoordinatorPodUsage]]:
    """By namespace and name, as the table is; pods whose cpu or memory is not known in the period are left out, as
    koordlet does."""
    table = pods.table
    minutes = max(1, policy.aggregate_duration_s // SLOT_S)
    cores = (mean(table.recent_cores[-minutes:]) * 1000.0).tolist()
    memory = mean(table.recent_memory[-minutes:]).tolist()
    found = {}
    for node, rows in by_node(table.nodes).items():
        usages = [(table.pods[row], _resources(cores[row], memory[row])) for row in rows.tolist()]
        found[node] = [
            KoordinatorPodUsage(namespace, name, usage)
            for (namespace, name), usage in usages
            if len(usage.resources) == len(METRIC_KEYS)
        ]
    return found
