"""Carries out a plan step by step. Each step is audited before it is carried out; a failed step does not stop the rest.

    enforcement level ─▶ each step: allowed? ─▶ still needed? ─▶ audit ─▶ act ─▶ audit ─▶ Event

The enforcement level is determined for every plan: preview unless agent.mode is enforce; preview if another agent
manages the same groups; then the value in the cluster's ConfigMap; only changes of control groups while the API is
unavailable. If the audit file cannot be written, no further steps are carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from agent.audit.database import AuditError
from agent.audit.log import Audit, AuditEntry
from agent.cgroups.detection import KubeletGroups
from agent.cgroups.values import Quota
from agent.clocks import Clocks
from agent.decision.eviction_limits import Budget, EvictionLimits
from agent.decision.plan import Plan
from agent.executor.cluster import ClusterActions
from agent.executor.enforcement_switch import EnforcementSwitch
from agent.executor.knob_writer import KnobWriter, RestoreResult, read_knobs
from agent.executor.other_agents import CgroupLock, conflicting_agents
from agent.executor.plan_run import (
    TAINTED_KEY,
    EffectiveLevel,
    ExecutorMeans,
    Needed,
    PlanRun,
    in_thread,
    level_of,
)
from agent.executor.report import (
    EnforcementLevel,
    PlanReport,
    RecentEvictions,
    StepOutcome,
    StepResult,
    measured,
)
from agent.model import PODS, Eviction, KnobChange, Knobs, PageCacheReclaim, QuotaChange, SchedulingChange, State, Step
from watcher.core.messages import with_hint
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

MEASURED_FOR_S = 120.0
"""Seconds: after this time, the effect of an audit entry can no longer be separated from other changes in usage."""
RENEWED_AFTER_S = 300.0
"""Seconds before an existing taint is checked again, although a triggered rule demands it in every cycle."""
IDLE_BRAKE_AGE_S = 15.0
"""Seconds before the brake is read again for a plan without a new step, which can only lead to a restore. Thousands of
agents may hold lowered values for hours."""
UNSEEN_S = 60.0
"""Seconds after which the values of a container that is not listed are restored, although its group exists."""
ENFORCEMENT_KEY = "enforcement"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Permissions from the settings of this node."""

    enforce: bool = False
    limits: EvictionLimits = field(default_factory=EvictionLimits)
    beside_others: bool = False
    """Enforce although a koordlet, a crane-agent or another load-watcher agent manages the same groups."""
    claim: CgroupLock | None = None
    """Lock on the control groups against other load-watcher agents."""
    proc: Path = Path("/proc")
    """Path of the host's /proc, to detect processes of other agents."""


class OnExit(StrEnum):
    """Handling of lowered quotas and the taint at a regular shutdown."""

    KEEP = "keep"
    """They stay, and a restarted agent continues from them."""
    RESTORE = "restore"


