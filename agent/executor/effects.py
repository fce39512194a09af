"""Measures the release of steps by comparing the usage before a step with the usage in a later cycle.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from agent.audit.entries import AuditEntry
from agent.model import CPU, MEMORY, EvictStep, KnobStep, PodState, QuotaStep, ReclaimStep, Released, State, Step

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
