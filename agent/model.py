"""Data model of the agent: immutable values that its modules pass to each other.

    state ──▶ analyzer ──analysis──▶ planner ──plan──▶ executor ──▶ audit

A `State` is the node's state in one cycle; all of it was read within that cycle. An analysis lists the actions that the
policies demand, with their pods. A plan (agent/decision/plan.py) lists the steps on each pod in order, with the
resources that they release. None of them depends on how the state is read or the steps are carried out, so preview,
tests and replay need no node.

Units: CPU of a node in millicores, CPU of a pod or container in cores, memory in bytes, quotas and periods in
microseconds, times in unix seconds. Unknown values are None, never 0.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from agent.qos import QosClass

SCHEDULING_TAINT = "interference.crane.io"
SCHEDULING_CONDITION = "interference-identified"
CRITICAL_PRIORITY = 2_000_000_000
"""Pods of this priority or higher (system-cluster-critical) are never throttled or evicted."""
FINAL_PHASES = ("Succeeded", "Failed")
"""Phases of pods that have ended."""
PODS = "pods"
"""The key in `State.missing` for the reason why the pods are unknown; not a metric."""

# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One running container. `cpu` (usage), `cpu_request` and `cpu_limit` are in cores, `memory` in bytes, `quota` and
    `period` in microseconds (quota None: unlimited). `cpu_request` includes the cores of a pod-level request that
    no container requests. `throttled`: the kernel throttled the container since the last cycle (None: unknown)."""

    name: str
    id: str
    cpu: float | None = None
    memory: int | None = None
    quota: int | None = None
    period: int = 100_000
    cpu_request: float | None = None
    cpu_limit: float | None = None
    extended_cpu_limit: float | None = None
    """Cores of the extended resource gocrane.io/cpu."""
    throttled: bool | None = None


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of this node with its usage. `cpu` (cores) and `memory` (bytes) come from the pod's own cgroup, or are
    the sum over its containers if that cannot be read; None if neither can. `start_time` is in unix seconds."""

    namespace: str
    name: str
    uid: str
    qos: QosClass = QosClass.UNKNOWN
    priority: int = 0
    start_time: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """KIND/NAME of the controller, for the eviction limit per owner; "" without a controller."""
    phase: str = "Running"
    terminating: bool = False
    static: bool = False
    """A static pod, or the mirror pod of one."""
    daemon: bool = False
    host_paths: bool = False
    """Whether the pod mounts a directory of the host, as agents on control groups do. Pod Security forbids it from the
    level baseline on."""
    managed: bool = True
    """Whether a controller would recreate the pod elsewhere."""
    grace_seconds: float = 30.0
    """terminationGracePeriodSeconds of the pod."""
    cpu: float | None = None
    memory: int | None = None
    extended_cpu_limit: float | None = None
    """Cores of gocrane.io/cpu, combined over the containers as requests are; None if they have none."""
    extended_memory_limit: int | None = None
    memory_request: int | None = None
    """Bytes that the pod requests, as kube-scheduler counts them; None if it requests none."""
    containers: tuple[ContainerState, ...] = ()
    unmeasured: str = ""
    """The reason why the usage of a running pod cannot be measured; "" if it can."""

    @property
    def key(self) -> str:
        """The pod's name in the form namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Whether the pod has ended, so that it has no control group."""
        return self.phase in FINAL_PHASES


@dataclass(frozen=True, slots=True)
class PodKnobs:
    """cpu.weight and memory.high (bytes) of a pod's own control group, with their original values if the agent changed
    them. `memory_high` is infinite without a limit. None means unknown or not available (cgroup v1 has no memory.high);
    for the originals, that the agent changed nothing."""

    weight: int | None = None
    least_weight: int = 1
    memory_high: float | None = None
    original_weight: int | None = None
    original_high: float | None = None

    @property
    def owes_weight(self) -> bool:
        """Whether the weight is lower than its original value, or unknown after a change."""
        return self.original_weight is not None and (self.weight is None or self.weight < self.original_weight)

    @property
    def owes_memory(self) -> bool:
        """Whether memory.high is lower than its original value, or unknown after a change."""
        return self.original_high is not None and (self.memory_high is None or self.memory_high < self.original_high)


Knobs = Mapping[str, PodKnobs]
"""cpu.weight and memory.high by the uid of the pod."""


