"""Carries out a plan step by step. Each step is audited before it is carried out; a failed step does not stop the rest.

    enforcement level ─▶ each step: allowed? ─▶ still needed? ─▶ audit ─▶ act ─▶ audit ─▶ Event

The enforcement level is determined for every plan: preview unless agent.mode is enforce; preview if another agent
manages the same groups; then the value in the cluster's ConfigMap; only changes of control groups while the API is
unavailable. If the audit file cannot be written, no further steps are carried out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from agent.audit.database import AuditError
from agent.audit.entries import AuditEntry, AuditOutcome
from agent.audit.log import Audit
from agent.cgroups.base import Quota
from agent.cgroups.errors import CgroupError
from agent.cgroups.knobs import CPU_MAX, CPU_WEIGHT, MEMORY_HIGH
from agent.decision.eviction_limits import Budget
from agent.decision.plan import Plan
from agent.executor.cluster import ClusterActions
from agent.executor.conflicts import conflicting_agents, process_names
from agent.executor.control_map import ControlData, EnforcementSwitch
from agent.executor.effects import measured, used_by
from agent.executor.groups import Groups
from agent.executor.knob_writer import KnobWriter, RestoreResult, with_change
from agent.executor.permissions import OnExit, Permissions, _Means
from agent.executor.pod_knobs import read_knobs
from agent.executor.recent_evictions import RecentEvictions
from agent.executor.report import EnforcementLevel, PlanReport, StepOutcome, StepResult
from agent.model import EvictStep, Knobs, KnobStep, PodStep, QuotaStep, ReclaimStep, SchedulingStep, State, Step
from watcher.core.kubernetes.errors import KubeUnreachable
from watcher.platform.kube.events import EventSubject

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Needed = Callable[[Step, Sequence[Step]], Awaitable[str]]
"""Reads the usage again and returns why a step is not needed any more, "" if it is needed. Arguments: the step, and the
steps carried out so far."""

MEASURED_FOR_S = 120.0
"""Seconds: after this time, the effect of an audit entry can no longer be separated from other changes in usage."""
RENEWED_AFTER_S = 300.0
"""Seconds before an existing taint is checked again, although a triggered rule demands it in every cycle."""
ENFORCEMENT_KEY = "enforcement"
TAINTED_KEY = "scheduling disabled"
EVENTS = {
    CPU_MAX: ("CpuThrottled", "CpuRestored"),
    CPU_WEIGHT: ("CpuWeightLowered", "CpuWeightRestored"),
    MEMORY_HIGH: ("MemoryHeldBack", "MemoryRestored"),
}
"""Event reasons by knob: when the value is first lowered, and when the original value is restored."""
OUTCOMES = {
    StepOutcome.DONE: AuditOutcome.DONE,
    StepOutcome.GONE: AuditOutcome.GONE,
    StepOutcome.PROTECTED: AuditOutcome.PROTECTED,
    StepOutcome.UNANSWERED: AuditOutcome.UNANSWERED,
}


class Executor:
    """Carries out plans on one node. Without a `cluster`, it only changes control groups: no evictions, no taint, no
    ConfigMap. Calls must not overlap; a cancelled call ends after its current write. The constructor may raise
    AuditError."""

    def __init__(
        self,
        audit: Audit,
        groups: Groups,
        *,
        cluster: ClusterActions | None = None,
        permissions: Permissions | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permissions = permissions or Permissions()
        quotas, limits = KnobWriter(audit, groups, clock=clock), self._permissions.limits
        recent = RecentEvictions(audit, window=limits.window, clock=clock, monotonic=monotonic)
        self._means = _Means(audit, groups, quotas, cluster, limits, recent, clock)
        self._brake: EnforcementSwitch | None = None
        self._said = EnforcementLevel.ENFORCE
        self._undone: SchedulingStep | None = None
        self._tainted_at: float | None = None
        if cluster is not None:
            cluster.controls.last = self._brake = audit.kept(ENFORCEMENT_KEY, EnforcementSwitch)

    # --- one plan ----------------------------------------------------------------------------------------------------

    async def run(self, plan: Plan, *, state: State, cycle: int, needed: Needed) -> PlanReport:
        """Carry out the steps of a plan in order. `state` is the state that the plan was made from, with the usage
        before. Raises nothing: errors are in the report."""
        steps = self._with_what_is_undone(plan)
        try:
            quotas, tainted = await _in_thread(self._means.audit.owed), await self.tainted()
        except AuditError as error:
            return PlanReport(EnforcementLevel.PREVIEW, "the audit file cannot be read", (), _told(error))
        owing = quotas + tainted
        if tainted and plan.scheduling_disabled is False and not any(isinstance(s, SchedulingStep) for s in steps):
            steps = (SchedulingStep(False, "no rule requires the taint that an earlier run left"), *steps)
        if not steps and not owing:
            return PlanReport(EnforcementLevel.ENFORCE if self._permissions.enforce else EnforcementLevel.PREVIEW)
        situation = await self._situation(state, owing=owing)
        if situation.stance is EnforcementLevel.PREVIEW:
            results = tuple(StepResult(step, StepOutcome.WOULD, would(step)) for step in steps)
            self._say(situation.stance, situation.why)
            return PlanReport(situation.stance, situation.why, results)
        run = _Run(self._means, situation, state, cycle, needed, just_tainted=self._just_tainted())
        report = await run.carry_out(steps)
        self._say(report.stance, report.why)
        for each in report.results:
            if isinstance(each.step, SchedulingStep):
                self._undone = each.step if each.fate is StepOutcome.FAILED else None
                if each.fate is StepOutcome.DONE:
                    self._tainted_at = self._means.clock() if each.step.disable else None
        return report

    def _say(self, stance: EnforcementLevel, why: str) -> None:
        """Log a change of the enforcement level, if agent.mode is enforce."""
        if not self._permissions.enforce or stance is self._said:
            return
        self._said = stance
        if stance is EnforcementLevel.ENFORCE:
            log.info("full enforcement resumed")
        else:
            log.warning("enforcement restricted to '%s': %s", stance, why)

    def _just_tainted(self) -> bool:
        """Whether this process set the taint within the last RENEWED_AFTER_S."""
        return self._tainted_at is not None and 0.0 <= self._means.clock() - self._tainted_at < RENEWED_AFTER_S

    def _with_what_is_undone(self, plan: Plan) -> tuple[Step, ...]:
        """The plan's steps, with a failed scheduling step of an earlier plan, which is retried until it succeeds or the
        opposite is decided."""
        undone, self._undone = self._undone, None
        if undone is None or any(isinstance(step, SchedulingStep) for step in plan.steps):
            return plan.steps
        return (undone, *plan.steps) if plan.scheduling_disabled in (None, undone.disable) else plan.steps

    async def budget(self) -> Budget:
        """The node's eviction limits with its recent evictions. Raises AuditError."""
        return Budget(self._means.limits, await _in_thread(self._means.recent.past))

    async def knobs(self, state: State, *, wanted: bool) -> Knobs:
        """Read cpu.weight and memory.high of the pods if `wanted`, or if any of them has to be restored. Raises
        AuditError."""
        return await _in_thread(self._knobs, state, wanted)

    def _knobs(self, state: State, wanted: bool) -> Knobs:
        remembered = [each for each in self._means.audit.remembered().values() if not each.container_id]
        if not wanted and not remembered:
            return {}
        return read_knobs((pod for pod in state.pods if pod.containers), self._means.groups, remembered)

    async def tainted(self) -> bool:
        """Whether the node may have a taint that the agent set. Raises AuditError."""
        return bool(await _in_thread(self._means.audit.kept, TAINTED_KEY, bool))

    async def _situation(self, state: State, *, owing: int) -> _EffectiveLevel:
        if not self._permissions.enforce:
            left = f"; {owing} changes of an earlier run stay until load-watcher agent restore is run" if owing else ""
            return _EffectiveLevel(EnforcementLevel.PREVIEW, f"the agent runs in preview mode{left}")
        others = await _in_thread(self._others, state)
        if others and not self._permissions.beside_others:
            why = f"the same control groups are managed by {', '.join(others)}"
            return _EffectiveLevel(EnforcementLevel.RESTORE_ALL if owing else EnforcementLevel.PREVIEW, why)
        cluster = self._means.cluster
        if cluster is None:
            return _EffectiveLevel(EnforcementLevel.THROTTLE_ONLY, "no Kubernetes API is configured")
        control = await cluster.controls.look()
        await self._remember_brake(cluster.controls.last)
        return _of(control)

    def _others(self, state: State) -> tuple[str, ...]:
        """Descriptions of other agents that manage the control groups."""
        found = conflicting_agents(state.pods, process_names(self._permissions.proc))
        return found if self._permissions.claim is None else (*found, *self._permissions.claim.others())

    async def _remember_brake(self, brake: EnforcementSwitch | None) -> None:
        """Save the value of `enforcement`, because the API may be unavailable after a restart."""
        if brake == self._brake:
            return
        log.info("enforcement in the cluster's ConfigMap is %s", brake or "not set")
        self._brake = brake
        try:
            await _in_thread(self._means.audit.keep, ENFORCEMENT_KEY, brake or EnforcementSwitch.ON)
        except AuditError as error:
            log.warning("%s", _told(error))

    # --- restoring all values ----------------------------------------------------------------------------------------

    async def restore_all(self, *, reason: str, cycle: int = 0) -> tuple[RestoreResult, ...]:
        """Restore all original values and remove the taint. Raises AuditError if that cannot be recorded."""
        situation, state = _EffectiveLevel(EnforcementLevel.RESTORE_ALL, reason), State(self._means.clock())
        return await _Run(self._means, situation, state, cycle, _always).put_everything_back()

    async def leave(self, on_exit: OnExit) -> tuple[RestoreResult, ...]:
        """Restore all values at shutdown if `on_exit` is RESTORE. Raises AuditError."""
        return await self.restore_all(reason="the agent shuts down") if on_exit is OnExit.RESTORE else ()

    # --- effects -----------------------------------------------------------------------------------------------------

    async def look_back(self, state: State) -> tuple[AuditEntry, ...]:
        """Measure the release of earlier steps with this state, and delete stored original values of groups that have
        ended. Must be called once per cycle, before `run`. Raises AuditError."""
        return await _in_thread(self._look_back, state)

    def _look_back(self, state: State) -> tuple[AuditEntry, ...]:
        audit = self._means.audit
        seen = {each.id: Quota(each.quota, each.period) for pod in state.pods for each in pod.containers}
        self._means.quotas.forget_ended(seen.keys() | {pod.uid for pod in state.pods if pod.containers})
        self._means.quotas.let_go(seen)
        waiting = audit.unmeasured(since=state.time - MEASURED_FOR_S, before=state.time)
        effects = [(deed, released) for deed in waiting if (released := measured(deed, state)) is not None]
        if not effects:
            return ()
        with audit.together():
            return tuple(audit.measured(deed, released, now=state.time) for deed, released in effects)


