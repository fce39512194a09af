"""The attributes of a metric that the agent can act on.

A metric has a name in the state, a priority, an order of pods, and functions that throttle, restore and evict a pod.
These functions only plan: they return the steps for one pod with their release, without side effects. A metric is
quantified if that release can be computed; only then can the planner act on just as many pods as needed.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.metrics.sorters import Sorter
from agent.model import MEMORY, CpuThrottle, Eviction, Originals, PodState, Released, StageKind, State, Step

LEAST_PRIORITY, MOST_PRIORITY = 0, 10


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Inputs of a metric's function in addition to the pod. `originals` are the CPU quotas before the agent's first
    write, by container id. `max_restore` is the maximum amount that restoring may give back, in the unit of the release
    (millicores or bytes); None for no limit. `restore_share` is the pod's share of the gap, which a restoring step
    gives back at once if the step of the action is smaller; None without a computed gap."""

    state: State
    originals: Originals = field(default_factory=dict)
    max_restore: float | None = None
    restore_share: float | None = None


@dataclass(frozen=True, slots=True)
class PodSteps:
    """The steps for one pod with their release by resource (millicores, bytes). With a `problem`, there are no steps,
    and `problem` is the reason (unknown usage, quota at its minimum); `unknown`: the reason is an unknown usage."""

    steps: tuple[Step, ...] = ()
    released: Released = field(default_factory=dict)
    problem: str = ""
    unknown: bool = False


ThrottleFunction = Callable[[PodState, CpuThrottle, PlanContext], PodSteps]
EvictFunction = Callable[[PodState, float | None, PlanContext], PodSteps]


Scale = Callable[[State], float | None]
"""Units of the release per unit of the metric; None if the state does not allow to compute it."""


def one(_: State) -> float | None:
    """The scale of a metric whose unit is the unit of the release."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMetric:
    """A metric that rules can name, with its actions. Raises ValueError for contradictory attributes.

    name             name of the collected value
    action_priority  0 (lowest) to 10
    resource, scale  the resource that acting on the metric releases, and units of the release per unit of the metric
                     (bytes per percent of memory, for example); None if the state does not allow to compute it
    throttle         plans one step down for a pod, with percent in a CpuThrottle; `restore` plans one step up
    evict            plans the eviction of a pod with a grace period in seconds (None: the pod's own)
    lag_seconds      delay until the metric shows the effect of a step; without a computed gap, a pod gets its next
                     step only after it
    """

    name: str
    action_priority: int = LEAST_PRIORITY
    sortable: bool = False
    sort: Sorter | None = None
    throttleable: bool = False
    throttle_quantified: bool = False
    throttle: ThrottleFunction | None = None
    restore: ThrottleFunction | None = None
    evictable: bool = False
    evict_quantified: bool = False
    evict: EvictFunction | None = None
    resource: str = ""
    scale: Scale = one
    lag_seconds: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            (not self.name, "name is empty"),
            (not LEAST_PRIORITY <= self.action_priority <= MOST_PRIORITY, "action_priority must be from 0 to 10"),
            (self.sortable and self.sort is None, "sortable requires sort"),
            (self.throttleable and (self.throttle is None or self.restore is None), "throttle or restore is missing"),
            (self.throttle_quantified and not self.throttleable, "throttle_quantified requires throttleable"),
            (self.evictable and self.evict is None, "evictable requires evict"),
            (self.evict_quantified and not self.evictable, "evict_quantified requires evictable"),
            (
                (self.throttle_quantified or self.evict_quantified) and not self.resource,
                "a quantified metric requires resource",
            ),
        ]
        found = [text for wrong, text in problems if wrong]
        if found:
            raise ValueError(f"metric {self.name or '(unnamed)'}: {'; '.join(found)}")

    def reduced_by(self, kind: StageKind) -> bool:
        """Whether steps of this kind reduce the metric (for restore: whether it is throttled)."""
        if kind in ("reclaim", "hold"):
            return self.evict_quantified and self.resource == MEMORY
        return self.evictable if kind == "evict" else self.throttleable

    def quantified_for(self, kind: StageKind) -> bool:
        """Whether the release of steps of this kind can be computed."""
        if kind in ("reclaim", "hold"):
            return self.reduced_by(kind)
        return self.evict_quantified if kind == "evict" else self.throttle_quantified


def eviction(pod: PodState, grace: float | None, metric: str, released: Released) -> PodSteps:
    """Plan evicting a pod; `grace` in seconds, None for the pod's own. The caller checks that it releases something."""
    change = Eviction(pod.grace_seconds if grace is None else grace, pod.owner)
    return PodSteps((Step("evict", change, pod.key, pod.uid, metric, released),), released)
