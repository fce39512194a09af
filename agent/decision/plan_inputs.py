"""What a plan is made from, and what follows from it before any pod is looked at: which metrics can be brought to their
watermark precisely, which one acts on all pods otherwise, and how far the node is off.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.decision.eviction_limits import Budget
from agent.decision.ledger import Ledger, falling, rising
from agent.decision.plan import StageKind
from agent.decision.watermark import Watermarks, gap_above, gap_below
from agent.metrics.action_metric import Metric
from agent.metrics.options import Options, Quirk
from agent.metrics.original_values import Originals
from agent.metrics.registry import Metrics
from agent.model import MEMORY, Knobs, State


@dataclass(frozen=True, slots=True)
class Given:
    """What a plan is made from besides the analysis. `own` are uids and namespace/names of the agent's own pods;
    `budget` is what may be evicted now, None for no limit; `unavailable` are pods that cannot be acted on in this
    cycle (the API refused them, they are gone), with the reason, so that a second plan finds others; `knobs` are what
    the groups of pods have besides quotas, without which there are no gentler steps, and `unturned` those of them (uid
    and knob) that the kernel refused to lower of late."""

    state: State
    metrics: Metrics
    options: Options = field(default_factory=Options)
    originals: Originals = field(default_factory=dict)
    ledger: Ledger = ()
    own: frozenset[str] = frozenset()
    budget: Budget | None = None
    unavailable: Mapping[str, str] = field(default_factory=dict)
    knobs: Knobs = field(default_factory=dict)
    unturned: frozenset[tuple[str, str]] = frozenset()


def divided(kind: StageKind, marks: Watermarks, metrics: Metrics) -> tuple[list[str], list[str]]:
    """The metrics of a set whose release can be computed, the most urgent first, and those where it cannot; among these
    is every metric that is not registered."""
    quantified = [name for name in marks if name in metrics and _quantified(metrics[name], kind)]
    return _by_urgency(quantified, metrics), [name for name in marks if name not in quantified]


def most_urgent(kind: StageKind, marks: Watermarks, metrics: Metrics) -> str:
    """Of the metrics of a set that know how, the one with the highest action priority, and of several the first by
    name; "" where none does."""
    able = [name for name in marks if name in metrics and _able(metrics[name], kind)]
    return next(iter(_by_urgency(able, metrics)), "")


def gaps(kind: StageKind, marks: Watermarks, given: Given) -> dict[str, float | None]:
    """How far the node is from each watermark, in units of release; None where the usage is missing. A metric that is
    not quantified, or of which the node's capacity is not known, has no entry."""
    found: dict[str, float | None] = {}
    for name in sorted({*marks, *_missed_by_nobody(given)}):
        metric = given.metrics.get(name)
        if metric is None or not _quantified(metric, kind):
            continue
        used, scale = given.state.value(name), metric.scale(given.state)
        if used is None:
            found[name] = None
        elif scale is not None and scale > 0.0:
            found[name] = _gap(kind, used, marks[name][0], scale, in_flight(kind, metric, given), given.options)
    return found


def in_flight(kind: StageKind, metric: Metric, given: Given) -> float:
    """What earlier steps are about to release, or, restoring, to bring back."""
    flying = rising if kind == "restore" else falling
    return flying(given.ledger, given.state).get(metric.resource, 0.0)


def _missed_by_nobody(given: Given) -> list[str]:
    """Metrics that upstream misses although no rule names them."""
    if Quirk.ANY_MISSED not in given.options.quirks:
        return []
    return [name for name in given.metrics if given.state.value(name) is None]


def _gap(kind: StageKind, used: float, watermark: float, scale: float, flying: float, options: Options) -> float:
    if kind == "restore":
        return gap_below(used + flying / scale, watermark, scale, options)
    return gap_above(used - flying / scale, watermark, scale, options)


def _able(metric: Metric, kind: StageKind) -> bool:
    if kind in ("reclaim", "hold"):
        return metric.evict_quantified and metric.resource == MEMORY
    return metric.evictable if kind == "evict" else metric.throttleable


def _quantified(metric: Metric, kind: StageKind) -> bool:
    if kind in ("reclaim", "hold"):
        return _able(metric, kind)
    return metric.evict_quantified if kind == "evict" else metric.throttle_quantified


def _by_urgency(names: Iterable[str], metrics: Metrics) -> list[str]:
    return sorted(names, key=lambda name: (-metrics[name].action_priority, name))
