"""What a metric is to the agent: the seed's attributes.

A metric says how it is called in the state, how urgent it is, in which order its pods are hit, and what throttling,
restoring and evicting a pod does to it. Its functions plan: they return the steps for one pod and what these release,
and do nothing themselves. "Quantified" is a metric of which that release can be computed; only such a metric can be
brought to just under its watermark and not further.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agent.metrics.options import Options
from agent.metrics.original_values import Originals
from agent.metrics.sorters import Sorter
from agent.model import CpuThrottle, EvictStep, PodState, PodStep, Released, State

LEAST_PRIORITY, MOST_PRIORITY = 0, 10


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a metric's function may know besides the pod. `originals` are the quotas before the agent's first write, by
    container id; `room` is how much (in units of release) restoring may bring back at most, None for no such bound."""

    state: State
    options: Options
    originals: Originals = field(default_factory=dict)
    room: float | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The steps for one pod, and what they release by resource. With `problem` there are none: it says why (a usage is
    not known, a floor is reached), and `unknown` that it is for want of a usage."""

    steps: tuple[PodStep, ...] = ()
    released: Released = field(default_factory=dict)
    problem: str = ""
    unknown: bool = False


ThrottleFunction = Callable[[PodState, CpuThrottle, Circumstances], Planned]
EvictFunction = Callable[[PodState, float | None, Circumstances], Planned]


def one(_: State) -> float | None:
    """The scale of a metric that is in the unit of what is released."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`name` is that of the collected value; `action_priority` 0 (lowest) to 10. `resource` is what acting on it
    releases, and `scale` how many units of that there are in one of the metric (a percent of memory is so many bytes);
    None where the state does not tell. `lag_seconds` is how long the metric takes to show what was done; where no gap
    says when to stop, a pod gets its next step only then. `throttle` and `restore` get percent to take or give, `evict`
    seconds of grace (None for the pod's own). Raises ValueError for attributes that contradict each other."""

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
    scale: Callable[[State], float | None] = one
    lag_seconds: float = 0.0

    def __post_init__(self) -> None:
        problems = [
            (not self.name, "it has no name"),
            (not LEAST_PRIORITY <= self.action_priority <= MOST_PRIORITY, "action_priority is not 0 to 10"),
            (self.sortable and self.sort is None, "it is sortable and has no sort"),
            (self.throttleable and (self.throttle is None or self.restore is None), "throttle or restore is missing"),
            (self.throttle_quantified and not self.throttleable, "quantified, but not throttleable"),
            (self.evictable and self.evict is None, "it is evictable and has no evict"),
            (self.evict_quantified and not self.evictable, "quantified, but not evictable"),
            (
                (self.throttle_quantified or self.evict_quantified) and not self.resource,
                "it is quantified and names no resource that is released",
            ),
        ]
        found = [text for wrong, text in problems if wrong]
        if found:
            raise ValueError(f"the metric {self.name or '(nameless)'}: {'; '.join(found)}")


def eviction(pod: PodState, grace: float | None, metric: str, released: Released) -> Planned:
    """The one step of evicting a pod. Whether anything is released is for the caller to weigh."""
    step = EvictStep(
        pod=pod.key,
        uid=pod.uid,
        grace_seconds=pod.grace_seconds if grace is None else grace,
        metric=metric,
        released=released,
        owner=pod.owner,
    )
    return Planned((step,), released)
