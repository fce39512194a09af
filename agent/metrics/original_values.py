"""What is owed: quotas and knobs that the agent lowered and has not given back.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.model import ContainerState, Knobs, Original, PodKnobs, PodState

Originals = Mapping[str, Original]
"""The CPU quotas before the agent's first write, by container id."""


def quota_cores(container: ContainerState) -> float | None:
    """The quota in cores; None where there is none (cgroup v1 says -1, cAdvisor 0)."""
    if container.quota is None or container.quota <= 0:
        return None
    return container.quota / container.period


def is_original(container: ContainerState, original: Original | None) -> bool:
    """Whether the container is owed nothing: its quota was never lowered, or it is back."""
    now = quota_cores(container)
    if original is None or now is None:
        return True
    return original.quota is not None and now >= original.quota / original.period


def owed(pods: Iterable[PodState], originals: Originals) -> bool:
    """Whether any container of these pods has a lower quota than it had."""
    return any(not is_original(each, originals.get(each.id)) for pod in pods for each in pod.containers)


def owed_cpu(pods: Iterable[PodState], originals: Originals, knobs: Knobs) -> bool:
    """Whether any of these pods has a lower quota, or less weight, than it had."""
    return any(owed((pod,), originals) or knobs_of(pod, knobs).owes_weight for pod in pods)


def owed_memory(pods: Iterable[PodState], knobs: Knobs) -> bool:
    """Whether any of these pods is held back from memory."""
    return any(knobs_of(pod, knobs).owes_memory for pod in pods)


def knobs_of(pod: PodState, knobs: Knobs) -> PodKnobs:
    """Those of a pod; unknown ones of one that nobody looked at."""
    return knobs.get(pod.uid, UNKNOWN)


UNKNOWN = PodKnobs()
