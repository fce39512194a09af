"""A plan in words that a person can follow.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.decision.plan import Plan, Stage, StageKind
from agent.model import (
    CPU,
    EXTENDED_CPU,
    MEMORY,
    EvictStep,
    KnobStep,
    QuotaStep,
    ReclaimStep,
    Released,
    SchedulingStep,
    Step,
)

VERBS: Mapping[StageKind, str] = {
    "throttle": "throttles",
    "reclaim": "reclaims page cache of",
    "hold": "holds back",
    "evict": "evicts",
    "restore": "restores",
}

_MEBIBYTE = 1 << 20


def number(value: float) -> str:
    """A value of a metric, whose unit nobody knows here, so that large ones can be read."""
    return f"{value:,.0f}" if abs(value) >= 10_000.0 else f"{value:g}"


def amount(resource: str, value: float) -> str:
    """A quantity of a resource with its unit."""
    if resource == CPU:
        return f"{value:.0f} millicores"
    if resource == EXTENDED_CPU:
        return f"{value:.0f} millicores of extended CPU"
    if resource == MEMORY:
        return f"{value / _MEBIBYTE:.1f} MiB"
    return f"{value:g} {resource}"


def effect(kind: StageKind, released: Released) -> str:
    """What acting on a pod does to the node."""
    amounts = [amount(resource, value) for resource, value in released.items() if value > 0.0]
    verb = "lets come back" if kind == "restore" else "releases"
    return f"{verb} {', '.join(amounts)}" if amounts else f"{verb} nothing that can be computed"


def measured(metric: str, used: float | None, watermark: float) -> str:
    """What a metric is, and what it should not be above."""
    is_now = "missing" if used is None else number(used)
    return f"{metric} is {is_now}, watermark {number(watermark)}"


def precise(stage: Stage, resource: str) -> str:
    """How a stage came to its pods."""
    gap, after = stage.gap or 0.0, stage.gap_after or 0.0
    used = measured(stage.metric, stage.used, stage.watermark)
    flying = f", {amount(resource, stage.in_flight)} of it in flight" if stage.in_flight > 0.0 else ""
    if gap <= 0.0:
        return f"{used}{flying}: nothing to {stage.kind}"
    chosen = [candidate.pod for candidate in stage.candidates if candidate.chosen]
    what = "may come back" if stage.kind == "restore" else "must be released"
    left = "which closes it" if after <= 0.0 else f"which leaves {amount(resource, after)}"
    done = f"{VERBS[stage.kind]} {', '.join(chosen)}, {left}" if chosen else "no pod for it"
    return f"{used}{flying}: {amount(resource, gap)} {what}; {done} ({len(chosen)} of {len(stage.candidates)} pods)"


def step(each: Step) -> str:
    """One step, as it would be carried out."""
    if isinstance(each, SchedulingStep):
        return f"{'keep new pods away' if each.disable else 'let new pods come'} ({each.reason})"
    if isinstance(each, EvictStep):
        return f"evict {each.pod}, {each.grace_seconds:g} s of grace: {effect('evict', each.released)}"
    if isinstance(each, ReclaimStep):
        return f"reclaim up to {amount(MEMORY, each.bytes)} of page cache from {each.pod}"
    kind: StageKind = each.kind
    if isinstance(each, KnobStep):
        change = f"{_limit(each.before)} to {_limit(each.after)}"
        return f"set {each.knob} of {each.pod} from {change}: {effect(kind, each.released)}"
    change = f"{_quota(each.before, each)} to {_quota(each.after, each)}"
    return f"{kind} {each.pod}, container {each.container}, from {change}: {effect(kind, each.released)}"


def _limit(value: int | None) -> str:
    return "no limit" if value is None else f"{value:,}"


def _quota(quota: int | None, each: QuotaStep) -> str:
    return "no quota" if quota is None or quota <= 0 else f"{quota / each.period:.4g} cores"


def sentences(made: Plan) -> tuple[str, ...]:
    """The rules, what each stage made of them, and the steps."""
    return (
        *made.warnings,
        *(rule.text for rule in made.rules),
        *(stage.text for stage in made.stages if stage.text),
        *(f"in preview: {stage.text}" for stage in made.preview_stages if stage.text),
        *(f"{number}. {step(each)}" for number, each in enumerate(made.steps, start=1)),
        *(f"in preview: would {step(each)}" for each in made.preview),
        *(() if made.steps or made.preview else ("nothing to do",)),
    )
