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

from collections.abc import Collection, Iterable
from dataclasses import replace

from agent.decision import explanation
from agent.decision.analysis import Analysis, Demand, PodDemand
from agent.decision.ledger import lowered, raised, recently_set, set_since
from agent.decision.plan import Mode, Plan, PodLeftAlone, Stage, StageCandidate
from agent.decision.plan_inputs import PlanInputs, as_throttled, gap_below, gaps, in_flight, left_alone, reducible
from agent.decision.pod_selection import protection
from agent.decision.restoring import memory_high_restored, uncovered_steps, weight_restored
from agent.decision.soft_limits import memory_high_lowered, weight_lowered
from agent.decision.stage_selection import (
    ConsideredPod,
    StageSelection,
    lagging,
    reclaiming,
    refusal,
    worth_it,
)
from agent.metrics.action_metric import ActionMetric, PlanContext, PodSteps
from agent.metrics.sorters import Sorter
from agent.model import (
    CPU_MAX,
    CPU_WEIGHT,
    MEMORY_HIGH,
    PAGE_CACHE,
    Eviction,
    PodState,
    SchedulingChange,
    StageKind,
    Step,
)

CLOSED = 1e-6
"""Millicores or bytes: a gap up to this size counts as closed, to allow for rounding errors."""
RESTORED_AT_ONCE = 0.5
"""Fraction of the gap that restoring gives back in one cycle, in equal shares of the pods, if the step of the action is
smaller: six cycles give back all but a sixtieth, and the usage of other pods may rise meanwhile."""
CHOSEN_BEFORE = "it is chosen for another metric already"


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
    if isinstance(step.change, SchedulingChange):
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
    gap -= sum(each.released.get(metric.resource, 0.0) for each in done)
    return "" if gap > CLOSED else f"the gap of {metric.name} is closed already"


def _scheduling(analysis: Analysis) -> tuple[Step, ...]:
    if analysis.keep_away is None:
        return ()
    return (Step("scheduling", SchedulingChange(analysis.keep_away), reason=analysis.because),)


