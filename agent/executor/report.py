"""Results of carrying out a plan.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.model import KnobStep, Step


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

    stance: EnforcementLevel
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
    def unturned(self) -> frozenset[tuple[str, str]]:
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