class MetricSample(msgspec.Struct, frozen=True, gc=False):
    """One labelled sample of a metric, at `time` in unix seconds. `labels` have the names that Crane uses (PodName,
    PodNamespace, PodUid, ContainerName, ContainerId, diskName, NetInterface). It is a struct because a cycle creates
    thousands."""

    value: float
    time: float
    labels: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class State:
    """State of the node at `time` (unix seconds). `metrics[name]` has the current samples of a metric. A metric that
    could not be read, or is older than three intervals, is absent, and `missing[name]` has the reason."""

    time: float
    metrics: Mapping[str, tuple[MetricSample, ...]] = field(default_factory=dict)
    pods: tuple[PodState, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    """Missing metrics that this node or this configuration does not have, which is not an error."""

    def value(self, metric: str) -> float | None:
        """The first sample of a metric, in the metric's unit; None if the metric is missing."""
        series = self.metrics.get(metric, ())
        return series[0].value if series else None


# --- policies --------------------------------------------------------------------------------------------------------

OnMissing = Literal["nothing", "all"]
GentleKnob = Literal["cpu.weight", "memory.high"]
StageKind = Literal["throttle", "reclaim", "hold", "evict", "restore"]
"""Kinds of steps on pods. `reclaim` reclaims page cache (forceGC), `hold` lowers memory.high."""
CPU_MAX = "cpu.max"
PAGE_CACHE = "page cache"
CPU_WEIGHT: GentleKnob = "cpu.weight"
MEMORY_HIGH: GentleKnob = "memory.high"


@dataclass(frozen=True, slots=True)
class CpuThrottle:
    """Throttling parameters: the percent of the CPU limit that a quota never goes below, and the percent by which one
    step lowers or raises the quota."""

    min_ratio: int = 0
    step_ratio: int = 0


@dataclass(frozen=True, slots=True)
class AvoidanceAction:
    """An AvoidanceAction object; without throttling and eviction it only keeps new pods away. `restore_step_ratio`
    (percent) None means the step of `throttle`. `grace_seconds` None means each pod's own grace period. `soft_limits`
    are the soft limits (cpu.weight, memory.high) that are lowered before quotas and evictions."""

    name: str
    cool_down_seconds: float = 300.0
    throttle: CpuThrottle | None = None
    restore_step_ratio: int | None = None
    force_gc: bool = False
    evicts: bool = False
    grace_seconds: float | None = None
    soft_limits: frozenset[GentleKnob] = frozenset()


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A Kubernetes label selector as (key, operator, values); matchLabels become `In` with one value."""

    requirements: tuple[tuple[str, Literal["In", "NotIn", "Exists", "DoesNotExist"], tuple[str, ...]], ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether all requirements match; an absent key satisfies every NotIn."""
        return all(_holds(labels, *requirement) for requirement in self.requirements)


def _holds(labels: Mapping[str, str], key: str, operator: str, values: tuple[str, ...]) -> bool:
    there = key in labels
    if operator == "Exists":
        return there
    if operator == "DoesNotExist":
        return not there
    return (there and labels[key] in values) if operator == "In" else (not there or labels[key] not in values)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a NodeQOS that applies to this node. `watermark` and `restore_watermark` are in the metric's unit;
    quantities are rounded up to a whole number, as in Crane."""

    policy: str
    name: str
    metric: str
    watermark: float
    action: str
    restore_watermark: float | None = None
    """Samples at or below this count towards restoring; None means the watermark."""
    selector: LabelSelector = field(default_factory=LabelSelector)
    avoidance_threshold: int = 1
    restore_threshold: int = 1
    preview: bool = False
    on_missing: OnMissing = "nothing"
    min_dwell_seconds: float = 0.0
    """Minimum time in seconds for which a triggered rule stays triggered."""

    @property
    def key(self) -> str:
        """The rule as policy.rule, the form in Crane's metrics."""
        return f"{self.policy}.{self.name}"


@dataclass(frozen=True, slots=True)
class PodScope:
    """One scope expression of a PodQOS. For Priority, `ranges` has inclusive ranges (lowest, highest) instead of
    `values`."""

    scope: Literal["QOSClass", "Priority", "Namespace"]
    operator: Literal["In", "NotIn"]
    values: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PodQos:
    """A PodQOS object: the AvoidanceActions (by name) that are allowed on the pods that it selects."""

    name: str
    allowed_actions: frozenset[str]
    selector: LabelSelector | None = None
    scopes: tuple[PodScope, ...] | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """All policies that apply to this node, ordered by policy and rule."""

    rules: tuple[Rule, ...] = ()
    actions: Mapping[str, AvoidanceAction] = field(default_factory=dict)
    pod_qos: tuple[PodQos, ...] = ()


# --- steps -----------------------------------------------------------------------------------------------------------

CPU = "cpu"
MEMORY = "memory"
EXTENDED_CPU = "extended_cpu"

Released = Mapping[str, float]
"""Amounts by resource that a step releases (for restore: gives back): millicores of `CPU` and `EXTENDED_CPU`, bytes of
`MEMORY`, and the units of resources that metrics of other packages define."""


@dataclass(frozen=True, slots=True)
class Original:
    """CPU quota and period (microseconds) of a container before the agent's first change; `quota` None: unlimited."""

    quota: int | None
    period: int = 100_000


Originals = Mapping[str, Original]
"""CPU quotas before the agent's first write, by container id."""


@dataclass(frozen=True, slots=True)
class QuotaChange:
    """Set the CPU quota of one container from `before` to `after` microseconds per period; None: unlimited.
    `lag_seconds` is the delay until the metric shows the effect."""

    container: str
    container_id: str
    before: int | None
    after: int | None
    period: int
    lag_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KnobChange:
    """Set a knob of a pod's own control group from `before` to `after`: cpu.weight, or bytes of memory.high (None: no
    limit). `aim` is the expected usage of the pod afterwards, in cores or bytes; None if unknown. `lag_seconds` is the
    delay until the metric shows the effect."""

    knob: GentleKnob
    before: int | None
    after: int | None
    aim: float | None = None
    lag_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PageCacheReclaim:
    """Ask the kernel to reclaim up to `bytes` of page cache from the pod (forceGC)."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """Ask the API server to evict the pod with this grace period; `owner` is KIND/NAME of its controller."""

    grace_seconds: float
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SchedulingChange:
    """Keep new pods away from this node by taint and condition, or allow them again."""

    disable: bool


Change = QuotaChange | KnobChange | PageCacheReclaim | Eviction | SchedulingChange
StepKind = StageKind | Literal["scheduling"]


@dataclass(frozen=True, slots=True)
class Step:
    """One change that a plan makes for a metric: on a pod, or without a pod on the scheduling of the node."""

    kind: StepKind
    change: Change
    pod: str = ""
    uid: str = ""
    metric: str = ""
    released: Released = field(default_factory=dict)
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """The step in the format of GET /explain."""
        of_pod = {"pod": self.pod, "uid": self.uid, "metric": self.metric, "released": dict(self.released)}
        return {**(of_pod if self.pod else {}), **asdict(self.change), "reason": self.reason, "kind": self.kind}
