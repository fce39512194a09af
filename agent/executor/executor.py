"""Carrying out a plan, step by step: audit first, act second, and one that fails does not stop the rest.

    stance ─▶ each step: allowed? ─▶ still needed? ─▶ audit ─▶ act ─▶ audit ─▶ Event

What may be done at all (the stance) is found out anew for every plan: preview unless enforcing was asked for; preview
beside another agent that manages the same groups; what the cluster's ConfigMap says; quotas alone while the API is
away. If the audit cannot be written nothing more is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from agent.audit.database import AuditError
from agent.audit.entries import Deed, Outcome
from agent.audit.log import Audit
from agent.cgroups.base import Quota
from agent.cgroups.errors import CgroupError
from agent.cgroups.knobs import CPU_MAX, CPU_WEIGHT, MEMORY_HIGH
from agent.decision.eviction_limits import Budget
from agent.decision.plan import Plan
from agent.executor.cluster import Cluster
from agent.executor.conflicts import process_names, rivals
from agent.executor.control_map import Control, Enforcement
from agent.executor.effects import measured, used_by
from agent.executor.groups import Groups
from agent.executor.knob_writer import PutBack, Quotas, told_of
from agent.executor.permissions import OnExit, Permissions, _Means
from agent.executor.pod_knobs import look_at
from agent.executor.recent_evictions import RecentEvictions
from agent.executor.report import Fate, Report, Result, Stance
from agent.model import EvictStep, Knobs, KnobStep, PodStep, QuotaStep, ReclaimStep, SchedulingStep, State, Step
from watcher.core.kubernetes.errors import KubeUnreachable
from watcher.platform.kube.events import About

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Needed = Callable[[Step, Sequence[Step]], Awaitable[str]]
"""Reads usage again and says why a step is not needed any more, "" if it is; gets the steps that were carried out.
Raises nothing."""

MEASURED_FOR_S = 120.0
"""A deed of which no effect was seen by then has none that could be told from others'."""
RENEWED_AFTER_S = 300.0
"""A rule that stays triggered says so in every cycle; whether the taint is still there is looked after this often."""
ENFORCEMENT_KEPT = "enforcement"
TAINTED_KEPT = "scheduling disabled"
EVENTS = {
    CPU_MAX: ("CpuThrottled", "CpuRestored"),
    CPU_WEIGHT: ("CpuWeightLowered", "CpuWeightRestored"),
    MEMORY_HIGH: ("MemoryHeldBack", "MemoryRestored"),
}
"""The reasons of Events, by what is changed: when it is first taken, and when it is back."""
OUTCOMES = {
    Fate.DONE: Outcome.DONE,
    Fate.GONE: Outcome.GONE,
    Fate.PROTECTED: Outcome.PROTECTED,
    Fate.UNANSWERED: Outcome.UNANSWERED,
}


