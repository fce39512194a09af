"""The outcome of a stored decision: as recorded, or derived from a later decision or the pod's current state."""

from __future__ import annotations

from collections.abc import Callable

from scorers.cluster.pods import identity, scheduled_at
from scorers.decisions import records
from scorers.decisions.decision_document import ASKED_AGAIN, BOUND, PENDING, UNKNOWN, OutcomeState
from scorers.decisions.records import PlacementOutcome
from watcher.core.decisions import MICROSECONDS, StoredDecision
from watcher.core.kubernetes.objects import Pod


def outcome_state(
    row: StoredDecision, later: StoredDecision | None, pod_of: Callable[[str], Pod | None]
) -> OutcomeState:
    """Return the outcome of a decision; `later` is the next decision about the same pod, `pod_of` returns the current
    pod NAMESPACE/NAME."""
    outcome = records.decode_outcome(row.outcome)
    if outcome is not None:
        return OutcomeState(outcome.kind, outcome)
    if later is not None:
        return OutcomeState(ASKED_AGAIN, time=later.time / MICROSECONDS)
    pod = pod_of(f"{row.namespace}/{row.pod}")
    if pod is None or identity(pod) != row.uid:
        return OutcomeState(UNKNOWN)
    if not pod.spec.node_name:
        return OutcomeState(PENDING)
    at = max(scheduled_at(pod) or 0.0, row.time / MICROSECONDS)
    return OutcomeState(BOUND, PlacementOutcome(BOUND, at, pod.spec.node_name))
