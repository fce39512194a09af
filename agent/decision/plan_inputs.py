"""Inputs of a plan, and the gaps computed from them before pods are selected: which metrics are quantified, which one
is used to act on all pods otherwise, and how much the node has to release.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.decision.eviction_limits import Budget
from agent.decision.ledger import Ledger, falling, rising
from agent.decision.plan import StageKind
from agent.decision.watermark import Watermarks, gap_above, gap_below
from agent.metrics.action_metric import ActionMetric
from agent.metrics.cpu_quota import Originals
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import MEMORY, Knobs, State


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a plan in addition to the analysis.

    own                uids and namespace/names of the agent's own pods
    budget             evictions that are allowed now; None: no limit
    unavailable        pods (namespace/name) that cannot be acted on in this cycle (refused by the API, or gone), with
                       the reason; a second plan selects others
    refused_evictions  pods (uid) whose eviction the API refused recently, with the reason; other actions are allowed
    knobs              cpu.weight and memory.high of pods; without them there are no soft limits
    refused_knobs      (uid, knob) pairs that the kernel recently refused to lower
    """

    state: State
    metrics: Metrics
    options: DecisionOptions = field(default_factory=DecisionOptions)
    originals: Originals = field(default_factory=dict)
    ledger: Ledger = ()
    own: frozenset[str] = frozenset()
    budget: Budget | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    refused_evictions: Mapping[str, str] = field(default_factory=dict)
    knobs: Knobs = field(default_factory=dict)
    refused_knobs: frozenset[tuple[str, str]] = frozenset()


def divided(kind: StageKind, marks: Watermarks, metrics: Metrics) -> tuple[list[str], list[str]]:
    """Split the metrics of `marks` into the quantified ones, most urgent first, and the others, which include
    unregistered metrics."""
    quantified = [name for name in marks if name in metrics and _quantified(metrics[name], kind)]
    return _by_urgency(quantified, metrics), [name for name in marks if name not in quantified]


def most_urgent(kind: StageKind, marks: Watermarks, metrics: Metrics) -> str:
    """The metric with the highest action priority that supports the action; ties go to the first name. "" if no
    metric supports it."""
    able = [name for name in marks if name in metrics and _able(metrics[name], kind)]
    return next(iter(_by_urgency(able, metrics)), "")


def gaps(kind: StageKind, marks: Watermarks, given: PlanInputs) -> dict[str, float | None]:
    """The gap to each watermark by metric, in millicores or bytes; None if the usage is missing. Metrics that are not
    quantified, or for which the node's capacity is unknown, have no entry."""
    found: dict[str, float | None] = {}
    for name in sorted(marks):
        metric = given.metrics.get(name)
        if metric is None or not _quantified(metric, kind):
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
    return gap_above(used - flying / scale, watermark, scale, options)


def _able(metric: ActionMetric, kind: StageKind) -> bool:
    if kind in ("reclaim", "hold"):
        return metric.evict_quantified and metric.resource == MEMORY
    return metric.evictable if kind == "evict" else metric.throttleable


def _quantified(metric: ActionMetric, kind: StageKind) -> bool:
    if kind in ("reclaim", "hold"):
        return _able(metric, kind)
    return metric.evict_quantified if kind == "evict" else metric.throttle_quantified


def _by_urgency(names: Iterable[str], metrics: Metrics) -> list[str]:
    return sorted(names, key=lambda name: (-metrics[name].action_priority, name))
