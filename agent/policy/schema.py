"""The fields of the resources of `ensurance.crane.io/v1alpha1`, as Crane's CRDs have them, and the annotations by which
load-watcher adds to them.

Every field has a default, so that what is left of an object after its unreadable parts are taken out can still be
looked through for more (`fields.read`). What must be there is checked in `objects`.

`No effect` marks what the CRDs declare and no agent of Crane ever read, or what another program carries out.

Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

GROUP = "ensurance.crane.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

RULES_ANNOTATION = "load-watcher.io/rules"
RESTORE_STEP_ANNOTATION = "load-watcher.io/restore-step-ratio"
GENTLE_ANNOTATION = "load-watcher.io/gentle-steps"
EVERY_POD_ANNOTATION = "load-watcher.io/match-every-pod"
ANNOTATIONS = {
    "NodeQOS": (RULES_ANNOTATION,),
    "AvoidanceAction": (RESTORE_STEP_ANNOTATION, GENTLE_ANNOTATION),
    "PodQOS": (EVERY_POD_ANNOTATION,),
}

OTHER_SPELLINGS = {"objectiveEnsurances": "rules", "labelselector": "labelSelector"}
"""As older versions of the CRDs (until August 2022) have them."""

Quantity = str | int | float
Percent = Annotated[int, Meta(ge=0, le=100)]
Threshold = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class NoEffect:
    """Marks a field that is taken and passed over; `why` ends "has no effect here: …"."""

    def __init__(self, why: str) -> None:
        self.why = why


Declared = Annotated[Any, NoEffect("Crane's CRD declares it, and no agent reads it")]
Elsewhere = Annotated[Any, NoEffect("it is for Crane's other components")]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A mapping of an object."""


class LabelRequirement(_Fields, frozen=True):
    """One of matchExpressions."""

    key: str = ""
    operator: Literal["", "In", "NotIn", "Exists", "DoesNotExist"] = ""
    values: tuple[str, ...] = ()


class LabelSelector(_Fields, frozen=True):
    """Labels that are wanted, as everywhere in Kubernetes."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()


class NodeLocalGet(_Fields, frozen=True):
    """Where Crane asks for its collectors to run; ours always do."""

    local_cache_ttl_seconds: Declared = msgspec.field(default=None, name="localCacheTTLSeconds")


class NodeQualityProbe(_Fields, frozen=True):
    """How the node is looked at."""

    node_local_get: NodeLocalGet | None = None
    http_get: Annotated[Any, NoEffect("nothing ever called it; metrics are read on the node itself")] = None
    timeout_seconds: Declared = None
    initial_delay_seconds: Declared = None
    """Of the first version of the CRDs; Crane's examples still have it."""


class MetricRule(_Fields, frozen=True):
    """When a rule is above its watermark."""

    name: str = ""
    selector: LabelSelector | None = None
    value: Quantity | None = None


class Rule(_Fields, frozen=True):
    """What is to be done when a metric stays above its watermark."""

    name: str = ""
    metric_rule: MetricRule | None = None
    avoidance_threshold: Threshold = 1
    restore_threshold: Threshold = 1
    action_name: str = ""
    strategy: Literal["None", "Preview"] = "None"


class NodeQosSpec(_Fields, frozen=True):
    """Rules for nodes: on which, and what is done when a metric of theirs is over its watermark."""

    selector: LabelSelector | None = None
    node_quality_probe: NodeQualityProbe | None = None
    rules: tuple[Rule, ...] = ()
    elastic_cpu_limit: Declared = None
    mem_limit: Declared = None
    memory_compression: Declared = None
    net_limits: Declared = None


class RuleAddition(_Fields, frozen=True):
    """What RULES_ANNOTATION says of one rule."""

    restore_value: Quantity | None = None
    min_dwell_seconds: Seconds = 0
    on_missing: Literal["nothing", "all"] = "nothing"


class CpuThrottle(_Fields, frozen=True):
    """How far and how fast."""

    min_cpu_ratio: Percent = msgspec.field(default=0, name="minCPURatio")
    step_cpu_ratio: Percent = msgspec.field(default=0, name="stepCPURatio")


class MemoryThrottle(_Fields, frozen=True):
    """Giving page cache back."""

    force_gc: bool = msgspec.field(default=False, name="forceGC")


class Throttle(_Fields, frozen=True):
    """What is taken from pods that stay."""

    cpu_throttle: CpuThrottle | None = None
    memory_throttle: MemoryThrottle | None = None


class Eviction(_Fields, frozen=True):
    """How pods go."""

    termination_grace_period_seconds: Seconds | None = None


class AvoidanceActionSpec(_Fields, frozen=True):
    """What rules do; without throttle and eviction only new pods are kept away."""

    cool_down_seconds: Threshold = 300
    throttle: Throttle | None = None
    eviction: Eviction | None = None
    description: Annotated[str, Meta(max_length=1024)] = ""


class ScopeRequirement(_Fields, frozen=True):
    """One of the matchExpressions of a scopeSelector."""

    scope_name: Literal["", "QOSClass", "Priority", "Namespace"] = ""
    operator: Literal["", "In", "NotIn"] = ""
    values: tuple[str, ...] = ()


class ScopeSelector(_Fields, frozen=True):
    """Which pods, by what they are rather than by their labels."""

    match_expressions: tuple[ScopeRequirement, ...] = ()


class PodQosSpec(_Fields, frozen=True):
    """Which pods may suffer which actions."""

    label_selector: LabelSelector | None = None
    scope_selector: ScopeSelector | None = None
    allowed_actions: tuple[str, ...] = ()
    pod_quality_probe: Declared = None
    resource_qos: Elsewhere = msgspec.field(default=None, name="resourceQOS")


NODE_QOS = "NodeQOS"
OLDER_NODE_QOS = "NodeQOSEnsurancePolicy"
AVOIDANCE_ACTION = "AvoidanceAction"
POD_QOS = "PodQOS"
