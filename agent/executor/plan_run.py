"""Carries out the steps of one plan in order, and audits each step before and after it.

`EffectiveLevel` decides which steps are allowed; `PlanRun` holds the state and the results of one plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ParamSpec, TypeVar

from agent.audit.database import AuditError
from agent.audit.log import Audit, AuditEntry, AuditOutcome
from agent.cgroups.detection import KubeletGroups
from agent.cgroups.errors import CgroupError
from agent.cgroups.values import CPU_MAX, CPU_WEIGHT, MEMORY_HIGH
from agent.decision.eviction_limits import EvictionLimits
from agent.executor.cluster import ClusterActions
from agent.executor.enforcement_switch import ControlData, EnforcementSwitch
from agent.executor.knob_writer import KnobWriter, RestoreResult, with_change
from agent.executor.report import EnforcementLevel, PlanReport, RecentEvictions, StepOutcome, StepResult, used_by
from agent.model import Eviction, KnobChange, PageCacheReclaim, QuotaChange, SchedulingChange, State, Step
from watcher.core.kubernetes.errors import KubeUnreachable
from watcher.core.messages import with_hint
from watcher.platform.kube.events import EventSubject
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

Needed = Callable[[Step, Sequence[Step]], Awaitable[str]]
"""Reads the usage again and returns why a step is not needed any more, "" if it is needed. Arguments: the step, and the
steps carried out so far."""

TAINTED_KEY = "scheduling disabled"
EVENTS = {
    CPU_MAX: ("CpuThrottled", "CpuRestored"),
    CPU_WEIGHT: ("CpuWeightLowered", "CpuWeightRestored"),
    MEMORY_HIGH: ("MemoryHeldBack", "MemoryRestored"),
}
"""Event reasons by knob: when the value is first lowered, and when the original value is restored."""
EVICTED_NOBODY = frozenset({StepOutcome.GONE, StepOutcome.PROTECTED, StepOutcome.FAILED})
"""Results of an eviction request that evicted no pod, so that its token of the cluster's budget is returned."""


@dataclass(frozen=True, slots=True)
class ExecutorMeans:
    """Dependencies for carrying out steps."""

    audit: Audit
    groups: KubeletGroups
    quotas: KnobWriter
    cluster: ClusterActions | None
    limits: EvictionLimits
    recent: RecentEvictions
    clock: Callable[[], float]
    errors: RepeatedErrors


@dataclass(frozen=True, slots=True)
class EffectiveLevel:
    """Enforcement level of this cycle with its reason. `away`: the API does not respond, and gets no more requests."""

    stance: EnforcementLevel
    why: str = ""
    away: bool = False


def level_of(control: ControlData) -> EffectiveLevel:
    """Derive the enforcement level from the ConfigMap that controls all agents."""
    if control.enforcement is EnforcementSwitch.RESTORE:
        return EffectiveLevel(
            EnforcementLevel.RESTORE_ALL, "enforcement is restore in the cluster's ConfigMap", control.away
        )
    if control.enforcement is EnforcementSwitch.OFF:
        return EffectiveLevel(
            EnforcementLevel.RESTORE_ONLY,
            control.problem or "enforcement is off in the cluster's ConfigMap",
            control.away,
        )
    if control.problem:
        return EffectiveLevel(EnforcementLevel.THROTTLE_ONLY, control.problem, control.away)
    return EffectiveLevel(EnforcementLevel.ENFORCE)


