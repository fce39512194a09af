"""What a part of the service wants remembered of single decisions: the scorers, which node they chose for which pod.

The watcher knows of a decision whose it was and when; what was decided and why is bytes to it. Remembering never stands
in the way of deciding: `keep` returns at once, and what cannot be written is lost and counted.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision about a pod. `time` in microseconds since 1970 is its name too, no two have the same; `payload` is its
    maker's; `node` and `outcome` say what became of it, in its maker's words, both "" as long as that is not known."""

    time: int
    namespace: str
    pod: str
    uid: str
    payload: bytes
    node: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """What became of the decision that was made at `time` (microseconds)."""

    time: int
    node: str
    outcome: str


@dataclass(frozen=True, slots=True)
class DecisionsHeld:
    """How many decisions there are to be asked for, and the times of the first and the last (microseconds), None
    without any."""

    count: int
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class StoredShadow:
    """What other profiles would have done with a pod that was bound. `time` in microseconds since 1970 is its name too;
    `payload` is its maker's."""

    time: int
    payload: bytes


class DecisionsUnavailable(Exception):
    """What was kept cannot be read now; `hint` says what the operator can do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class DecisionStore(Protocol):
    """Where decisions are kept."""

    @property
    def decisions_kept(self) -> float:
        """For how many seconds; 0: they are not wanted, and `keep_decisions` must not be called."""
        ...

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        """Have decisions kept, each in the place of the one with its time, and then outcomes of these or older ones.
        `lost` counts those that did not come this far. Returns at once, and never fails because of the disk."""
        ...

    async def decisions_of(
        self, namespace: str, pod: str, *, start: int = 0, end: int | None = None, limit: int, newest: bool = True
    ) -> list[StoredDecision]:
        """Those about a pod with start <= time < end (microseconds), the newest or the oldest of them first. What was
        given to `keep_decisions` before is among them, whether it is written yet or not. Raises
        DecisionsUnavailable."""
        ...

    async def decisions_held(self) -> DecisionsHeld:
        """What can be asked for at all. Raises DecisionsUnavailable."""
        ...

    def keep_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        """As keep_decisions, of what shadow mode saw: kept as long, and as many."""
        ...

    async def shadows(self, *, start: int, end: int | None = None, limit: int) -> list[StoredShadow]:
        """The newest with start <= time < end (microseconds), oldest first. Raises DecisionsUnavailable."""
        ...
