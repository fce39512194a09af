"""Results of carrying out a plan: outcomes of steps, the release that was measured, and recent evictions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.audit.entries import AuditEntry
from agent.audit.log import Audit
from agent.decision.eviction_limits import EvictionRecord
from agent.model import CPU, MEMORY, EvictStep, KnobStep, PodState, QuotaStep, ReclaimStep, Released, State, Step


class EnforcementLevel(StrEnum):
    """Enforcement level: the steps that the executor may carry out."""

    PREVIEW = "preview"
    """No steps; the executor only reports what it would do."""
    ENFORCE = "enforce"
    THROTTLE_ONLY = "throttle only"
    """No evictions, because the eviction budget of the cluster is unknown."""
    RESTORE_ONLY = "restore only"
    """No new steps, because enforcement is off in the cluster. Values are restored as the rules allow."""
    RESTORE_ALL = "restore all"
    """No new steps, and all original values are restored now."""


class StepOutcome(StrEnum):
    """Result of carrying out one step."""

    WOULD = "would"
    """Preview: the step was not carried out."""
    DONE = "done"
    GONE = "gone"
    """The pod or container no longer exists, so its resources are released."""
    NOT_NEEDED = "not needed"
    """The step was no longer needed, for example because a newly read usage closed the gap."""
    NOT_ALLOWED = "not allowed"
    """The enforcement level, an eviction limit or the cluster's eviction budget forbids the step."""
    FOREIGN = "foreign"
    """Another program changed the value meanwhile; it was left unchanged."""
    PROTECTED = "protected"
    """A PodDisruptionBudget refused the eviction."""
    UNANSWERED = "unanswered"
    """The API did not respond; the step may have been carried out."""
    FAILED = "failed"


UNAVAILABLE = frozenset({StepOutcome.GONE, StepOutcome.PROTECTED, StepOutcome.FAILED, StepOutcome.FOREIGN})


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step with its reason, and the id of its audit entry (0: none)."""

    step: Step
    fate: StepOutcome
    text: str = ""
    deed: int = 0

    @property
    def booked(self) -> bool:
        """Whether the ledger counts the step's release: it was done, or may have been (another eviction could be one
        too many), or the pod to be evicted was already gone."""
        return self.fate in (StepOutcome.DONE, StepOutcome.UNANSWERED) or (
            self.fate is StepOutcome.GONE and self.step.kind == "evict"
        )


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Results of one plan. `why` is the reason for the enforcement level; `trouble` is the error that stopped the plan,
    and `fault` is true if it is an internal error of the agent."""

    level: EnforcementLevel
    why: str = ""
    results: tuple[StepResult, ...] = ()
    trouble: str = ""
    fault: bool = False

    @property
    def booked(self) -> tuple[Step, ...]:
        """The steps whose release the ledger counts."""
        return tuple(each.step for each in self.results if each.booked)

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Pods (namespace/name) that could not be acted on, with the reason, so that a second plan selects others."""
        return {
            each.step.pod: each.text or each.fate.value
            for each in self.results
            if each.fate in UNAVAILABLE and each.step.kind != "scheduling" and not _refused_gently(each)
        }

    @property
    def refused_knobs(self) -> frozenset[tuple[str, str]]:
        """(uid, knob) pairs that the kernel refused to lower; a harder step on the same pod replaces the soft limit."""
        return frozenset(
            (each.step.uid, each.step.knob)
            for each in self.results
            if isinstance(each.step, KnobStep) and _refused_gently(each)
        )

    def count(self, fate: StepOutcome) -> int:
        """Number of steps with this result."""
        return sum(each.fate is fate for each in self.results)


def _refused_gently(result: StepResult) -> bool:
    """Whether a soft limit failed; the pod may then still be throttled or evicted."""
    step = result.step
    return isinstance(step, KnobStep) and step.kind != "restore" and result.fate is StepOutcome.FAILED


MILLI = 1000.0
PODS_MISSING = "pods"
"""Key of State.missing with the reason why the pods are unknown (agent.state.collector)."""


def used_by(step: Step, state: State) -> Released:
    """Usage of a step's container or pod in millicores and bytes; unknown values are left out."""
    if isinstance(step, (QuotaStep, KnobStep, EvictStep, ReclaimStep)):
        return _used(state, step.uid, step.container_id if isinstance(step, QuotaStep) else "")
    return {}


def measured(deed: AuditEntry, state: State) -> Released | None:
    """Decrease of usage since the audit entry (for restore: increase) for the planned resources, in millicores and
    bytes. A pod or container that is gone counts as using nothing. None if it cannot be measured."""
    if PODS_MISSING in state.missing:
        return None  # the pods are unknown, so an absent pod is not necessarily gone
    pod = next((each for each in state.pods if each.uid == deed.uid), None)
    gone = pod is None or (deed.container_id != "" and all(each.id != deed.container_id for each in pod.containers))
    now = dict.fromkeys(deed.used, 0.0) if gone else _used(state, deed.uid, deed.container_id)
    sign = -1.0 if deed.kind == "restore" else 1.0
    found = {
        resource: sign * (deed.used[resource] - now[resource])
        for resource in deed.planned
        if resource in deed.used and resource in now
    }
    return found or None


def _used(state: State, uid: str, container: str) -> dict[str, float]:
    pod = next((each for each in state.pods if each.uid == uid), None)
    if pod is None:
        return {}
    cpu, memory = _of(pod, container)
    found = {}
    if cpu is not None:
        found[CPU] = cpu * MILLI
    if memory is not None:
        found[MEMORY] = float(memory)
    return found


def _of(pod: PodState, container: str) -> tuple[float | None, int | None]:
    if not container:
        return pod.cpu, pod.memory
    return next(((each.cpu, each.memory) for each in pod.containers if each.id == container), (None, None))


class RecentEvictions:
    """The evictions of the last `window` seconds. Calls must not overlap."""

    def __init__(
        self, audit: Audit, *, window: float, clock: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._audit = audit
        self._window = window
        self._clock = clock
        self._monotonic = monotonic
        self._at: dict[int, float] | None = None
        """Monotonic time in seconds of each eviction after `_over`, by id of its audit entry."""
        self._over = 0
        """Id of an audit entry; all evictions up to it are older than the window."""

    def note(self, number: int) -> None:
        """Record that the eviction with this audit entry id is being carried out now."""
        if self._at is not None:
            self._at[number] = self._monotonic()

    def past(self) -> tuple[EvictionRecord, ...]:
        """The evictions within the window, oldest first. Raises AuditError."""
        now, wall, known = self._monotonic(), self._clock(), self._at
        found = self._audit.evictions(after=self._over)
        at = {
            number: now - max(0.0, wall - each.time) if known is None else known.get(number, now)
            for number, each in found.items()
        }
        late = [number for number in at if now - at[number] <= self._window]
        self._over = min(late) - 1 if late else max(at, default=self._over)
        self._at = {number: time for number, time in at.items() if number > self._over}
        return tuple(found[number] for number in late)