@dataclass(slots=True)
class PlanRun:
    """State of one plan during its execution."""

    means: ExecutorMeans
    situation: EffectiveLevel
    state: State
    cycle: int
    needed: Needed
    just_tainted: bool = False
    results: list[StepResult] = field(default_factory=list)
    scheduling_confirmed: bool = False
    """Whether the API confirmed that taint and condition are as a step of this plan sets them."""
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
            self.means.errors.succeeded()
        except AuditError as error:
            self._count_on_acting()
            trouble = with_hint(error)
        except Exception as error:
            self._count_on_acting()
            trouble, fault = f"internal error of the agent: {error!r}", True
            self.means.errors.failed(error, "no further steps in this cycle, because of an internal error")
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
        found = await in_thread(self.means.quotas.restore_all, reason=self.why, cycle=self.cycle)
        tainted = await in_thread(self.means.audit.load_value, TAINTED_KEY, bool)
        if self.means.cluster is not None and tainted and not self.situation.away:
            step = Step("scheduling", SchedulingChange(disable=False), reason=self.why)
            self.results.append(await self._scheduling(step, SchedulingChange(disable=False)))
        return found

    async def _one(self, step: Step) -> StepResult:
        """Carry out one step if it is allowed and needed. Raises AuditError."""
        if why := self._forbidden(step):
            return StepResult(step, StepOutcome.NOT_ALLOWED, why)
        if why := await self.needed(step, [each.step for each in self.results if each.booked]):
            return StepResult(step, StepOutcome.NOT_NEEDED, why)
        match step.change:
            case SchedulingChange(disable=True) if self.just_tainted:
                return StepResult(step, StepOutcome.NOT_NEEDED, "new pods are kept away already")
            case SchedulingChange() if self.situation.away:
                return StepResult(step, StepOutcome.FAILED, self.why)
            case SchedulingChange() as change:
                return await self._scheduling(step, change)
            case Eviction() as change:
                return await self._evict(step, change)
            case PageCacheReclaim(most):
                return await self._page_cache(step, most)
            case QuotaChange() | KnobChange():
                return await self._change(step)

    def _forbidden(self, step: Step) -> str:
        gives_back = step.kind == "restore" or step.change == SchedulingChange(disable=False)
        through_the_api = step.kind in ("evict", "scheduling")
        forbidden = (
            self.stance is EnforcementLevel.RESTORE_ALL
            or (self.stance is EnforcementLevel.RESTORE_ONLY and not gives_back)
            or (self.stance is EnforcementLevel.THROTTLE_ONLY and step.kind == "evict")
            or (self.means.cluster is None and through_the_api)
        )
        return self.why if forbidden else ""

    def _deed(self, step: Step, **more: object) -> AuditEntry:
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

    async def _change(self, step: Step) -> StepResult:
        deed = with_change(step, self._deed(step))
        changed = await in_thread(self.means.quotas.apply, step, deed)
        self.acting = changed.result
        if changed.first or changed.last:
            took, gave = EVENTS[step.change.knob if isinstance(step.change, KnobChange) else CPU_MAX]
            message = f"{changed.result.text} ({step.reason})"
            if isinstance(step.change, QuotaChange):
                message = f"{step.change.container}: {message}"
            await self._tell_pod(step, reason=took if changed.first else gave, message=message, warning=changed.first)
        return changed.result

    async def _page_cache(self, step: Step, most: int) -> StepResult:
        result = await in_thread(self._reclaim, step, most)
        if result.fate is StepOutcome.DONE and self.means.cluster is not None and not self.situation.away:
            about, message = (
                EventSubject("Pod", step.pod, step.uid),
                f"page cache reclaimed, {result.text}: {step.reason}",
            )
            await self.means.cluster.emit_event_rate_limited(about, reason="PageCacheReclaimed", message=message)
        return result

    def _reclaim(self, step: Step, most: int) -> StepResult:
        audit, clock = self.means.audit, self.means.clock
        try:
            path = self.means.groups.find(step.uid)
        except CgroupError as error:
            return StepResult(step, StepOutcome.FAILED, str(error))
        if path is None:
            return StepResult(step, StepOutcome.GONE, "the pod is gone")
        begun = audit.begin(self._deed(step, after={"reclaim": most}))
        try:
            with self.means.groups.open(path) as group:
                less = group.reclaim(most)
        except CgroupError as error:
            audit.finish(begun, AuditOutcome.FAILED, now=clock(), message=str(error))
            return StepResult(step, StepOutcome.FAILED, str(error), begun.id)
        text = f"{less} bytes less"
        audit.finish(begun, AuditOutcome.DONE, now=clock(), message=text)
        return StepResult(step, StepOutcome.DONE, text, begun.id)

    # --- evictions ---------------------------------------------------------------------------------------------------

    async def _evict(self, step: Step, change: Eviction) -> StepResult:
        """Check the local limits, the pod in the API, and the cluster's budget; then record the eviction and request
        it."""
        audit, cluster, limits = self.means.audit, self.means.cluster, self.means.limits
        assert cluster is not None  # _forbidden guarantees it
        if why := limits.refusal(await in_thread(self.means.recent.past), step):
            return StepResult(step, StepOutcome.NOT_ALLOWED, why)
        try:
            objection = await cluster.objection(step)
        except KubeUnreachable as error:  # each further eviction would run into the same timeout
            self.situation = EffectiveLevel(
                EnforcementLevel.THROTTLE_ONLY, f"the Kubernetes API is unreachable: {error}", away=True
            )
            return StepResult(step, StepOutcome.NOT_ALLOWED, self.why)
        if objection is not None:
            return StepResult(step, *objection)
        token = await cluster.controls.spend_token(now=self.means.clock())
        if isinstance(token, str):
            return StepResult(step, StepOutcome.NOT_ALLOWED, token)
        deed = self._deed(step, owner=change.owner, after={"graceSeconds": change.grace_seconds})
        try:
            begun = await in_thread(self.means.recent.begin, deed)
        except AuditError:  # nothing was requested, and the next cycle would spend the next token
            await cluster.controls.return_token(token)
            raise
        self.acting = StepResult(step, StepOutcome.UNANSWERED, "the eviction may have been requested", begun.id)
        fate, text = await cluster.evict(step)
        result = self.acting = StepResult(step, fate, text, begun.id)
        if fate in EVICTED_NOBODY:
            await cluster.controls.return_token(token)
        await in_thread(audit.finish, begun, AuditOutcome(fate.value), now=self.means.clock(), message=text)
        if fate is StepOutcome.DONE:
            message = f"evicted from {cluster.node}: {step.reason}"
            await self._tell_pod(step, reason="Evicted", message=message, warning=True)
        return result

    # --- scheduling --------------------------------------------------------------------------------------------------

    async def _scheduling(self, step: Step, change: SchedulingChange) -> StepResult:
        """Set or remove taint and condition of the node, unless they are set already. Raises AuditError."""
        audit, cluster = self.means.audit, self.means.cluster
        assert cluster is not None  # _forbidden guarantees it
        if await cluster.scheduling_is(change):
            self.scheduling_confirmed = True
            if await in_thread(audit.load_value, TAINTED_KEY, bool) is not change.disable:
                await in_thread(audit.save_value, TAINTED_KEY, change.disable)
            text = "new pods are kept away already" if change.disable else "new pods are allowed already"
            return StepResult(step, StepOutcome.NOT_NEEDED, text)
        after = {"schedulingDisabled": change.disable}
        deed = AuditEntry(time=self.means.clock(), kind=step.kind, cycle=self.cycle, reason=step.reason, after=after)
        begun = await in_thread(audit.begin, deed)
        await in_thread(audit.save_value, TAINTED_KEY, True)
        changed, wrong = await cluster.set_scheduling(change, step.reason)
        outcome = AuditOutcome.FAILED if wrong else AuditOutcome.DONE
        await in_thread(audit.finish, begun, outcome, now=self.means.clock(), message=wrong)
        if not wrong and not change.disable:
            await in_thread(audit.save_value, TAINTED_KEY, False)
        self.scheduling_confirmed = not wrong
        if changed:
            reason = "SchedulingDisabled" if change.disable else "SchedulingEnabled"
            what = "new pods are kept away" if change.disable else "new pods are allowed again"
            await cluster.emit_event(None, reason=reason, message=f"{what}: {step.reason}", warning=change.disable)
        return StepResult(step, StepOutcome.FAILED if wrong else StepOutcome.DONE, wrong, begun.id)

    # --- Events ------------------------------------------------------------------------------------------------------

    async def _tell_pod(self, step: Step, *, reason: str, message: str, warning: bool) -> None:
        if self.means.cluster is not None and not self.situation.away:
            about = EventSubject("Pod", step.pod, step.uid)
            await self.means.cluster.emit_event(about, reason=reason, message=message, warning=warning)

    async def _tell_node(self) -> None:
        """Write one Event about all evictions of the plan."""
        evicted = [each.step for each in self.results if each.fate is StepOutcome.DONE and each.step.kind == "evict"]
        if self.means.cluster is not None and evicted:
            reasons = sorted({each.reason for each in evicted})
            message = f"evicted {', '.join(each.pod for each in evicted)}: {'; '.join(reasons)}"
            await self.means.cluster.emit_event(None, reason="PodsEvicted", message=message)


async def in_thread(act: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
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
