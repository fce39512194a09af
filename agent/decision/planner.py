"""From what the policies want to what is done to which pod, and not to one pod more.

A stage is one action: throttle, reclaim, hold back from memory, then evict, then restore. Of its metrics

- one that is not quantified, or whose usage is missing although a rule says onMissing: all, leaves no choice: the most
  urgent metric that knows how acts on all of the pods;
- otherwise, metric by metric, the most urgent first: pods in the metric's order, until its gap is closed. What a pod
  releases closes all gaps at once, and a victim that later ones made unnecessary is let go.

What earlier steps are about to release (agent/decision/ledger.py) is taken off the usage first. Evicting for a resource
that can be throttled waits until throttling had time to show; memory does not wait. Restoring goes the other way round,
the pod that matters most first, and ends with the exact original quota.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from agent.decision import explanation
from agent.decision.analysis import Analysis
from agent.decision.ledger import set_since
from agent.decision.plan import Mode, Plan
from agent.decision.plan_inputs import Given, gaps
from agent.decision.selection import protection
from agent.decision.soft_limits import loosened, weight_restored
from agent.decision.stage_planner import CLOSED, Stages
from agent.metrics.action_metric import Planned
from agent.metrics.original_values import is_original, knobs_of
from agent.model import KnobStep, QuotaStep, SchedulingStep, Step

NOBODY_THROTTLES = "no rule throttles it any more"


def plan(analysis: Analysis, given: Given) -> Plan:
    """The steps of one cycle, and why these."""
    run = Stages(given)
    stages = run.of(analysis.demand)
    scheduling = _scheduling(analysis)
    restored: tuple[Step, ...] = (*_released(analysis.released, given), *_knobs_released(analysis, given))
    preview = Stages(given)
    preview_stages = preview.of(analysis.preview)
    made = Plan(
        time=analysis.time,
        steps=(*scheduling, *run.steps, *restored),
        preview=tuple(preview.steps),
        rules=analysis.findings,
        stages=stages,
        preview_stages=preview_stages,
        scheduling_disabled=analysis.memory.keeps_away,
        left_alone=run.left_alone,
        warnings=analysis.warnings,
    )
    return replace(made, sentences=explanation.sentences(made))


def still_needed(step: Step, made: Plan, given: Given, done: Collection[Step] = ()) -> str:
    """Why this step of a plan is not needed any more, by a state that was read just now; "" if it is. `done` are the
    steps of this plan that were carried out already: their release is counted on.

    A step that acts on all pods for want of a gap is needed as long as its pod is there."""
    if isinstance(step, SchedulingStep):
        return ""
    pod = next((each for each in given.state.pods if each.uid == step.uid), None)
    if pod is None:
        return "the pod is gone"
    reason = protection(pod, given.own)
    if reason:
        return reason
    stage = next((each for each in made.stages if (each.kind, each.metric) == (step.kind, step.metric)), None)
    metric = given.metrics.get(step.metric)
    if stage is None or stage.mode is not Mode.PRECISE or metric is None:
        return ""
    gap = gaps(stage.kind, {metric.name: (stage.watermark,)}, given).get(metric.name)
    if gap is None:
        return f"{metric.name} is missing now"
    gap -= sum(each.released.get(metric.resource, 0.0) for each in done if not isinstance(each, SchedulingStep))
    return "" if gap > CLOSED else f"{metric.name} needs it no more"


def _scheduling(analysis: Analysis) -> tuple[SchedulingStep, ...]:
    return () if analysis.keep_away is None else (SchedulingStep(analysis.keep_away, analysis.because),)


def _released(keys: Iterable[str], given: Given) -> tuple[QuotaStep, ...]:
    """Original quotas for pods that no rule throttles any more."""
    pods = {pod.key: pod for pod in given.state.pods}
    done = set_since(given.ledger, given.state.time)
    return tuple(
        QuotaStep(
            pod=key,
            uid=pods[key].uid,
            container=container.name,
            container_id=container.id,
            before=container.quota,
            after=original.quota,
            period=original.period,
            metric="",
            reason=NOBODY_THROTTLES,
            kind="restore",
        )
        for key in keys
        if key not in given.unavailable and not pods[key].terminating
        for container in pods[key].containers
        if container.id not in done
        and (original := given.originals.get(container.id)) is not None
        and not is_original(container, original)
    )


def _knobs_released(analysis: Analysis, given: Given) -> tuple[KnobStep, ...]:
    """The original weights and memory.high of those that no rule throttles or holds back any more."""
    pods = {pod.key: pod for pod in given.state.pods}
    done = set_since(given.ledger, given.state.time)
    steps: list[KnobStep] = []
    for key in sorted({*analysis.released, *analysis.unheld}):
        pod = pods[key]
        if key in given.unavailable or pod.terminating or pod.uid in done:
            continue
        knobs = knobs_of(pod, given.knobs)
        if key in analysis.released and knobs.owes_weight:
            steps += _knob_steps(weight_restored(pod, knobs, ""))
        if key in analysis.unheld and knobs.owes_memory:
            steps += _knob_steps(loosened(pod, knobs, ""))
    return tuple(steps)


def _knob_steps(planned: Planned) -> list[KnobStep]:
    return [replace(step, reason=NOBODY_THROTTLES) for step in planned.steps if isinstance(step, KnobStep)]
