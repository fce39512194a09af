"""What came of carrying out a plan.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.model import KnobStep, Step


class Stance(StrEnum):
    """How much the executor may do."""

    PREVIEW = "preview"
    """Nothing: it says what it would do."""
    ENFORCE = "enforce"
    THROTTLE_ONLY = "throttle only"
    """No evictions: nobody can say whether more evictions are allowed in this cluster."""
    RESTORE_ONLY = "restore only"
    """Nothing new: somebody pulled the brake. What was taken is given back as the rules say."""
    RESTORE_ALL = "restore all"
    """The same, and everything is given back now."""


class Fate(StrEnum):
    """What became of a step."""

    WOULD = "would"
    """It is preview: this would have been done."""
    DONE = "done"
    GONE = "gone"
    """Pod or container are not there any more: what was to be released is released."""
    NOT_NEEDED = "not needed"
    """Usage was read again just before, and the gap was closed."""
    NOT_ALLOWED = "not allowed"
    """The stance, a rate limit or the budget of the cluster forbids it."""
    FOREIGN = "foreign"
    """Somebody else changed it meanwhile: left alone."""
    PROTECTED = "protected"
    """A PodDisruptionBudget did not allow it."""
    UNANSWERED = "unanswered"
    """The API did not answer; it may have been done."""
    FAILED = "failed"


UNAVAILABLE = frozenset({Fate.GONE, Fate.PROTECTED, Fate.FAILED, Fate.FOREIGN})


@dataclass(frozen=True, slots=True)
class Result:
    """Of one step: what became of it, why, and the number of its deed in the audit (0: there is none)."""

    step: Step
    fate: Fate
    text: str = ""
    deed: int = 0

    @property
    def booked(self) -> bool:
        """Whether its release is to be counted on: it was done, or may have been (a further victim would be one too
        many), or the pod that was to be evicted had gone by itself."""
        return self.fate in (Fate.DONE, Fate.UNANSWERED) or (self.fate is Fate.GONE and self.step.kind == "evict")


@dataclass(frozen=True, slots=True)
class Report:
    """Of one plan. `why` says where the stance comes from; `trouble` is what kept the rest from being carried out, and
    `fault` whether that was a mistake in the agent itself."""

    stance: Stance
    why: str = ""
    results: tuple[Result, ...] = ()
    trouble: str = ""
    fault: bool = False

    @property
    def booked(self) -> tuple[Step, ...]:
        """The steps for the ledger."""
        return tuple(each.step for each in self.results if each.booked)

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Pods (namespace/name) that could not be acted on, with the reason, so that another plan finds others."""
        return {
            each.step.pod: each.text or each.fate.value
            for each in self.results
            if each.fate in UNAVAILABLE and each.step.kind != "scheduling" and not _refused_gently(each)
        }

    @property
    def unturned(self) -> frozenset[tuple[str, str]]:
        """Uids and knobs that the kernel refused to lower: the harder step on the same pod takes that one's place."""
        return frozenset(
            (each.step.uid, each.step.knob)
            for each in self.results
            if isinstance(each.step, KnobStep) and _refused_gently(each)
        )

    def count(self, fate: Fate) -> int:
        """How many steps had this fate."""
        return sum(each.fate is fate for each in self.results)


def _refused_gently(result: Result) -> bool:
    """Whether it was a gentler step that failed, which is no reason to spare the pod."""
    step = result.step
    return isinstance(step, KnobStep) and step.kind != "restore" and result.fate is Fate.FAILED
