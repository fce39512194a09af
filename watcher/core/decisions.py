"""Storage interface for decisions of modules, such as the scorers' choice of a node for a pod.

The watcher stores the pod and the time of a decision; the decision and its reasons are opaque bytes. Storing never
delays a decision: `keep_decisions` returns immediately, and decisions that cannot be written are lost and counted.

Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

MICROSECONDS = 1_000_000
"""Units of the keys of decisions per second."""

DecisionKind = Literal["placement", "shadow"]
"""Kind of a decision: "placement", the extender's answer for a pod; "shadow", the hypothetical decisions of other
profiles for a bound pod."""
KINDS: tuple[DecisionKind, ...] = get_args(DecisionKind)


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
    kind: DecisionKind = "placement"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionQuery:
    """At most `limit` decisions of a kind with start <= time < end (microseconds since 1970), newest or oldest first;
    `pod` is a namespace and name, None for all pods. `namespace`, `part` (contained in the pod's name), and `node` (of
    the outcome; an outcome that is not written yet is missed) select decisions, "" for all."""

    kind: DecisionKind
    pod: tuple[str, str] | None = None
    namespace: str = ""
    part: str = ""
    node: str = ""
    start: int = 0
    end: int = 2**63 - 1
    limit: int
    newest: bool = True

    def matches(self, decision: StoredDecision) -> bool:
        """Return whether the decision has this kind, pod, node, and time."""
        is_wanted = decision.kind == self.kind and self.pod in (None, (decision.namespace, decision.pod))
        in_place = self.namespace in ("", decision.namespace) and self.node in ("", decision.node)
        return is_wanted and in_place and self.part in decision.pod and self.start <= decision.time < self.end


class DecisionsUnavailable(Exception):
    """Stored decisions are currently unreadable; `hint` describes the fix for the operator."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class DecisionStore(Protocol):
    """Store for placements and for the records of shadow mode."""

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

    async def decisions(self, query: DecisionQuery) -> list[StoredDecision]:
        """Return the decisions of a query, including those that are queued but not written yet. Raises
        DecisionsUnavailable."""
        ...

    async def placements_held(self) -> DecisionsExtent:
        """Return number and time range of the stored placements. Raises DecisionsUnavailable."""
        ...
