"""Results of carrying out a plan: outcomes of steps, the release that was measured, and recent evictions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agent.audit.log import Audit, AuditEntry
from agent.clocks import Clocks
from agent.decision.eviction_limits import EvictionRecord
from agent.model import (
    CPU,
    CPU_MAX,
    MEMORY,
    PAGE_CACHE,
    PODS,
    KnobChange,
    PageCacheReclaim,
    PodState,
    QuotaChange,
    Released,
    State,
    Step,
)


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

    def as_json(self) -> dict[str, Any]:
        """The result in the format of GET /explain."""
        return {"step": self.step.as_json(), "fate": self.fate.value, "text": self.text, "deed": self.deed}

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
        """Pods (uid) that could not be acted on, with the reason, so that a second plan selects others."""
        return {
            each.step.uid: each.text or each.fate.value
            for each in self.results
            if each.fate in UNAVAILABLE and each.step.uid and not _refused(each)
        }

    @property
    def refused_knobs(self) -> frozenset[tuple[str, str]]:
        """What the kernel refused to lower: (pod uid, knob), and (container id, cpu.max) for a quota. Steps on other
        pods, or a harder step on the same pod, replace the refused one."""
        return frozenset(_refusal_key(each.step) for each in self.results if _refused(each))

    def count(self, fate: StepOutcome) -> int:
        """Number of steps with this result."""
        return sum(each.fate is fate for each in self.results)


def _refused(result: StepResult) -> bool:
    """Whether the kernel refused to lower a value. The pod may still be acted on in other ways. Without an audit entry
    of a quota or of reclaiming nothing was written: the control groups could not be read."""
    if result.fate is not StepOutcome.FAILED or result.step.kind == "restore":
        return False
    change = result.step.change
    return isinstance(change, KnobChange) or (isinstance(change, QuotaChange | PageCacheReclaim) and result.deed != 0)


def _refusal_key(step: Step) -> tuple[str, str]:
    if isinstance(step.change, QuotaChange):
        return step.change.container_id, CPU_MAX
    return step.uid, step.change.knob if isinstance(step.change, KnobChange) else PAGE_CACHE


MILLI = 1000.0


def used_by(step: Step, state: State) -> Released:
    """Usage of a step's container or pod in millicores and bytes; unknown values are left out."""
    return _used(state, step.uid, step.change.container_id if isinstance(step.change, QuotaChange) else "")


def measured(deed: AuditEntry, state: State) -> Released | None:
    """Decrease of usage since the audit entry (for restore: increase) for the planned resources, in millicores and
    bytes. A pod or container that is gone counts as using nothing. None if it cannot be measured."""
    if PODS in state.missing:
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


EVICTION_TIMES_KEY = "eviction times"
CLOCK_DIFFERS_S = 1.0
"""Seconds: the offset of the wall clock is saved again if it differs by more."""


@dataclass(frozen=True, slots=True)
class EvictionTimes:
    """The monotonic time in seconds of each eviction, by id of its audit entry, which is valid until the machine
    restarts (`boot`; "": unknown). `offset` is the wall clock minus the monotonic clock in seconds. Unlike these times,
    those of the audit entries are of a wall clock that may have been set later."""

    boot: str
    offset: float
    at: Mapping[int, float]

    def read(self, now: EvictionTimes) -> dict[int, float]:
        """The times in the monotonic clock of now."""
        same = bool(self.boot) and self.boot == now.boot
        return {number: at if same else at + self.offset - now.offset for number, at in self.at.items()}

    def as_saved(self, saved: EvictionTimes) -> bool:
        """Whether the saved times are equal to these."""
        same = (self.boot, self.at) == (saved.boot, saved.at)
        return same and (not self.at or abs(self.offset - saved.offset) <= CLOCK_DIFFERS_S)


class RecentEvictions:
    """The evictions of the last `window` seconds. Calls must not overlap."""

    def __init__(self, audit: Audit, clocks: Clocks, *, window: float) -> None:
        self._audit = audit
        self._clocks = clocks
        self._window = window
        self._at: dict[int, float] | None = None
        """Monotonic time in seconds of each eviction after `_over`, by id of its audit entry."""
        self._saved = EvictionTimes("", 0.0, {})
        self._over = 0
        """Id of an audit entry; all evictions up to it are older than the window."""

    def begin(self, deed: AuditEntry) -> AuditEntry:
        """Record an eviction, with its time, before it is carried out; `past` has been called before. Returns the entry
        with its id. Raises AuditError."""
        assert self._at is not None
        now = self._clocks.monotonic()
        with self._audit.batch():
            begun = self._audit.begin(deed)
            times = self._times(now, {**self._at, begun.id: now})
            self._audit.save_value(EVICTION_TIMES_KEY, times)
        self._at, self._saved = dict(times.at), times
        return begun

    def past(self) -> tuple[EvictionRecord, ...]:
        """The evictions within the window, oldest first. Raises AuditError."""
        now, known = self._clocks.monotonic(), self._at
        times = self._times(now, {})
        found = self._audit.evictions(after=self._over)
        if known is None:
            self._saved = self._audit.load_value(EVICTION_TIMES_KEY, EvictionTimes) or self._saved
            saved = self._saved.read(times)
            at = {number: min(now, saved.get(number, each.time - times.offset)) for number, each in found.items()}
        else:
            at = {number: known.get(number, now) for number in found}
        late = [number for number in at if now - at[number] <= self._window]
        self._over = min(late) - 1 if late else max(at, default=self._over)
        self._at = {number: time for number, time in at.items() if number > self._over}
        times = replace(times, at=self._at)
        if not times.as_saved(self._saved):
            self._audit.save_value(EVICTION_TIMES_KEY, times)
            self._saved = times
        return tuple(found[number] for number in late)

    def _times(self, now: float, at: Mapping[int, float]) -> EvictionTimes:
        return EvictionTimes(self._clocks.boot, self._clocks.wall() - now, at)