class Executor:
    """Carries out plans on one node. Without a `cluster` there are only quotas: nothing is evicted or tainted, and no
    ConfigMap is asked. Its methods must not overlap; one that is cancelled ends once what it is writing is written.
    Making one may raise AuditError."""

    def __init__(
        self,
        audit: Audit,
        groups: Groups,
        *,
        cluster: Cluster | None = None,
        permissions: Permissions | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._permissions = permissions or Permissions()
        quotas, limits = Quotas(audit, groups, clock=clock), self._permissions.limits
        recent = RecentEvictions(audit, window=limits.window, clock=clock, monotonic=monotonic)
        self._means = _Means(audit, groups, quotas, cluster, limits, recent, clock)
        self._brake: Enforcement | None = None
        self._said = Stance.ENFORCE
        self._undone: SchedulingStep | None = None
        self._tainted_at: float | None = None
        if cluster is not None:
            cluster.controls.last = self._brake = audit.kept(ENFORCEMENT_KEPT, Enforcement)

    # --- one plan ----------------------------------------------------------------------------------------------------

    async def run(self, plan: Plan, *, state: State, cycle: int, needed: Needed) -> Report:
        """Carry out the steps of a plan in their order. `state` is what it was made from: what pods used before. Raises
        nothing: what fails is in the report."""
        steps = self._with_what_is_undone(plan)
        try:
            quotas, tainted = await _in_thread(self._means.audit.owed), await self.tainted()
        except AuditError as error:
            return Report(Stance.PREVIEW, "the audit cannot be read", (), _told(error))
        owing = quotas + tainted
        if tainted and plan.scheduling_disabled is False and not any(isinstance(s, SchedulingStep) for s in steps):
            steps = (SchedulingStep(False, "no rule asks for the taint that an earlier run left"), *steps)
        if not steps and not owing:
            return Report(Stance.ENFORCE if self._permissions.enforce else Stance.PREVIEW)
        situation = await self._situation(state, owing=owing)
        if situation.stance is Stance.PREVIEW:
            results = tuple(Result(step, Fate.WOULD, would(step)) for step in steps)
            self._say(situation.stance, situation.why)
            return Report(situation.stance, situation.why, results)
        run = _Run(self._means, situation, state, cycle, needed, just_tainted=self._just_tainted())
        report = await run.carry_out(steps)
        self._say(report.stance, report.why)
        for each in report.results:
            if isinstance(each.step, SchedulingStep):
                self._undone = each.step if each.fate is Fate.FAILED else None
                if each.fate is Fate.DONE:
                    self._tainted_at = self._means.clock() if each.step.disable else None
        return report

    def _say(self, stance: Stance, why: str) -> None:
        """In the log, once: that less may be done than was asked for, and that all may be done again."""
        if not self._permissions.enforce or stance is self._said:
            return
        self._said = stance
        if stance is Stance.ENFORCE:
            log.info("what is decided is done again, evictions too")
        else:
            log.warning("not all that is decided is done: %s, for %s", stance, why)

    def _just_tainted(self) -> bool:
        """Whether this process set the taint a moment ago."""
        return self._tainted_at is not None and 0.0 <= self._means.clock() - self._tainted_at < RENEWED_AFTER_S

    def _with_what_is_undone(self, plan: Plan) -> tuple[Step, ...]:
        """A taint that could not be set or taken off is tried again until it can, or until the opposite is wanted."""
        undone, self._undone = self._undone, None
        if undone is None or any(isinstance(step, SchedulingStep) for step in plan.steps):
            return plan.steps
        return (undone, *plan.steps) if plan.scheduling_disabled in (None, undone.disable) else plan.steps

    async def budget(self) -> Budget:
        """What this node may evict now, by its own limits. Raises AuditError."""
        return Budget(self._means.limits, await _in_thread(self._means.recent.past))

    async def knobs(self, state: State, *, wanted: bool) -> Knobs:
        """What the groups of the pods have besides quotas, if that is `wanted` or something of it is to be put back.
        Raises AuditError."""
        return await _in_thread(self._knobs, state, wanted)

    def _knobs(self, state: State, wanted: bool) -> Knobs:
        remembered = [each for each in self._means.audit.remembered().values() if not each.container_id]
        if not wanted and not remembered:
            return {}
        return look_at((pod for pod in state.pods if pod.containers), self._means.groups, remembered)

    async def tainted(self) -> bool:
        """Whether the node may have a taint of the agent's. Raises AuditError."""
        return bool(await _in_thread(self._means.audit.kept, TAINTED_KEPT, bool))

    async def _situation(self, state: State, *, owing: int) -> _Situation:
        if not self._permissions.enforce:
            left = f"; {owing} changes of an earlier run stay, until load-watcher agent restore" if owing else ""
            return _Situation(Stance.PREVIEW, f"enforcing was not asked for{left}")
        others = await _in_thread(self._others, state)
        if others and not self._permissions.beside_others:
            why = f"the same control groups are managed by {', '.join(others)}"
            return _Situation(Stance.RESTORE_ALL if owing else Stance.PREVIEW, why)
        cluster = self._means.cluster
        if cluster is None:
            return _Situation(Stance.THROTTLE_ONLY, "there is no Kubernetes API")
        control = await cluster.controls.look()
        await self._remember_brake(cluster.controls.last)
        return _of(control)

    def _others(self, state: State) -> tuple[str, ...]:
        """Who else manages the control groups, in words."""
        found = rivals(state.pods, process_names(self._permissions.proc))
        return found if self._permissions.claim is None else (*found, *self._permissions.claim.others())

    async def _remember_brake(self, brake: Enforcement | None) -> None:
        """Over a restart too, for the API may be away then."""
        if brake == self._brake:
            return
        log.info("enforcement in this cluster is %s", brake or "not said")
        self._brake = brake
        try:
            await _in_thread(self._means.audit.keep, ENFORCEMENT_KEPT, brake or Enforcement.ON)
        except AuditError as error:
            log.warning("%s", _told(error))

    # --- everything back ---------------------------------------------------------------------------------------------

    async def restore_all(self, *, reason: str, cycle: int = 0) -> tuple[PutBack, ...]:
        """Every quota back to what it was, and new pods welcome again. Raises AuditError if that cannot be recorded."""
        situation, state = _Situation(Stance.RESTORE_ALL, reason), State(self._means.clock())
        return await _Run(self._means, situation, state, cycle, _always).put_everything_back()

    async def leave(self, on_exit: OnExit) -> tuple[PutBack, ...]:
        """The last thing to be done before the process ends. Raises AuditError."""
        return await self.restore_all(reason="the agent ends") if on_exit is OnExit.RESTORE else ()

    # --- effects -----------------------------------------------------------------------------------------------------

    async def look_back(self, state: State) -> tuple[Deed, ...]:
        """Held against this state: what the deeds of the cycle before released. Quotas of containers that have ended
        are forgotten. To be called once a cycle, before `run`. Raises AuditError."""
        return await _in_thread(self._look_back, state)

    def _look_back(self, state: State) -> tuple[Deed, ...]:
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
class _Situation:
    """How much may be done in this cycle, why so, and whether the API is away: then nothing is asked of it."""

    stance: Stance
    why: str = ""
    away: bool = False


def _of(control: Control) -> _Situation:
    if control.enforcement is Enforcement.RESTORE:
        return _Situation(Stance.RESTORE_ALL, "the cluster's ConfigMap says restore", control.away)
    if control.enforcement is Enforcement.OFF:
        return _Situation(Stance.RESTORE_ONLY, control.problem or "the cluster's ConfigMap says off", control.away)
    if control.problem:
        return _Situation(Stance.THROTTLE_ONLY, control.problem, control.away)
    return _Situation(Stance.ENFORCE)


@dataclass(slots=True)
class _Run:
    """One plan being carried out."""

    means: _Means
    situation: _Situation
    state: State
    cycle: int
    needed: Needed
    just_tainted: bool = False
    results: list[Result] = field(default_factory=list)
    acting: Result | None = None
    """What is known of a step that is being carried out, from when it may have been done: whatever fails after that,
    it is counted on."""

    @property
    def why(self) -> str:
        return self.situation.why

    @property
    def stance(self) -> Stance:
        return self.situation.stance

    async def carry_out(self, steps: Sequence[Step]) -> Report:
        """All that can be, with what became of each: also of those before a failure that nobody thought of."""
        trouble, fault = "", False
        try:
            if self.stance is Stance.RESTORE_ALL:
                await self.put_everything_back()
            for step in steps:
                self.acting = None
                self.results.append(await self._one(step))
        except AuditError as error:
            self._count_on_acting()
            trouble = _told(error)
            log.error("nothing more is done in this cycle: %s", trouble)
        except Exception as error:
            self._count_on_acting()
            trouble, fault = f"a fault of the agent's own: {error!r}", True
            log.exception("nothing more is done in this cycle")
        try:
            await self._tell_node()
        except Exception:  # what was done is to be counted on, told or not
            log.exception("the Event of all evictions is not written")
        return Report(self.stance, self.why, tuple(self.results), trouble, fault)

    def _count_on_acting(self) -> None:
        if self.acting is not None:
            self.results.append(self.acting)
            self.acting = None

    async def put_everything_back(self) -> tuple[PutBack, ...]:
        """Quotas, and the taint if there is one of ours. Raises AuditError."""
        found = await _in_thread(self.means.quotas.put_all_back, reason=self.why, cycle=self.cycle)
        tainted = await _in_thread(self.means.audit.kept, TAINTED_KEPT, bool)
        if self.means.cluster is not None and tainted and not self.situation.away:
            self.results.append(await self._scheduling(SchedulingStep(disable=False, reason=self.why)))
        return found

    async def _one(self, step: Step) -> Result:
        """One step. Raises AuditError."""
        if why := self._forbidden(step):
            return Result(step, Fate.NOT_ALLOWED, why)
        if why := await self.needed(step, [each.step for each in self.results if each.booked]):
            return Result(step, Fate.NOT_NEEDED, why)
        if isinstance(step, SchedulingStep) and step.disable and self.just_tainted:
            return Result(step, Fate.NOT_NEEDED, "new pods are kept away already")
        if isinstance(step, SchedulingStep):
            return Result(step, Fate.FAILED, self.why) if self.situation.away else await self._scheduling(step)
        if isinstance(step, EvictStep):
            return await self._evict(step)
        if isinstance(step, ReclaimStep):
            return await self._page_cache(step)
        return await self._change(step)

    def _forbidden(self, step: Step) -> str:
        gives_back = step.kind == "restore" or (isinstance(step, SchedulingStep) and not step.disable)
        through_the_api = isinstance(step, (EvictStep, SchedulingStep))
        forbidden = (
            self.stance is Stance.RESTORE_ALL
            or (self.stance is Stance.RESTORE_ONLY and not gives_back)
            or (self.stance is Stance.THROTTLE_ONLY and isinstance(step, EvictStep))
            or (self.means.cluster is None and through_the_api)
        )
        return self.why if forbidden else ""

    def _deed(self, step: PodStep, **more: object) -> Deed:
        deed = Deed(
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

    async def _change(self, step: QuotaStep | KnobStep) -> Result:
        deed = told_of(step, self._deed(step))
        changed = await _in_thread(self.means.quotas.carry_out, step, deed)
        self.acting = changed.result
        if changed.first or changed.last:
            took, gave = EVENTS[CPU_MAX if isinstance(step, QuotaStep) else step.knob]
            message = f"{changed.result.text} ({step.reason})"
            if isinstance(step, QuotaStep):
                message = f"{step.container}: {message}"
            await self._tell_pod(step, reason=took if changed.first else gave, message=message, warning=changed.first)
        return changed.result

    async def _page_cache(self, step: ReclaimStep) -> Result:
        result = await _in_thread(self._reclaim, step)
        if result.fate is Fate.DONE and self.means.cluster is not None and not self.situation.away:
            about, message = About("Pod", step.pod, step.uid), f"page cache taken, {result.text}: {step.reason}"
            await self.means.cluster.tell_seldom(about, reason="PageCacheReclaimed", message=message)
        return result

    def _reclaim(self, step: ReclaimStep) -> Result:
        audit, clock = self.means.audit, self.means.clock
        try:
            path = self.means.groups.find(step.uid)
        except CgroupError as error:
            return Result(step, Fate.FAILED, str(error))
        if path is None:
            return Result(step, Fate.GONE, "the pod is gone")
        begun = audit.begin(self._deed(step, after={"reclaim": step.bytes}))
        try:
            with self.means.groups.open(path) as group:
                less = group.reclaim(step.bytes)
        except CgroupError as error:
            audit.finish(begun, Outcome.FAILED, now=clock(), message=str(error))
            return Result(step, Fate.FAILED, str(error), begun.id)
        text = f"{less} bytes less"
        audit.finish(begun, Outcome.DONE, now=clock(), message=text)
        return Result(step, Fate.DONE, text, begun.id)

    # --- evictions ---------------------------------------------------------------------------------------------------

    async def _evict(self, step: EvictStep) -> Result:
        """Ask whoever can say no, from the nearest to the farthest; then write it down, and do it."""
        audit, cluster, limits, now = self.means.audit, self.means.cluster, self.means.limits, self.means.clock()
        assert cluster is not None  # _forbidden saw to it
        if why := limits.refusal(await _in_thread(self.means.recent.past), step):
            return Result(step, Fate.NOT_ALLOWED, why)
        try:
            objection = await cluster.objection(step)
        except KubeUnreachable as error:  # each further victim would wait for it as long as this one did
            self.situation = _Situation(Stance.THROTTLE_ONLY, f"the Kubernetes API went away: {error}", away=True)
            return Result(step, Fate.NOT_ALLOWED, self.why)
        if objection is not None:
            return Result(step, *objection)
        if why := await cluster.controls.take(now=now):
            return Result(step, Fate.NOT_ALLOWED, why)
        deed = self._deed(step, owner=step.owner, after={"graceSeconds": step.grace_seconds})
        begun = await _in_thread(audit.begin, deed)
        self.means.recent.note(begun.id)
        self.acting = Result(step, Fate.UNANSWERED, "it may have been asked for", begun.id)
        fate, text = await cluster.evict(step)
        result = self.acting = Result(step, fate, text, begun.id)
        outcome = OUTCOMES.get(fate, Outcome.FAILED)
        await _in_thread(audit.finish, begun, outcome, now=self.means.clock(), message=text)
        if fate is Fate.DONE:
            message = f"evicted from {cluster.node}: {step.reason}"
            await self._tell_pod(step, reason="Evicted", message=message, warning=True)
        return result

    # --- scheduling --------------------------------------------------------------------------------------------------

    async def _scheduling(self, step: SchedulingStep) -> Result:
        """Taint and condition of the node. Raises AuditError."""
        audit, cluster = self.means.audit, self.means.cluster
        assert cluster is not None  # _forbidden saw to it
        after = {"schedulingDisabled": step.disable}
        deed = Deed(time=self.means.clock(), kind=step.kind, cycle=self.cycle, reason=step.reason, after=after)
        begun = await _in_thread(audit.begin, deed)
        await _in_thread(audit.keep, TAINTED_KEPT, True)
        changed, wrong = await cluster.set_scheduling(step)
        outcome = Outcome.FAILED if wrong else Outcome.DONE
        await _in_thread(audit.finish, begun, outcome, now=self.means.clock(), message=wrong)
        if not wrong and not step.disable:
            await _in_thread(audit.keep, TAINTED_KEPT, False)
        if changed:
            reason = "SchedulingDisabled" if step.disable else "SchedulingEnabled"
            what = "new pods are kept away" if step.disable else "new pods are welcome again"
            await cluster.tell(None, reason=reason, message=f"{what}: {step.reason}", warning=step.disable)
        return Result(step, Fate.FAILED if wrong else Fate.DONE, wrong, begun.id)

    # --- telling -----------------------------------------------------------------------------------------------------

    async def _tell_pod(self, step: PodStep, *, reason: str, message: str, warning: bool) -> None:
        if self.means.cluster is not None and not self.situation.away:
            about = About("Pod", step.pod, step.uid)
            await self.means.cluster.tell(about, reason=reason, message=message, warning=warning)

    async def _tell_node(self) -> None:
        """One Event of all evictions."""
        evicted = [each.step for each in self.results if each.fate is Fate.DONE and isinstance(each.step, EvictStep)]
        if self.means.cluster is not None and evicted:
            reasons = sorted({each.reason for each in evicted})
            message = f"evicted {', '.join(each.pod for each in evicted)}: {'; '.join(reasons)}"
            await self.means.cluster.tell(None, reason="PodsEvicted", message=message)


async def _in_thread(act: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
    """What blocks, in a thread. Who is cancelled meanwhile waits for its end: nothing must be written to a control
    group behind the back of whoever puts everything back next."""
    task = asyncio.ensure_future(asyncio.to_thread(act, *arguments, **more))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("what was being done when it was cancelled failed: %s", error)
        raise


def _told(error: AuditError) -> str:
    return f"{error}. {error.hint}" if error.hint else str(error)


def would(step: Step) -> str:
    """What a step would do, for preview. Pure."""
    if isinstance(step, SchedulingStep):
        return "would keep new pods away" if step.disable else "would let new pods come again"
    if isinstance(step, EvictStep):
        return f"would evict {step.pod} with {step.grace_seconds:.0f} s of grace"
    if isinstance(step, ReclaimStep):
        return f"would take up to {step.bytes} bytes of page cache off {step.pod}"
    if isinstance(step, KnobStep):
        return f"would make the {step.knob} of {step.pod} {'unlimited' if step.after is None else step.after}"
    quota = "no CPU quota" if step.after is None else f"a CPU quota of {step.after} of {step.period} µs"
    return f"would give {step.pod} ({step.container}) {quota}"