class Executor:
    """Carries out plans on one node. Without a `cluster`, it only changes control groups: no evictions, no taint, no
    ConfigMap. Calls must not overlap; a cancelled call ends
    after its current write. The constructor may raise AuditError."""

    def __init__(
        self,
        audit: Audit,
        groups: KubeletGroups,
        *,
        cluster: ClusterActions | None = None,
        permissions: Permissions | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self._permissions = permissions or Permissions()
        clocks, limits = clocks or Clocks(), self._permissions.limits
        quotas = KnobWriter(audit, groups, clock=clocks.wall)
        recent = RecentEvictions(audit, clocks, window=limits.eviction_window)
        self._means = ExecutorMeans(audit, groups, quotas, cluster, limits, recent, clocks.wall, RepeatedErrors(log))
        self._monotonic = clocks.monotonic
        self._unseen: dict[str, float] = {}
        """Keys of original values that are not listed, with the monotonic time in seconds since when."""
        self._logged_trouble = ""
        self._brake: EnforcementSwitch | None = None
        self._logged_level = EnforcementLevel.ENFORCE
        self._pending_scheduling: Step | None = None
        self._tainted_at: float | None = None
        if cluster is not None:
            cluster.controls.last = self._brake = audit.load_value(ENFORCEMENT_KEY, EnforcementSwitch)

    # --- one plan ----------------------------------------------------------------------------------------------------

    async def run(self, plan: Plan, *, state: State, cycle: int, needed: Needed) -> PlanReport:
        """Carry out the steps of a plan in order. `state` is the state that the plan was made from, with the usage
        before. Raises nothing: errors are in the report."""
        steps = self._with_what_is_undone(plan)
        try:
            quotas, tainted = await in_thread(self._means.audit.count_originals), await self.tainted()
        except AuditError as error:
            return PlanReport(EnforcementLevel.PREVIEW, "the audit file cannot be read", (), with_hint(error))
        owing = quotas + tainted
        if tainted and plan.scheduling_disabled is False and not any(s.kind == "scheduling" for s in steps):
            reason = "no rule requires the taint that an earlier run left"
            steps = (Step("scheduling", SchedulingChange(disable=False), reason=reason), *steps)
        if not steps and not owing:
            return PlanReport(EnforcementLevel.ENFORCE if self._permissions.enforce else EnforcementLevel.PREVIEW)
        situation = await self._situation(state, owing=owing, max_age=0.0 if self._has_new(steps) else IDLE_BRAKE_AGE_S)
        if situation.stance is EnforcementLevel.PREVIEW:
            results = tuple(StepResult(step, StepOutcome.WOULD, would(step)) for step in steps)
            self._log_level_change(situation.stance, situation.why)
            return PlanReport(situation.stance, situation.why, results)
        run = PlanRun(self._means, situation, state, cycle, needed, just_tainted=self._just_tainted())
        report = await run.carry_out(steps)
        self._log_level_change(report.level, report.why)
        self._log_audit_failure("" if report.fault else report.trouble)
        for each in report.results:
            if isinstance(each.step.change, SchedulingChange):
                self._pending_scheduling = each.step if each.fate is StepOutcome.FAILED else None
                if run.scheduling_confirmed:
                    self._tainted_at = self._means.clock() if each.step.change.disable else None
        return report

    def _log_level_change(self, stance: EnforcementLevel, why: str) -> None:
        """Log a change of the enforcement level, if agent.mode is enforce."""
        if not self._permissions.enforce or stance is self._logged_level:
            return
        self._logged_level = stance
        if stance is EnforcementLevel.ENFORCE:
            log.info("full enforcement resumed")
        else:
            log.warning("enforcement restricted to '%s': %s", stance, why)

    def _log_audit_failure(self, trouble: str) -> None:
        """Log a failure of the audit file once; it may last for many cycles."""
        if trouble and trouble != self._logged_trouble:
            log.error("no further steps while the audit file fails: %s", trouble)
        self._logged_trouble = trouble

    def _just_tainted(self) -> bool:
        """Whether this process set the taint within the last RENEWED_AFTER_S."""
        return self._tainted_at is not None and 0.0 <= self._means.clock() - self._tainted_at < RENEWED_AFTER_S

    def _has_new(self, steps: Sequence[Step]) -> bool:
        """Whether any step is more than the taint that this process has set recently, which a triggered rule demands in
        every cycle."""
        return not all(step.change == SchedulingChange(disable=True) and self._just_tainted() for step in steps)

    def _with_what_is_undone(self, plan: Plan) -> tuple[Step, ...]:
        """The plan's steps, with a failed scheduling step of an earlier plan, which is retried until it succeeds or the
        opposite is decided."""
        undone, self._pending_scheduling = self._pending_scheduling, None
        if undone is None or any(step.kind == "scheduling" for step in plan.steps):
            return plan.steps
        still_wanted = plan.scheduling_disabled is None or undone.change == SchedulingChange(plan.scheduling_disabled)
        return (undone, *plan.steps) if still_wanted else plan.steps

    async def budget(self) -> Budget:
        """The node's eviction limits with its recent evictions. Raises AuditError."""
        return Budget(self._means.limits, await in_thread(self._means.recent.past))

    def refused_evictions(self) -> Mapping[str, str]:
        """Pods (uid) whose eviction the API refused recently, with the reason; they are not planned again yet."""
        return {} if self._means.cluster is None else self._means.cluster.left_alone()

    async def knobs(self, state: State, *, wanted: bool) -> Knobs:
        """Read cpu.weight and memory.high of the pods if `wanted`, or if any of them has to be restored. Raises
        AuditError."""
        return await in_thread(self._knobs, state, wanted)

    def _knobs(self, state: State, wanted: bool) -> Knobs:
        remembered = [each for each in self._means.audit.originals_by_key().values() if not each.container_id]
        if not wanted and not remembered:
            return {}
        return read_knobs((pod for pod in state.pods if pod.containers), self._means.groups, remembered)

    async def tainted(self) -> bool:
        """Whether the node may have a taint that the agent set. Raises AuditError."""
        return bool(await in_thread(self._means.audit.load_value, TAINTED_KEY, bool))

    async def _situation(self, state: State, *, owing: int, max_age: float) -> EffectiveLevel:
        """The enforcement level, with a brake that was read at most `max_age` seconds ago."""
        if not self._permissions.enforce:
            left = f"; {owing} changes of an earlier run stay until load-watcher agent restore is run" if owing else ""
            return EffectiveLevel(EnforcementLevel.PREVIEW, f"the agent runs in preview mode{left}")
        others = await in_thread(self._others, state)
        if others and not self._permissions.beside_others:
            why = f"the same control groups are managed by {', '.join(others)}"
            return EffectiveLevel(EnforcementLevel.RESTORE_ALL if owing else EnforcementLevel.PREVIEW, why)
        cluster = self._means.cluster
        if cluster is None:
            return EffectiveLevel(EnforcementLevel.THROTTLE_ONLY, "no Kubernetes API is configured")
        control = await cluster.controls.read(max_age=max_age)
        await self._remember_brake(cluster.controls.last)
        return level_of(control)

    def _others(self, state: State) -> tuple[str, ...]:
        """Descriptions of other agents that manage the control groups."""
        found = conflicting_agents(state.pods, self._permissions.proc)
        return found if self._permissions.claim is None else (*found, *self._permissions.claim.acquire())

    async def _remember_brake(self, brake: EnforcementSwitch | None) -> None:
        """Save the value of `enforcement`, because the API may be unavailable after a restart."""
        if brake == self._brake:
            return
        log.info("enforcement in the cluster's ConfigMap is %s", brake or "not set")
        self._brake = brake
        try:
            await in_thread(self._means.audit.save_value, ENFORCEMENT_KEY, brake or EnforcementSwitch.ON)
        except AuditError as error:
            log.warning("%s", with_hint(error))

    # --- restoring all values ----------------------------------------------------------------------------------------

    async def restore_all(self, *, reason: str, cycle: int = 0) -> tuple[RestoreResult, ...]:
        """Restore all original values and remove the taint. Raises AuditError if that cannot be recorded."""
        situation, state = EffectiveLevel(EnforcementLevel.RESTORE_ALL, reason), State(self._means.clock())
        return await PlanRun(self._means, situation, state, cycle, _always).put_everything_back()

    async def shut_down(self, on_exit: OnExit) -> tuple[RestoreResult, ...]:
        """Restore all values at shutdown if `on_exit` is RESTORE. Raises AuditError."""
        return await self.restore_all(reason="the agent shuts down") if on_exit is OnExit.RESTORE else ()

    # --- effects -----------------------------------------------------------------------------------------------------

    async def measure_effects(self, state: State) -> tuple[AuditEntry, ...]:
        """Measure the release of earlier steps with this state, and delete stored original values of groups that have
        ended. Must be called once per cycle, before `run`. Raises AuditError."""
        return await in_thread(self._look_back, state)

    def _look_back(self, state: State) -> tuple[AuditEntry, ...]:
        audit = self._means.audit
        seen = {each.id: Quota(each.quota, each.period) for pod in state.pods for each in pod.containers}
        present = seen.keys() | {pod.uid for pod in state.pods if pod.containers}
        self._means.quotas.forget_ended(present)
        if self._permissions.enforce and PODS not in state.missing:
            self._restore_unseen(present)
        self._means.quotas.forget_restored(seen)
        waiting = audit.entries_without_effect(since=state.time - MEASURED_FOR_S, before=state.time)
        effects = [(deed, released) for deed in waiting if (released := measured(deed, state)) is not None]
        if not effects:
            return ()
        with audit.batch():
            return tuple(audit.record_effect(deed, released, now=state.time) for deed, released in effects)

    def _restore_unseen(self, present: Collection[str]) -> None:
        """Restore what no plan can restore: values of containers that are not listed, or not where the kubelet has its
        groups now, although their groups exist."""
        now, quotas = self._monotonic(), self._means.quotas
        self._unseen = {key: self._unseen.get(key, now) for key in quotas.unseen(present)}
        due = {key for key, since in self._unseen.items() if now - since >= UNSEEN_S}
        for result in quotas.restore(due, reason="it has not been listed for a minute") if due else ():
            name = f"{result.remembered.pod}, container {result.remembered.container}".removesuffix(", container ")
            log.warning("%s, has not been listed for a minute: %s", name, result.text)


async def _always(_: Step, __: Sequence[Step]) -> str:
    return ""


def would(step: Step) -> str:
    """Describe what a step would do, for preview. Pure."""
    match step.change:
        case SchedulingChange(disable):
            return "would keep new pods away" if disable else "would allow new pods again"
        case Eviction(grace_seconds):
            return f"would evict {step.pod} with a grace period of {grace_seconds:.0f} s"
        case PageCacheReclaim(most):
            return f"would reclaim up to {most} bytes of page cache from {step.pod}"
        case KnobChange(knob, _, after):
            return f"would set {knob} of {step.pod} to {'unlimited' if after is None else after}"
        case QuotaChange(container, _, _, after, period):
            quota = "unlimited" if after is None else f"{after} µs per {period} µs"
            return f"would set the CPU quota of {step.pod} ({container}) to {quota}"
