"""Compares quotas, cpu.weight and memory.high with their original values, to find values that are not restored yet.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agent.model import ContainerState, Knobs, Original, PodKnobs, PodState

Originals = Mapping[str, Original]
"""CPU quotas before the agent's first write, by container id."""


def quota_cores(container: ContainerState) -> float | None:
    """The quota in cores; None if there is none (-1 in cgroup v1, 0 in cAdvisor)."""
    if container.quota is None or container.quota <= 0:
        return None
    return container.quota / container.period


def is_original(container: ContainerState, original: Original | None) -> bool:
    """Whether the quota was never lowered, or has its original value again."""
    now = quota_cores(container)
    if original is None or now is None:
        return True
    return original.quota is not None and now >= original.quota / original.period


def quota_lowered(pods: Iterable[PodState], originals: Originals) -> bool:
    """Whether any container of these pods has a quota below its original value."""
    return any(not is_original(each, originals.get(each.id)) for pod in pods for each in pod.containers)


def owed_cpu(pods: Iterable[PodState], originals: Originals, knobs: Knobs) -> bool:
    """Whether any of these pods has a quota or cpu.weight below its original value."""
    return any(quota_lowered((pod,), originals) or knobs_of(pod, knobs).owes_weight for pod in pods)


def owed_memory(pods: Iterable[PodState], knobs: Knobs) -> bool:
    """Whether any of these pods has a memory.high below its original value."""
    return any(knobs_of(pod, knobs).owes_memory for pod in pods)


def knobs_of(pod: PodState, knobs: Knobs) -> PodKnobs:
    """The knobs of a pod; unknown values if they were not read."""
    return knobs.get(pod.uid, UNKNOWN)


UNKNOWN = PodKnobs()
