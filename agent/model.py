"""What the agent knows and what it decides, as values that its parts hand to each other.

    state ──▶ analyzer ──analysis──▶ planner ──plan──▶ executor ──▶ audit

A `State` is one look at the node: everything in it was read within the same cycle. An analysis says which actions the
policies want and on which pods; a plan (agent/decision/plan.py) says what is to be done to which pod, in order, and
what that releases. None of them changes, and none knows how it was read or how it will be done, so preview, tests and
replay need no node.

Units: CPU of a node in millicores, CPU of a pod or container in cores, memory in bytes, quotas and periods in
microseconds, times in unix seconds. What is not known is None, never 0.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agent.qos import QosClass

SCHEDULING_TAINT = "interference.crane.io"
SCHEDULING_CONDITION = "interference-identified"
CRITICAL_PRIORITY = 2_000_000_000
"""Pods of this priority and above (system-cluster-critical) are never planned."""

# --- state -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContainerState:
    """One running container. `quota` None is unlimited; `throttled` says whether the kernel held it back since the last
    cycle (None: not known)."""

    name: str
    id: str
    cpu: float | None = None
    memory: int | None = None
    quota: int | None = None
    period: int = 100_000
    cpu_request: float | None = None
    cpu_limit: float | None = None
    extended_cpu_limit: float | None = None
    """Cores of gocrane.io/cpu."""
    throttled: bool | None = None


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of this node, with what it uses. `cpu` and `memory` are those of the pod's own cgroup, or the sum of its
    containers where that cannot be read; None where neither can."""

    namespace: str
    name: str
    uid: str
    qos: QosClass = QosClass.UNKNOWN
    priority: int = 0
    start_time: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    """Kind/name of its controller, for limits of evictions by owner."""
    phase: str = "Running"
    terminating: bool = False
    static: bool = False
    """Static, or the mirror of a static pod."""
    daemon: bool = False
    grace_seconds: float = 30.0
    """The pod's terminationGracePeriodSeconds."""
    cpu: float | None = None
    memory: int | None = None
    extended_cpu_limit: float | None = None
    """Cores of gocrane.io/cpu, over its containers; None without."""
    extended_memory_limit: int | None = None
    memory_request: int | None = None
    """Bytes, over its containers; None without."""
    containers: tuple[ContainerState, ...] = ()

    @property
    def key(self) -> str:
        """namespace/name"""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class PodKnobs:
    """What a pod's own control group has besides quotas, and, where the agent has changed it, what it had before.
    `memory_high` is infinite without such a limit. None is not known, or not to be had (version 1 has no memory.high);
    of the originals, that the agent changed nothing."""

    weight: int | None = None
    least_weight: int = 1
    memory_high: float | None = None
    original_weight: int | None = None
    original_high: float | None = None

    @property
    def owes_weight(self) -> bool:
        """Whether it has less weight than it had."""
        return self.original_weight is not None and (self.weight is None or self.weight < self.original_weight)

    @property
    def owes_memory(self) -> bool:
        """Whether it is held back from memory that it could have had."""
        return self.original_high is not None and (self.memory_high is None or self.memory_high < self.original_high)


Knobs = Mapping[str, PodKnobs]
"""By the uid of the pod."""


class Series(msgspec.Struct, frozen=True, gc=False):
    """One value of a metric that has several: `labels` as upstream names them (PodName, PodNamespace, PodUid,
    ContainerName, ContainerId, diskName, NetInterface). A cycle makes thousands of them: so it is a struct."""

    value: float
    time: float
    labels: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class State:
    """One look at the node. `metrics[name]` are its series that are young enough; a metric that could not be read, or
    is older than three intervals, is not there, and `missing[name]` says why."""

    time: float
    metrics: Mapping[str, tuple[Series, ...]] = field(default_factory=dict)
    pods: tuple[PodState, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)

    def value(self, metric: str) -> float | None:
        """Of a metric of the node: its first series."""
        series = self.metrics.get(metric, ())
        return series[0].value if series else None


# --- policies --------------------------------------------------------------------------------------------------------

Action = Literal["throttle", "evict", "disableScheduling"]
OnMissing = Literal["nothing", "all"]
GentleKnob = Literal["cpu.weight", "memory.high"]
CPU_WEIGHT: GentleKnob = "cpu.weight"
MEMORY_HIGH: GentleKnob = "memory.high"


@dataclass(frozen=True, slots=True)
class CpuThrottle:
    """Percent of the CPU limit below which nothing is throttled, and percent taken or given back in a round."""

    min_ratio: int = 0
    step_ratio: int = 0


