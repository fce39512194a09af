"""Turns the demand of the policies into steps on pods, with no more pods than needed.

Each stage is one action, in the order: throttle, reclaim, lower memory.high, evict, restore. A stage processes its
metrics one by one, the most urgent first:

- A metric that the action does not reduce selects no pods.
- A metric that is not quantified, or that is missing and has a rule with onMissing: all, selects all pods of its rules.
- Every other metric takes pods of its rules, in its order, until its gap is closed. The release of a pod reduces the
  gaps of all metrics, and a pod whose eviction later ones make unnecessary is dropped.

The pending release of earlier steps (agent/decision/ledger.py) is subtracted from the usage first. Eviction for a
resource that is throttled waits until throttling has had time to take effect; eviction for memory does not wait.
Restoring proceeds in reverse order, the most important pod first, and ends with the exact original values.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from agent.decision import explanation
from agent.decision.analysis import Analysis
from agent.decision.eligible_pods import protection
from agent.decision.gap_closing import CLOSED, StagePlanner
from agent.decision.ledger import set_since
from agent.decision.plan import Mode, Plan
from agent.decision.plan_inputs import PlanInputs, gaps
from agent.decision.restoring import uncovered_steps
from agent.model import SchedulingStep, Step


def plan(analysis: Analysis, given: PlanInputs) -> Plan:
    """Plan the steps of one cycle."""
    run = StagePlanner(given)
    stages = run.of(analysis.demand)
    scheduling = _scheduling(analysis)
    free = {pod.uid: pod for pod in given.state.pods if pod.uid not in given.unavailable and not pod.terminating}
    restored = uncovered_steps(analysis, free, given.lowered, set_since(given.ledger, given.state.time))
    preview = StagePlanner(given)
    preview_stages = preview.of(analysis.preview)
    made = Plan(
        time=analysis.time,
        steps=(*scheduling, *run.steps, *restored),
        preview=tuple(preview.steps),
        rules=analysis.findings,
        stages=stages,
        preview_stages=preview_stages,
        scheduling_disabled=analysis.memory.keeps_away,
        left_alone=run.protected_pods,
        warnings=analysis.warnings,
    )
    return replace(made, sentences=explanation.sentences(made))


def still_needed(step: Step, made: Plan, given: PlanInputs, done: Collection[Step] = ()) -> str:
    """The reason why a step is not needed any more, given a newly read state; "" if it is needed. `done` are the steps
    of this plan that were carried out already; their planned release reduces the gap.

    A step of a stage without a computed gap is needed as long as its pod exists."""
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
    return "" if gap > CLOSED else f"the gap of {metric.name} is closed already"


def _scheduling(analysis: Analysis) -> tuple[SchedulingStep, ...]:
    return () if analysis.keep_away is None else (SchedulingStep(analysis.keep_away, analysis.because),)