async def _always(_: Step, __: Sequence[Step]) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class _EffectiveLevel:
    """Enforcement level of this cycle with its reason. `away`: the API does not respond, and gets no more requests."""

    stance: EnforcementLevel
    why: str = ""
    away: bool = False


def _of(control: ControlData) -> _EffectiveLevel:
    if control.enforcement is EnforcementSwitch.RESTORE:
        return _EffectiveLevel(
            EnforcementLevel.RESTORE_ALL, "enforcement is restore in the cluster's ConfigMap", control.away
        )
    if control.enforcement is EnforcementSwitch.OFF:
        return _EffectiveLevel(
            EnforcementLevel.RESTORE_ONLY,
            control.problem or "enforcement is off in the cluster's ConfigMap",
            control.away,
        )
    if control.problem:
        return _EffectiveLevel(EnforcementLevel.THROTTLE_ONLY, control.problem, control.away)
    return _EffectiveLevel(EnforcementLevel.ENFORCE)


@dataclass(slots=True)
class _Run:
    """State of one plan during its execution."""

    means: _Means
    situation: _EffectiveLevel
    state: State
    cycle: int
    needed: Needed
    just_tainted: bool = False
    results: list[StepResult] = field(default_factory=list)
    acting: StepResult | None = None
    """Result of the current step from the moment when it may have been carried out. If a later operation fails, the
    step still counts."""

    @property
    def why(self) -> str:
        return self.situation.why

    @property
    def stance(self) -> EnforcementLevel:
        return self.situation.stance

    async def carry_out(self, steps: Sequence[Step]) -> PlanReport:
        """Carry out the steps and return the results, including the steps before an unexpected error."""
        trouble, fault = "", False
        try:
            if self.stance is EnforcementLevel.RESTORE_ALL:
                await self.put_everything_back()
            for step in steps:
                self.acting = None
                self.results.append(await self._one(step))
        except AuditError as error:
            self._count_on_acting()
            trouble = _told(error)
            log.error("no further steps in this cycle, because the audit file failed: %s", trouble)
        except Exception as error:
            self._count_on_acting()
            trouble, fault = f"internal error of the agent: {error!r}", True
            log.exception("no further steps in this cycle, because of an internal error")
        try:
            await self._tell_node()
        except Exception:  # completed steps must be returned even if the Event fails
            log.exception("writing the Event about the evictions failed")
        return PlanReport(self.stance, self.why, tuple(self.results), trouble, fault)

    def _count_on_acting(self) -> None:
        if self.acting is not None:
            self.results.append(self.acting)
            self.acting = None

    async def put_everything_back(self) -> tuple[RestoreResult, ...]:
        """Restore all original values, and remove the taint if the agent set it. Raises AuditError."""
        found = await _in_thread(self.means.quotas.put_all_back, reason=self.why, cycle=self.cycle)
        tainted = await _in_thread(self.means.audit.kept, TAINTED_KEY, bool)
        if self.means.cluster is not None and tainted and not self.situation.away:
            self.results.append(await self._scheduling(SchedulingStep(disable=False, reason=self.why)))
        return found

    async def _one(self, step: Step) -> StepResult:
        """Carry out one step if it is allowed and needed. Raises AuditError."""
        if why := self._forbidden(step):
            return StepResult(step, StepOutcome.NOT_ALLOWED, why)
        if why := await self.needed(step, [each.step for each in self.results if each.booked]):
            return StepResult(step, StepOutcome.NOT_NEEDED, why)
        if isinstance(step, SchedulingStep) and step.disable and self.just_tainted:
            return StepResult(step, StepOutcome.NOT_NEEDED, "new pods are kept away already")
        if isinstance(step, SchedulingStep):
            return (
                StepResult(step, StepOutcome.FAILED, self.why) if self.situation.away else await self._scheduling(step)
            )
        if isinstance(step, EvictStep):
            return await self._evict(step)
        if isinstance(step, ReclaimStep):
            return await self._page_cache(step)
        return await self._change(step)

    def _forbidden(self, step: Step) -> str:
        gives_back = step.kind == "restore" or (isinstance(step, SchedulingStep) and not step.disable)
        through_the_api = isinstance(step, (EvictStep, SchedulingStep))
        forbidden = (
            self.stance is EnforcementLevel.RESTORE_ALL
            or (self.stance is EnforcementLevel.RESTORE_ONLY and not gives_back)
            or (self.stance is EnforcementLevel.THROTTLE_ONLY and isinstance(step, EvictStep))
            or (self.means.cluster is None and through_the_api)
        )
        return self.why if forbidden else ""

    def _deed(self, step: PodStep, **more: object) -> AuditEntry:
        deed = AuditEntry(
            time=self.means.clock(),
            kind=step.kind,
            cycle=self.cycle,
            pod=step.pod,
            uid=step.uid,
            metric=step.metric,
            reason=step.reason,
            planned=step.released,
            used=used_by(step, self.state),
        )
        return replace(deed, **more)  # type: ignore[arg-type]  # the names of its fields

    # --- quotas, knobs and memory -------------------------------------------------------------------------------------

    async def _change(self, step: QuotaStep | KnobStep) -> StepResult:
        deed = with_change(step, self._deed(step))
        changed = await _in_thread(self.means.quotas.carry_out, step, deed)
        self.acting = changed.result
        if changed.first or changed.last:
            took, gave = EVENTS[CPU_MAX if isinstance(step, QuotaStep) else step.knob]
            message = f"{changed.result.text} ({step.reason})"
            if isinstance(step, QuotaStep):
                message = f"{step.container}: {message}"
            await self._tell_pod(step, reason=took if changed.first else gave, message=message, warning=changed.first)
        return changed.result

    async def _page_cache(self, step: ReclaimStep) -> StepResult:
        result = await _in_thread(self._reclaim, step)
        if result.fate is StepOutcome.DONE and self.means.cluster is not None and not self.situation.away:
            about, message = (
                EventSubject("Pod", step.pod, step.uid),
                f"page cache reclaimed, {result.text}: {step.reason}",
            )
            await self.means.cluster.tell_seldom(about, reason="PageCacheReclaimed", message=message)
        return result

    def _reclaim(self, step: ReclaimStep) -> StepResult:
        audit, clock = self.means.audit, self.means.clock
        try:
            path = self.means.groups.find(step.uid)
        except CgroupError as error:
            return StepResult(step, StepOutcome.FAILED, str(error))
        if path is None:
            return StepResult(step, StepOutcome.GONE, "the pod is gone")
        begun = audit.begin(self._deed(step, after={"reclaim": step.bytes}))
        try:
            with self.means.groups.open(path) as group:
                less = group.reclaim(step.bytes)
        except CgroupError as error:
            audit.finish(begun, AuditOutcome.FAILED, now=clock(), message=str(error))
            return StepResult(step, StepOutcome.FAILED, str(error), begun.id)
        text = f"{less} bytes less"
        audit.finish(begun, AuditOutcome.DONE, now=clock(), message=text)
        return StepResult(step, StepOutcome.DONE, text, begun.id)

    # --- evictions ---------------------------------------------------------------------------------------------------

    async def _evict(self, step: EvictStep) -> StepResult:
        """Check the local limits, the pod in the API, and the cluster's budget; then record the eviction and request
        it."""
        audit, cluster, limits, now = self.means.audit, self.means.cluster, self.means.limits, self.means.clock()
        assert cluster is not None  # _forbidden guarantees it
        if why := limits.refusal(await _in_thread(self.means.recent.past), step):
            return StepResult(step, StepOutcome.NOT_ALLOWED, why)
        try:
            objection = await cluster.objection(step)
        except KubeUnreachable as error:  # each further eviction would run into the same timeout
            self.situation = _EffectiveLevel(
                EnforcementLevel.THROTTLE_ONLY, f"the Kubernetes API is unreachable: {error}", away=True
            )
            return StepResult(step, StepOutcome.NOT_ALLOWED, self.why)
        if objection is not None:
            return StepResult(step, *objection)
        if why := await cluster.controls.take(now=now):
            return StepResult(step, StepOutcome.NOT_ALLOWED, why)
        deed = self._deed(step, owner=step.owner, after={"graceSeconds": step.grace_seconds})
        begun = await _in_thread(audit.begin, deed)
        self.means.recent.note(begun.id)
        self.acting = StepResult(step, StepOutcome.UNANSWERED, "the eviction may have been requested", begun.id)
        fate, text = await cluster.evict(step)
        result = self.acting = StepResult(step, fate, text, begun.id)
        outcome = OUTCOMES.get(fate, AuditOutcome.FAILED)
        await _in_thread(audit.finish, begun, outcome, now=self.means.clock(), message=text)
        if fate is StepOutcome.DONE:
            message = f"evicted from {cluster.node}: {step.reason}"
            await self._tell_pod(step, reason="Evicted", message=message, warning=True)
        return result

    # --- scheduling --------------------------------------------------------------------------------------------------

    async def _scheduling(self, step: SchedulingStep) -> StepResult:
        """Set or remove taint and condition of the node. Raises AuditError."""
        audit, cluster = self.means.audit, self.means.cluster
        assert cluster is not None  # _forbidden guarantees it
        after = {"schedulingDisabled": step.disable}
        deed = AuditEntry(time=self.means.clock(), kind=step.kind, cycle=self.cycle, reason=step.reason, after=after)
        begun = await _in_thread(audit.begin, deed)
        await _in_thread(audit.keep, TAINTED_KEY, True)
        changed, wrong = await cluster.set_scheduling(step)
        outcome = AuditOutcome.FAILED if wrong else AuditOutcome.DONE
        await _in_thread(audit.finish, begun, outcome, now=self.means.clock(), message=wrong)
        if not wrong and not step.disable:
            await _in_thread(audit.keep, TAINTED_KEY, False)
        if changed:
            reason = "SchedulingDisabled" if step.disable else "SchedulingEnabled"
            what = "new pods are kept away" if step.disable else "new pods are allowed again"
            await cluster.tell(None, reason=reason, message=f"{what}: {step.reason}", warning=step.disable)
        return StepResult(step, StepOutcome.FAILED if wrong else StepOutcome.DONE, wrong, begun.id)

    # --- Events ------------------------------------------------------------------------------------------------------

    async def _tell_pod(self, step: PodStep, *, reason: str, message: str, warning: bool) -> None:
        if self.means.cluster is not None and not self.situation.away:
            about = EventSubject("Pod", step.pod, step.uid)
            await self.means.cluster.tell(about, reason=reason, message=message, warning=warning)

    async def _tell_node(self) -> None:
        """Write one Event about all evictions of the plan."""
        evicted = [
            each.step for each in self.results if each.fate is StepOutcome.DONE and isinstance(each.step, EvictStep)
        ]
        if self.means.cluster is not None and evicted:
            reasons = sorted({each.reason for each in evicted})
            message = f"evicted {', '.join(each.pod for each in evicted)}: {'; '.join(reasons)}"
            await self.means.cluster.tell(None, reason="PodsEvicted", message=message)


async def _in_thread(act: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """Run a blocking function in a thread. If the caller is cancelled, it waits for the thread to finish, so that no
    control group is written after the values have been restored at shutdown."""
    task = asyncio.ensure_future(asyncio.to_thread(act, *arguments, **more))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("an operation in progress at the cancellation failed: %s", error)
        raise


def _told(error: AuditError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)


def would(step: Step) -> str:
    """Describe what a step would do, for preview. Pure."""
    if isinstance(step, SchedulingStep):
        return "would keep new pods away" if step.disable else "would allow new pods again"
    if isinstance(step, EvictStep):
        return f"would evict {step.pod} with a grace period of {step.grace_seconds:.0f} s"
    if isinstance(step, ReclaimStep):
        return f"would reclaim up to {step.bytes} bytes of page cache from {step.pod}"
    if isinstance(step, KnobStep):
        return f"would set {step.knob} of {step.pod} to {'unlimited' if step.after is None else step.after}"
    quota = "unlimited" if step.after is None else f"{step.after} µs per {step.period} µs"
    return f"would set the CPU quota of {step.pod} ({step.container}) to {quota}"