@dataclass(frozen=True, slots=True)
class AvoidanceAction:
    """An AvoidanceAction: without throttle and eviction it only keeps new pods away. `restore_step_ratio` None is the
    throttle's own step. `evicts` with `grace_seconds` None takes each pod's own grace period. `gentle` are the knobs
    that are turned before anything harder is done."""

    name: str
    cool_down_seconds: float = 300.0
    throttle: CpuThrottle | None = None
    restore_step_ratio: int | None = None
    force_gc: bool = False
    evicts: bool = False
    grace_seconds: float | None = None
    gentle: frozenset[GentleKnob] = frozenset()


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """As in Kubernetes: (key, operator, values); matchLabels are `In` with one value."""

    requirements: tuple[tuple[str, Literal["In", "NotIn", "Exists", "DoesNotExist"], tuple[str, ...]], ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether all requirements hold; an absent key is NotIn anything."""
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
    """One rule of a NodeQOS that holds for this node. `watermark` and `restore_watermark` are in the unit of the
    metric, upstream's rounding done (a quantity's whole number, rounded up)."""

    policy: str
    name: str
    metric: str
    watermark: float
    action: str
    restore_watermark: float | None = None
    """Below this the rule counts towards restoring; None is the watermark itself. Between the two nothing changes."""
    selector: LabelSelector = field(default_factory=LabelSelector)
    avoidance_threshold: int = 1
    restore_threshold: int = 1
    preview: bool = False
    on_missing: OnMissing = "nothing"
    min_dwell_seconds: float = 0.0
    """How long a triggered rule stays so at least."""

    @property
    def key(self) -> str:
        """policy.rule, as upstream's metrics have it."""
        return f"{self.policy}.{self.name}"


@dataclass(frozen=True, slots=True)
class PodScope:
    """One scope expression of a PodQOS. For Priority the values are inclusive ranges (lowest, highest)."""

    scope: Literal["QOSClass", "Priority", "Namespace"]
    operator: Literal["In", "NotIn"]
    values: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PodQos:
    """A PodQOS: which pods may suffer which actions (names of AvoidanceActions)."""

    name: str
    allowed_actions: frozenset[str]
    selector: LabelSelector | None = None
    scopes: tuple[PodScope, ...] | None = None


@dataclass(frozen=True, slots=True)
class Policies:
    """All that holds for this node, in the order of policy and rule."""

    rules: tuple[Rule, ...] = ()
    actions: Mapping[str, AvoidanceAction] = field(default_factory=dict)
    pod_qos: tuple[PodQos, ...] = ()


# --- steps -----------------------------------------------------------------------------------------------------------

CPU = "cpu"
MEMORY = "memory"
EXTENDED_CPU = "extended_cpu"

Released = Mapping[str, float]
"""By resource: millicores of `CPU` and `EXTENDED_CPU`, bytes of `MEMORY`, or what a metric of somebody else's calls its
own. What a step takes off the node, or, when it restores, what it lets come back."""


@dataclass(frozen=True, slots=True)
class Original:
    """The CPU quota that a container had before the agent first changed it; `quota` None is unlimited."""

    quota: int | None
    period: int = 100_000


@dataclass(frozen=True, slots=True)
class QuotaStep:
    """Set the CPU quota of one container, from `before` to `after` microseconds a period; None is unlimited. Its metric
    may show it only so many seconds later, `lag_seconds`."""

    pod: str
    uid: str
    container: str
    container_id: str
    before: int | None
    after: int | None
    period: int
    metric: str
    released: Released = field(default_factory=dict)
    reason: str = ""
    lag_seconds: float = 0.0
    kind: Literal["throttle", "restore"] = "throttle"


@dataclass(frozen=True, slots=True)
class KnobStep:
    """Turn a knob of a pod's own control group from `before` to `after`: a weight, or bytes of memory.high (None: no
    such limit). `aim` is what the pod is hoped to use afterwards, in cores or bytes, None where nobody can say. Its
    metric may show it only so many seconds later, `lag_seconds`."""

    pod: str
    uid: str
    knob: GentleKnob
    before: int | None
    after: int | None
    metric: str
    released: Released = field(default_factory=dict)
    reason: str = ""
    aim: float | None = None
    lag_seconds: float = 0.0
    kind: Literal["throttle", "hold", "restore"] = "throttle"


@dataclass(frozen=True, slots=True)
class ReclaimStep:
    """Ask the kernel to take up to `bytes` of page cache off one pod (forceGC)."""

    pod: str
    uid: str
    bytes: int
    metric: str
    released: Released = field(default_factory=dict)
    reason: str = ""
    kind: Literal["reclaim"] = "reclaim"


@dataclass(frozen=True, slots=True)
class EvictStep:
    """Ask the API server to evict one pod; `grace_seconds` is what it gets to end."""

    pod: str
    uid: str
    grace_seconds: float
    metric: str
    released: Released = field(default_factory=dict)
    owner: str = ""
    reason: str = ""
    kind: Literal["evict"] = "evict"


@dataclass(frozen=True, slots=True)
class SchedulingStep:
    """Keep new pods away from this node (taint and condition), or let them come again."""

    disable: bool
    reason: str
    kind: Literal["scheduling"] = "scheduling"


PodStep = QuotaStep | KnobStep | ReclaimStep | EvictStep
Step = PodStep | SchedulingStep
