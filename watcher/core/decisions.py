"""Storage interface for decisions of modules, such as the scorers' choice of a node for a pod.

The watcher stores the pod and the time of a decision; the decision and its reasons are opaque bytes. Storing never
delays a decision: `keep_decisions` returns immediately, and decisions that cannot be written are lost and counted.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredDecision:
    """A decision about a pod. `time` (microseconds since 1970) is also its unique key; `payload` is opaque; `node` and
    `outcome` are the result in the module's own terms, both "" until it is known."""

    time: int
    namespace: str
    pod: str
    uid: str
    payload: bytes
    node: str = ""
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class DecisionOutcome:
    """The result of the decision with the key `time` (microseconds since 1970)."""

    time: int
    node: str
    outcome: str


@dataclass(frozen=True, slots=True)
class DecisionsExtent:
    """Number of stored decisions, and the times of the first and the last (microseconds since 1970), None if there are
    none."""

    count: int
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class StoredShadow:
    """The hypothetical decisions of other profiles for a bound pod (shadow mode). `time` (microseconds since 1970) is
    also its key; `payload` is opaque."""

    time: int
    payload: bytes


class DecisionsUnavailable(Exception):
    """Stored decisions are currently unreadable; `hint` describes the fix for the operator."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class DecisionStore(Protocol):
    """Store for decisions and for records of shadow mode."""

    @property
    def decision_retention_s(self) -> float:
        """Retention in seconds; 0: decisions are not stored, and `keep_decisions` must not be called."""
        ...

    def keep_decisions(
        self, decisions: Sequence[StoredDecision], outcomes: Sequence[DecisionOutcome] = (), *, lost: int = 0
    ) -> None:
        """Queue decisions to be stored, each replacing a decision with the same time, and then outcomes of these or
        older decisions. `lost` is the number of decisions that were lost before this call. Returns immediately, and
        does not raise for disk errors."""
        ...

    async def decisions_of(
        self, namespace: str, pod: str, *, start: int = 0, end: int | None = None, limit: int, newest: bool = True
    ) -> list[StoredDecision]:
        """Return at most `limit` decisions about a pod with start <= time < end (microseconds since 1970), newest or
        oldest first. Includes decisions that are queued but not written yet. Raises DecisionsUnavailable."""
        ...

    async def decisions_held(self) -> DecisionsExtent:
        """Return number and time range of the stored decisions. Raises DecisionsUnavailable."""
        ...

    def keep_shadows(self, shadows: Sequence[StoredShadow], *, lost: int = 0) -> None:
        """Queue records of shadow mode to be stored, with the same retention and limit as decisions."""
        ...

    async def shadows(self, *, start: int, end: int | None = None, limit: int) -> list[StoredShadow]:
        """Return the newest `limit` records with start <= time < end (microseconds since 1970), oldest first. Raises
        DecisionsUnavailable."""
        ...
