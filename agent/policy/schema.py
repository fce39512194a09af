"""The fields of the policies as in Crane's CRDs, in two API groups with the same kinds, and load-watcher's annotations
for them.

Every field has a default, so that an object remains checkable after its unreadable parts are removed.
Required fields are checked in `objects`.

`NoEffect` marks fields that the CRDs declare but no Crane agent ever read, or that another program implements.

Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from watcher.core.config.fields import NoEffect

GROUP = "load-watcher.io"
"""API group of the CustomResourceDefinitions in deploy/agent/crds.yaml."""
CRANE_GROUP = "ensurance.crane.io"
"""API group of Crane's definitions, which only Crane installs."""
GROUPS = (GROUP, CRANE_GROUP)
VERSION = "v1alpha1"
API_VERSIONS = tuple(f"{group}/{VERSION}" for group in GROUPS)

RULES_ANNOTATION = "load-watcher.io/rules"
RESTORE_STEP_ANNOTATION = "load-watcher.io/restore-step-ratio"
GENTLE_ANNOTATION = "load-watcher.io/gentle-steps"
EVERY_POD_ANNOTATION = "load-watcher.io/match-every-pod"
ANNOTATIONS = {
    "NodeQOS": (RULES_ANNOTATION,),
    "AvoidanceAction": (RESTORE_STEP_ANNOTATION, GENTLE_ANNOTATION),
    "PodQOS": (EVERY_POD_ANNOTATION,),
}

Quantity = str | int | float
Percent = Annotated[int, Meta(ge=0, le=100)]
Threshold = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[int, Meta(ge=0, le=2**31 - 1)]


Declared = Annotated[Any, NoEffect("Crane's CRD declares it, but no agent reads it")]
Elsewhere = Annotated[Any, NoEffect("it is for Crane's other components")]


class _Fields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base class of the mappings in an object."""


class LabelRequirement(_Fields, frozen=True):
    """One label requirement of matchExpressions."""

    key: str = ""
    operator: Literal["", "In", "NotIn", "Exists", "DoesNotExist"] = ""
    values: tuple[str, ...] = ()


class LabelSelectorSpec(_Fields, frozen=True):
    """A Kubernetes label selector: the labels that are required."""

    match_labels: dict[str, str] = {}
    match_expressions: tuple[LabelRequirement, ...] = ()


class NodeLocalGet(_Fields, frozen=True):
    """Requests Crane's node-local collectors; load-watcher's always run."""

    local_cache_ttl_seconds: Declared = msgspec.field(default=None, name="localCacheTTLSeconds")


class NodeQualityProbe(_Fields, frozen=True):
    """The source of the node's metrics."""

    node_local_get: NodeLocalGet | None = None
    http_get: Annotated[Any, NoEffect("it was never called; metrics are read on the node itself")] = None
    timeout_seconds: Declared = None
    initial_delay_seconds: Declared = None
    """From the first version of the CRDs; still present in Crane's examples."""


class MetricRule(_Fields, frozen=True):
    """The metric and watermark that trigger a rule."""

    name: str = ""
    selector: LabelSelectorSpec | None = None
    value: Quantity | None = None


class RuleSpec(_Fields, frozen=True):
    """An action to run while a metric stays above its watermark."""

    name: str = ""
    metric_rule: MetricRule | None = None
    avoidance_threshold: Threshold = 1
    restore_threshold: Threshold = 1
    action_name: str = ""
    strategy: Literal["None", "Preview"] = "None"


class NodeQosSpec(_Fields, frozen=True):
    """Rules for the selected nodes: the actions to run while a node's metric is above its watermark."""

    selector: LabelSelectorSpec | None = None
    node_quality_probe: NodeQualityProbe | None = None
    rules: tuple[RuleSpec, ...] = ()
    elastic_cpu_limit: Declared = None
    mem_limit: Declared = None
    memory_compression: Declared = None
    net_limits: Declared = None


class RuleAddition(_Fields, frozen=True):
    """Additional settings of one rule, from RULES_ANNOTATION."""

    restore_value: Quantity | None = None
    min_dwell_seconds: Seconds = 0
    on_missing: Literal["nothing", "all"] = "nothing"


class CpuThrottleSpec(_Fields, frozen=True):
    """Lower limit and step size of CPU throttling, in percent."""

    min_cpu_ratio: Percent = msgspec.field(default=0, name="minCPURatio")
    step_cpu_ratio: Percent = msgspec.field(default=0, name="stepCPURatio")


class MemoryThrottleSpec(_Fields, frozen=True):
    """Reclaims page cache of pods that keep running."""

    force_gc: bool = msgspec.field(default=False, name="forceGC")


class ThrottleSpec(_Fields, frozen=True):
    """Resources to take from pods that keep running."""

    cpu_throttle: CpuThrottleSpec | None = None
    memory_throttle: MemoryThrottleSpec | None = None


class EvictionSpec(_Fields, frozen=True):
    """How pods are evicted from the node."""

    termination_grace_period_seconds: Seconds | None = None


class AvoidanceActionSpec(_Fields, frozen=True):
    """The action of rules; without throttle and eviction it only keeps new pods away."""

    cool_down_seconds: Threshold = 300
    throttle: ThrottleSpec | None = None
    eviction: EvictionSpec | None = None
    description: Annotated[str, Meta(max_length=1024)] = ""


class ScopeRequirement(_Fields, frozen=True):
    """One requirement of the matchExpressions of a scopeSelector."""

    scope_name: Literal["", "QOSClass", "Priority", "Namespace"] = ""
    operator: Literal["", "In", "NotIn"] = ""
    values: tuple[str, ...] = ()


class ScopeSelector(_Fields, frozen=True):
    """Selects pods by QoS class, priority or namespace instead of labels."""

    match_expressions: tuple[ScopeRequirement, ...] = ()


class PodQosSpec(_Fields, frozen=True):
    """The actions that are allowed for the selected pods."""

    label_selector: LabelSelectorSpec | None = None
    scope_selector: ScopeSelector | None = None
    allowed_actions: tuple[str, ...] = ()
    pod_quality_probe: Declared = None
    resource_qos: Elsewhere = msgspec.field(default=None, name="resourceQOS")


NODE_QOS = "NodeQOS"
OLDER_NODE_QOS = "NodeQOSEnsurancePolicy"
AVOIDANCE_ACTION = "AvoidanceAction"
POD_QOS = "PodQOS"