class StagePlanner:
    """Plans the stages of one demand. The release of one stage is subtracted from the gaps of the next. `steps`
    collects the steps; `protected_pods` has the pods that must not be changed, with the reason."""

    def __init__(self, given: PlanInputs) -> None:
        self._given = given
        self._pods = {pod.uid: as_throttled(pod, given) for pod in given.state.pods}
        self._set = set_since(given.ledger, given.state.time)
        self._weighing = recently_set(given.ledger, given.state.time, "throttle", CPU_WEIGHT)
        self._freed: dict[str, float] = {}
        self.steps: list[Step] = []
        self._protected = left_alone(given)
        self.protected_pods = tuple(
            PodLeftAlone(pod.key, pod.uid, self._protected[pod.uid])
            for pod in sorted(given.state.pods, key=lambda pod: (pod.key, pod.uid))
            if pod.uid in self._protected
        )

    def of(self, demand: Demand) -> tuple[Stage, ...]:
        """Plan all stages of the demand, in order."""
        throttled = self._stage(StageSelection("throttle", demand.down, demand.throttled, {}), demand.missed)
        # The release of reclaiming is known only afterwards, so it reduces no gap in the plan, and the executor reads
        # the usage again before each further step.
        reclaimed = self._stage(self._of_memory(StageSelection("reclaim", demand.reclaim, demand.reclaimed, {})), ())
        held = self._stage(self._of_memory(StageSelection("hold", demand.memory_high, demand.held, {})), ())
        waiting = self._waiting(demand)
        names = {stage.metric for stage in waiting}
        marks = {name: values for name, values in demand.evict.items() if name not in names}
        evicted = self._stage(StageSelection("evict", marks, demand.evicted, {}), demand.missed)
        restored = self._stage(StageSelection("restore", demand.up, demand.restored, demand.ceilings), demand.missed)
        loose = self._loosen(StageSelection("restore", demand.memory_high_restore, demand.loosened, {}))
        return (*throttled, *reclaimed, *held, *waiting, *evicted, *restored, *loose)

    def _of_memory(self, task: StageSelection) -> StageSelection:
        """The task with only the metrics that a step on memory reduces."""
        return replace(
            task, marks={name: task.marks[name] for name in reducible("hold", task.marks, self._given.metrics)}
        )

    def _loosen(self, task: StageSelection) -> tuple[Stage, ...]:
        """Restore the original memory.high of the pods that fit into the gap if each doubles its memory, at least of
        one. Others follow when the effect shows, because the memory that a pod will allocate cannot be computed."""
        task, lowered_values = self._of_memory(task), self._given.lowered
        owing = [pod for uid, pod in self._pods.items() if uid in task.wanted and lowered_values.memory(pod)]
        if not owing or not task.marks:
            return ()
        name = next(iter(task.marks))
        metric, watermark = self._given.metrics[name], task.marks[name][0]
        if recently_set(self._given.ledger, self._given.state.time, "restore", MEMORY_HIGH):
            text = f"{name}: waits for the effect of a memory.high that was restored recently"
            return (self._stage_result("restore", name, watermark, Mode.WAITING, text),)
        room = min(self._below(self._given.metrics[each], task.marks[each][0]) or 0.0 for each in task.marks)
        for pod in reversed(self._sorter(metric).sort(pod for pod in owing if pod.uid not in self._protected)):
            fits = pod.memory is not None and pod.memory <= room
            planned = memory_high_restored(pod, lowered_values.knobs_of(pod), name)
            why = "the gap is too small for it and the pods before it" if task.taken and not fits else ""
            task.look(ConsideredPod(pod, metric, planned, why or refusal("restore", planned)))
            if pod.uid in task.taken:
                room -= room if pod.memory is None else pod.memory
        self._take(task)
        message = ", ".join(each.pod.key for each in task.chosen) or "no pod"
        text = f"{name}: restores memory.high of {message}, of {len(owing)} with a lowered one"
        stage = self._stage_result("restore", name, watermark, Mode.ASSUMED, text)
        return (replace(stage, candidates=self._candidates(task, metric)),)

    def _waiting(self, demand: Demand) -> tuple[Stage, ...]:
        """Stages of metrics whose evictions wait for the effect of throttling."""
        now, settle = self._given.state.time, self._given.options.settle
        if not self.steps and not lowered(self._given.ledger, now) and not self._weighing:
            return ()
        stages: list[Stage] = []
        throttled = reducible("throttle", demand.down, self._given.metrics)
        for name, values in demand.evict.items():
            left = settle - (now - demand.since.get(name, now - settle))
            if left > 0.0 and self._shared(name, throttled):
                text = f"{name}: evicts in {left:.0f} s at the earliest, because throttling has to take effect first"
                stages.append(self._stage_result("evict", name, values[0], Mode.WAITING, text))
        return tuple(stages)

    def _shared(self, name: str, down: Iterable[str]) -> bool:
        """Whether throttling for one of the metrics `down` releases the resource of the metric `name` too."""
        resource = self._resource(name)
        return any(name == other or (resource and resource == self._resource(other)) for other in down)

    def _resource(self, name: str) -> str:
        metric = self._given.metrics.get(name)
        return "" if metric is None else metric.resource

    def _stage(self, task: StageSelection, may_miss: Collection[str]) -> tuple[Stage, ...]:
        """Plan one action, metric by metric, the most urgent first. A metric in `may_miss` counts as missed if its
        usage is missing."""
        metrics = [self._given.metrics[name] for name in reducible(task.kind, task.marks, self._given.metrics)]
        found = gaps(task.kind, task.marks, self._given)
        freed = {} if task.kind == "restore" else self._freed
        opened = {name: gap - freed.get(self._resource(name), 0.0) for name, gap in found.items() if gap is not None}
        task.gaps = dict(opened)
        for metric in metrics:
            if not metric.quantified_for(task.kind):
                task.without_gap[metric.name] = f"{metric.name} cannot be quantified"
            elif metric.name in may_miss and found.get(metric.name, 0.0) is None:
                task.without_gap[metric.name] = f"the usage of {metric.name} is missing"
            if metric.name in task.without_gap:
                self._all_selected(task, metric)
            elif metric.name in opened:
                self._until_closed(task, metric)
        while task.kind == "evict" and self._drop_unneeded_victims(task):
            self._use_freed_limits(task)
        self._take(task)
        ignored = [name for name in task.marks if name not in {metric.name for metric in metrics}]
        return (
            *(self._metric_stage(task, metric, opened.get(metric.name)) for metric in metrics),
            *(self._ignored(task, name) for name in ignored),
        )

    def _ignored(self, task: StageSelection, name: str) -> Stage:
        """The stage of a metric that the action cannot reduce."""
        watermark = task.marks[name][0]
        used = explanation.measured(name, self._given.state.value(name), watermark)
        text = f"{used}: selects no pods, because {explanation.GERUNDS[task.kind]} does not reduce it"
        return self._stage_result(task.kind, name, watermark, Mode.NOTHING, text)

    # --- all pods ----------------------------------------------------------------------------------------------------

    def _all_selected(self, task: StageSelection, metric: ActionMetric) -> None:
        """Consider all pods that rules select for a metric without a gap. A pod that is throttled for a metric with a
        gap, too, is restored only within that gap."""
        keys = [key for key, each in task.wanted.items() if metric.name in each.metrics]
        if task.kind == "restore":
            keys = [key for key in keys if not task.wanted[key].metrics & task.gaps.keys()]
        for pod in self._ordered(task.kind, metric, keys):
            planned = self._planned(task.kind, metric, pod, task.wanted[pod.uid], room=None)
            if task.kind == "evict" and planned.steps:
                planned = self._evicted_for_all(task, metric, pod, planned)
            considered = ConsideredPod(pod, metric, self._weight_first(task, metric, pod, planned))
            why = CHOSEN_BEFORE if pod.uid in task.taken else refusal(task.kind, considered.planned)
            why = why or self._recent(task.kind, pod) or self._too_many(task, planned)
            self._look(task, replace(considered, why=why))

    def _recent(self, kind: StageKind, pod: PodState) -> str:
        """The reason why a pod gets no further step while its last one is pending, in a stage without a computed gap;
        "" if it may."""
        ledger, now = self._given.ledger, self._given.state.time
        recent: Collection[str] = lowered(ledger, now) if kind == "throttle" else raised(ledger, now)
        if kind != "evict" and any(container.id in recent for container in pod.containers):
            return "its last step is still taking effect"
        return ""

    # --- until the gap is closed -------------------------------------------------------------------------------------

    def _until_closed(self, task: StageSelection, metric: ActionMetric) -> None:
        """Consider the allowed pods for one metric, in order, until its gap is closed."""
        keys = [key for key, each in task.wanted.items() if metric.name in each.metrics]
        pods = self._ordered(task.kind, metric, keys)
        at_first = dict(task.gaps)
        for pod in pods:
            names = {metric.name}
            if task.kind == "restore":  # not beyond any of the metrics for which the pod is throttled
                names |= task.wanted[pod.uid].metrics & task.gaps.keys()
            room = task.gaps[metric.name] if task.kind in ("reclaim", "hold") else self._room(task, names)
            share = RESTORED_AT_ONCE * min(at_first[name] for name in names) / len(pods)
            planned = self._planned(task.kind, metric, pod, task.wanted[pod.uid], room, share)
            if task.kind == "evict" and planned.steps:
                planned = self._evicted_for_all(task, metric, pod, planned)
            considered = ConsideredPod(pod, metric, self._weight_first(task, metric, pod, worth_it(planned)))
            if pod.uid in task.taken:
                why = CHOSEN_BEFORE
            elif min(task.gaps[name] for name in names) <= CLOSED:
                why = "the gap is already closed"
            else:
                why = (
                    refusal(task.kind, considered.planned) or self._futile(considered) or self._too_many(task, planned)
                )
            self._look(task, replace(considered, why=why))

    def _look(self, task: StageSelection, considered: ConsideredPod) -> None:
        """Add a considered pod; if it is chosen, subtract its release from the gaps."""
        metrics, names = self._given.metrics, task.wanted[considered.pod.uid].metrics
        lag = max((metrics[name].lag_seconds for name in names if name in metrics), default=0.0)
        task.look(replace(considered, planned=lagging(considered.planned, lag)))
        if not considered.why:
            self._credit(task, considered, 1.0)

    def _evicted_for_all(
        self, task: StageSelection, metric: ActionMetric, pod: PodState, planned: PodSteps
    ) -> PodSteps:
        """Add the pod's release of the resources of all other metrics, because each metric plans its own resource
        only."""
        others = [self._given.metrics[name] for name in task.gaps if name != metric.name]
        released: dict[str, float] = {}
        for other in others:
            released |= self._planned("evict", other, pod, task.wanted[pod.uid], None).released
        released |= planned.released
        return PodSteps(tuple(replace(step, released=released) for step in planned.steps), released)

    def _room(self, task: StageSelection, names: Iterable[str]) -> float | None:
        """Maximum amount (millicores or bytes) that restoring may give back below the throttling watermarks of the
        metrics; None for no limit."""
        rooms = [self._room_below(task, self._given.metrics[name]) for name in names]
        return min((room for room in rooms if room is not None), default=None)

    def _room_below(self, task: StageSelection, metric: ActionMetric) -> float | None:
        ceiling = task.ceilings.get(metric.name)
        below = None if ceiling is None else self._below(metric, ceiling)
        return None if below is None else max(0.0, below - task.came_back.get(metric.resource, 0.0))

    def _below(self, metric: ActionMetric, watermark: float) -> float | None:
        """The gap below a watermark in the unit of the resource, less what restored pods do not use yet; None if it is
        unknown."""
        used, scale = self._measured(metric)
        if used is None or scale is None:
            return None
        used += in_flight("restore", metric, self._given) / scale
        return gap_below(used, watermark, scale, self._given.options)

    def _measured(self, metric: ActionMetric) -> tuple[float | None, float | None]:
        return self._given.state.value(metric.name), metric.scale(self._given.state)

    def _futile(self, looked: ConsideredPod) -> str:
        """The reason why evicting this pod would not reduce the gap; "" if it would."""
        evicts = any(isinstance(step.change, Eviction) for step in looked.planned.steps)
        if not evicts:
            return ""
        return "" if looked.planned.released.get(looked.metric.resource, 0.0) > CLOSED else "it would release nothing"

    def _too_many(self, task: StageSelection, planned: PodSteps) -> str:
        """The reason why the node's eviction limits forbid evicting this pod too; "" if they allow it."""
        if self._given.budget is None:
            return ""
        chosen = tuple(step for each in task.chosen for step in each.planned.steps if isinstance(step.change, Eviction))
        asked = (step for step in planned.steps if isinstance(step.change, Eviction))
        return next(filter(None, (self._given.budget.refusal(chosen, step) for step in asked)), "")

    def _credit(self, task: StageSelection, looked: ConsideredPod, sign: float) -> None:
        """Subtract a pod's release from the gaps of the released resources; `sign` -1.0 adds it back."""
        for resource, amount in looked.planned.released.items() if task.kind == "restore" else ():
            task.came_back[resource] = task.came_back.get(resource, 0.0) + sign * amount
        for name in task.gaps:
            task.gaps[name] -= sign * looked.planned.released.get(self._resource(name), 0.0)

    def _drop_unneeded_victims(self, task: StageSelection) -> bool:
        """Drop chosen pods without which all gaps stay closed, the last chosen first; returns whether there were any.
        A pod that ranks lower than another chosen pod stays chosen, even if the other one releases enough, and so does
        a pod that a metric without a gap selects."""
        before = len(task.taken)
        for place in reversed(range(len(task.considered))):
            each = task.considered[place]
            if each.why or task.wanted[each.pod.uid].metrics & task.without_gap.keys():
                continue
            self._credit(task, each, -1.0)
            if all(gap <= CLOSED for gap in task.gaps.values()) and self._may_be_spared(task, each):
                task.considered[place] = replace(each, why="the other chosen pods release enough")
                task.taken.remove(each.pod.uid)
            else:
                self._credit(task, each, 1.0)
        return len(task.taken) < before

    def _use_freed_limits(self, task: StageSelection) -> None:
        """Choose pods of metrics without a gap that were refused only because of victims that are dropped now."""
        for place, each in enumerate(task.considered):
            is_open = each.metric.name in task.without_gap and each.pod.uid not in task.taken
            if is_open and not (refusal(task.kind, each.planned) or self._too_many(task, each.planned)):
                task.considered[place] = replace(each, why="")
                task.taken.add(each.pod.uid)
                self._credit(task, each, 1.0)

    def _may_be_spared(self, task: StageSelection, each: ConsideredPod) -> bool:
        """Whether there are other chosen pods, and none of them ranks higher."""
        sorter, others = self._sorter(each.metric), [other for other in task.chosen if other is not each]
        return bool(others) and not any(sorter.rank(each.pod, other.pod) < 0 for other in others)

    def _metric_stage(self, task: StageSelection, metric: ActionMetric, gap: float | None) -> Stage:
        """The stage of one metric, with its text and candidates; `gap` before the chosen pods."""
        stage = self._stage_result(task.kind, metric.name, task.marks[metric.name][0], Mode.PRECISE, "")
        if reason := task.without_gap.get(metric.name):
            candidates = self._candidates(task, metric)
            mode = Mode.MISSED if metric.quantified_for(task.kind) else Mode.NOT_QUANTIFIED
            chosen = f"{sum(each.chosen for each in candidates)} of {len(candidates)}"
            text = f"{reason}; {explanation.VERBS[task.kind]} all possible pods, {chosen}"
            return replace(stage, mode=mode, candidates=candidates, text=text)
        if gap is None:
            missing = "its usage is missing" if stage.used is None else "the node's capacity is unknown"
            return replace(stage, mode=Mode.NOTHING, text=f"{metric.name}: {missing}: no action is taken")
        stage = replace(
            stage,
            in_flight=in_flight(task.kind, metric, self._given),
            gap=gap,
            gap_after=task.gaps[metric.name],
            candidates=self._candidates(task, metric),
        )
        return replace(stage, text=explanation.precise(stage, metric.resource))

    # --- pods --------------------------------------------------------------------------------------------------------

    def _ordered(self, kind: StageKind, metric: ActionMetric, keys: Iterable[str]) -> list[PodState]:
        """The pods that may be acted on, in the order of the metric (for restore: reversed)."""
        pods = [self._pods[key] for key in keys if key in self._pods and key not in self._protected]
        if kind == "restore":
            pods = [pod for pod in pods if self._given.lowered.cpu(pod)]
        ordered = self._sorter(metric).sort(pods)
        if kind == "restore":
            ordered.reverse()
        return ordered

    def _sorter(self, metric: ActionMetric) -> Sorter:
        return metric.sort if metric.sortable and metric.sort is not None else self._given.metrics.chains.general

    def _planned(
        self,
        kind: StageKind,
        metric: ActionMetric,
        pod: PodState,
        wanted: PodDemand,
        room: float | None,
        share: float | None = None,
    ) -> PodSteps:
        """The steps of the action on one pod, as the metric plans them; `room` and `share` of the gap in millicores or
        bytes."""
        given = self._given
        circumstances = PlanContext(given.state, given.lowered.originals, room, share)
        if kind == "evict":
            if pod.daemon and not given.options.evict_daemons:
                return PodSteps(problem="its DaemonSet would recreate it immediately")
            if not pod.managed and not given.options.evict_unmanaged:
                return PodSteps(problem="it has no controller, so nothing would recreate it")
            if why := given.refused_evictions.get(pod.uid):
                return PodSteps(problem=why)
            return metric.evict(pod, wanted.grace_seconds, circumstances) if metric.evict else PodSteps()
        if kind == "reclaim" and (pod.uid, PAGE_CACHE) in given.refused_knobs:
            return PodSteps(problem="the kernel recently refused to reclaim its page cache")
        if kind == "reclaim":
            return reclaiming(pod, metric, room or 0.0)
        if any(each in self._set for each in (pod.uid, *(container.id for container in pod.containers))):
            return PodSteps(problem="it was already changed in this cycle")
        if kind == "hold" and (pod.uid, MEMORY_HIGH) in given.refused_knobs:
            return PodSteps(problem="the kernel recently refused to lower its memory.high")
        if kind == "hold":
            return memory_high_lowered(pod, given.lowered.knobs_of(pod), metric.name, room or 0.0)
        if kind == "throttle":
            left = tuple(each for each in pod.containers if (each.id, CPU_MAX) not in given.refused_knobs)
            if pod.containers and not left:
                return PodSteps(problem="the kernel recently refused to lower its quotas")
            pod = replace(pod, containers=left)
        function = metric.throttle if kind == "throttle" else metric.restore
        return function(pod, wanted.throttle, circumstances) if function else PodSteps()

    def _weight_first(self, task: StageSelection, metric: ActionMetric, pod: PodState, planned: PodSteps) -> PodSteps:
        """Lower cpu.weight before the quotas, and restore it after the quotas."""
        knobs = self._given.lowered.knobs_of(pod)
        if task.kind == "restore" and not self._given.lowered.quota(pod) and knobs.owes_weight:
            return weight_restored(pod, knobs, metric.name)
        if task.kind != "throttle" or not planned.steps:
            return planned
        if pod.uid in self._weighing:
            return PodSteps(problem="its cpu.weight was lowered recently and is still taking effect")
        weight_first = task.wanted[pod.uid].weight_first and (pod.uid, CPU_WEIGHT) not in self._given.refused_knobs
        return weight_lowered(pod, knobs, planned) if weight_first else planned

    def _take(self, task: StageSelection) -> None:
        """Add the steps of the chosen pods to the plan."""
        for each in task.chosen:
            name = each.metric.name
            used = explanation.measured(name, self._given.state.value(name), task.marks[name][0])
            because = task.without_gap.get(name, used)
            self.steps += [replace(step, reason=because) for step in each.planned.steps]
            if task.kind != "restore":
                for resource, amount in each.planned.released.items():
                    self._freed[resource] = self._freed.get(resource, 0.0) + amount

    def _candidates(self, task: StageSelection, metric: ActionMetric) -> tuple[StageCandidate, ...]:
        return tuple(
            StageCandidate(
                pod=each.pod.key,
                uid=each.pod.uid,
                keys=self._sorter(metric).values(each.pod),
                released=None if each.planned.unknown else each.planned.released,
                chosen=not each.why,
                why=each.why or explanation.effect(task.kind, each.planned.released),
            )
            for each in task.considered
            if each.metric is metric
        )

    def _stage_result(self, kind: StageKind, name: str, watermark: float, mode: Mode, text: str) -> Stage:
        return Stage(kind, name, mode, watermark, used=self._given.state.value(name), text=text)
