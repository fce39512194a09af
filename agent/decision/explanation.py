"""Text descriptions of a plan for operators, as GET /explain and the preview show them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.decision.plan import Plan, Stage
from agent.model import (
    CPU,
    EXTENDED_CPU,
    MEMORY,
    Eviction,
    KnobChange,
    PageCacheReclaim,
    QuotaChange,
    Released,
    SchedulingChange,
    StageKind,
    Step,
    StepKind,
)

VERBS: Mapping[StageKind, str] = {
    "throttle": "throttles",
    "reclaim": "reclaims page cache of",
    "hold": "lowers memory.high of",
    "evict": "evicts",
    "restore": "restores",
}
GERUNDS: Mapping[StageKind, str] = {
    "throttle": "throttling",
    "reclaim": "reclaiming page cache",
    "hold": "lowering memory.high",
    "evict": "evicting pods",
    "restore": "throttling",
}

_MEBIBYTE = 1 << 20


def number(value: float) -> str:
    """Format a metric's value without unit, with thousands separators from 10,000."""
    return f"{value:,.0f}" if abs(value) >= 10_000.0 else f"{value:g}"


def amount(resource: str, value: float) -> str:
    """Format a quantity of a resource (millicores, bytes) with its unit."""
    if resource == CPU:
        return f"{value:.0f} millicores"
    if resource == EXTENDED_CPU:
        return f"{value:.0f} millicores of extended CPU"
    if resource == MEMORY:
        return f"{value / _MEBIBYTE:.1f} MiB"
    return f"{value:g} {resource}"


def effect(kind: StepKind, released: Released) -> str:
    """Describe the change in the node's usage after acting on a pod; `released` in millicores and bytes."""
    amounts = [amount(resource, value) for resource, value in released.items() if value > 0.0]
    verb = "gives back" if kind == "restore" else "releases"
    return f"{verb} {', '.join(amounts)}" if amounts else f"{verb} no computable amount"


def measured(metric: str, used: float | None, watermark: float) -> str:
    """Describe a metric's value and its watermark."""
    is_now = "missing" if used is None else number(used)
    return f"{metric} is {is_now}, watermark {number(watermark)}"


def precise(stage: Stage, resource: str) -> str:
    """Describe how a stage with a computed gap chose its pods."""
    gap, after = stage.gap or 0.0, stage.gap_after or 0.0
    used = measured(stage.metric, stage.used, stage.watermark)
    flying = f", {amount(resource, stage.in_flight)} in flight" if stage.in_flight > 0.0 else ""
    if gap <= 0.0:
        return f"{used}{flying}: nothing to {stage.kind}"
    chosen = [candidate.pod for candidate in stage.candidates if candidate.chosen]
    what = "may be given back" if stage.kind == "restore" else "must be released"
    left = "which closes the gap" if after <= 0.0 else f"which leaves a gap of {amount(resource, after)}"
    done = f"{VERBS[stage.kind]} {', '.join(chosen)}, {left}" if chosen else "no pod can be chosen"
    return f"{used}{flying}: {amount(resource, gap)} {what}; {done} ({len(chosen)} of {len(stage.candidates)} pods)"


def step(each: Step) -> str:
    """Describe one step as text for operators."""
    match each.change:
        case SchedulingChange(disable):
            return f"{'keep new pods away' if disable else 'allow new pods'} ({each.reason})"
        case PageCacheReclaim(most):
            return f"reclaim up to {amount(MEMORY, most)} of page cache from {each.pod}"
        case Eviction(grace_seconds):
            what = f"evict {each.pod}, grace period {grace_seconds:g} s"
        case KnobChange(knob, before, after):
            what = f"set {knob} of {each.pod} from {_limit(before)} to {_limit(after)}"
        case QuotaChange(container, _, before, after, period):
            quotas = f"{_quota(before, period)} to {_quota(after, period)}"
            what = f"{each.kind} {each.pod}, container {container}, from {quotas}"
    return f"{what}: {effect(each.kind, each.released)}"


def _limit(value: int | None) -> str:
    return "no limit" if value is None else f"{value:,}"


def _quota(quota: int | None, period: int) -> str:
    return "no quota" if quota is None or quota <= 0 else f"{quota / period:.4g} cores"


def sentences(made: Plan) -> tuple[str, ...]:
    """Describe a plan in order: warnings, rules, stages, steps, and the same for rules in preview."""
    return (
        *made.warnings,
        *(rule.text for rule in made.rules),
        *(stage.text for stage in made.stages if stage.text),
        *(f"in preview: {stage.text}" for stage in made.preview_stages if stage.text),
        *(f"{number}. {step(each)}" for number, each in enumerate(made.steps, start=1)),
        *(f"in preview: would {step(each)}" for each in made.preview),
        *(() if made.steps or made.preview else ("nothing to do",)),
    )
