"""Inputs of a plan, and what is computed from them before pods are selected: which metrics an action reduces, and how
much the node has to release.

A gap is in the unit of the release (millicores, bytes). `used` is this cycle's usage adjusted for the pending effects
of earlier steps, `x` the excess factor, and `scale` the units of release per unit of the metric:

    throttle, evict:  (1 + x) * (used - watermark) * scale
    restore:          (1 - x) * (watermark - used) * scale

so a gap above 0 requires (for restore: allows) a step.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.decision.analysis import Watermarks
from agent.decision.eviction_limits import Budget
from agent.decision.ledger import Ledger, falling, lowered, pods_being_evicted, rising
from agent.decision.pod_selection import protection
from agent.decision.restoring import LoweredValues
from agent.metrics.action_metric import ActionMetric
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import PodState, StageKind, State


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a plan in addition to the analysis.

    own                the uid of the agent's own pod, or its namespace/name if the uid is unknown
    budget             evictions that are allowed now; None: no limit
    unavailable        pods (uid) that cannot be acted on in this cycle (refused by the API, or gone), with
                       the reason; a second plan selects others
    refused_evictions  pods (uid) whose eviction the API refused recently, with the reason; other actions are allowed
    refused_knobs      what the kernel recently refused to lower: (pod uid, knob) or (container id, cpu.max)
    """

    state: State
    metrics: Metrics
    options: DecisionOptions = field(default_factory=DecisionOptions)
    lowered: LoweredValues = field(default_factory=LoweredValues)
    ledger: Ledger = ()
    own: frozenset[str] = frozenset()
    budget: Budget | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    refused_evictions: Mapping[str, str] = field(default_factory=dict)
    refused_knobs: frozenset[tuple[str, str]] = frozenset()


def reducible(kind: StageKind, marks: Watermarks, metrics: Metrics) -> list[str]:
    """The metrics of `marks` that the action reduces, the highest action priority first; ties go to the first name. An
    unregistered metric, or one that the action cannot reduce, selects no pods."""
    able = [name for name in marks if name in metrics and metrics[name].reduced_by(kind)]
    return sorted(able, key=lambda name: (-metrics[name].action_priority, name))


def gaps(kind: StageKind, marks: Watermarks, given: PlanInputs) -> dict[str, float | None]:
    """The gap to each watermark by metric, in millicores or bytes; None if the usage is missing. Metrics that are not
    quantified, or for which the node's capacity is unknown, have no entry."""
    found: dict[str, float | None] = {}
    for name in sorted(marks):
        metric = given.metrics.get(name)
        if metric is None or not metric.quantified_for(kind):
            continue
        used, scale = given.state.value(name), metric.scale(given.state)
        if used is None:
            found[name] = None
        elif scale is not None and scale > 0.0:
            found[name] = _gap(kind, used, marks[name][0], scale, in_flight(kind, metric, given), given.options)
    return found


def in_flight(kind: StageKind, metric: ActionMetric, given: PlanInputs) -> float:
    """Pending release of earlier steps (for restore: pending increase), in millicores or bytes."""
    flying = rising if kind == "restore" else falling
    return flying(given.ledger, given.state).get(metric.resource, 0.0)


def _gap(
    kind: StageKind, used: float, watermark: float, scale: float, flying: float, options: DecisionOptions
) -> float:
    if kind == "restore":
        return gap_below(used + flying / scale, watermark, scale, options)
    return (1.0 + options.excess) * (max(0.0, used - flying / scale) - watermark) * scale


def gap_below(used: float, watermark: float, scale: float, options: DecisionOptions) -> float:
    """Amount that restoring may give back, in millicores or bytes; 0 or less for none."""
    return (1.0 - options.excess) * (watermark - max(0.0, used)) * scale


def left_alone(given: PlanInputs) -> dict[str, str]:
    """Pods (uid) that must not be changed, with the reason."""
    leaving = pods_being_evicted(given.ledger, given.state.time)
    found: dict[str, str] = {}
    for pod in given.state.pods:
        reason = protection(pod, given.own) or given.unavailable.get(pod.uid, "")
        if not reason and pod.uid in leaving:
            reason = "its eviction is in progress"
        if reason:
            found[pod.uid] = reason
    return found


def as_throttled(pod: PodState, given: PlanInputs) -> PodState:
    """The pod with the usage that its containers will have when recently lowered quotas take effect. Usage above those
    quotas counts as released already, so no second step may release it."""
    recent = lowered(given.ledger, given.state.time)
    if not any(container.id in recent for container in pod.containers):
        return pod
    containers = tuple(
        replace(each, cpu=min(each.cpu, recent[each.id])) if each.cpu is not None and each.id in recent else each
        for each in pod.containers
    )
    above = sum((was.cpu or 0.0) - (now.cpu or 0.0) for was, now in zip(pod.containers, containers, strict=True))
    return replace(pod, containers=containers, cpu=None if pod.cpu is None else max(0.0, pod.cpu - above))
