"""Reads cpu.weight and memory.high of pods, and adds their stored original values.

All functions block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from agent.audit.log import StoredOriginal
from agent.cgroups.base import CpuWeight, MemoryHigh
from agent.cgroups.errors import CgroupError
from agent.executor.groups import Groups
from agent.model import Knobs, PodKnobs, PodState

T = TypeVar("T")

UNLIMITED = float("inf")


def read_knobs(pods: Iterable[PodState], groups: Groups, remembered: Iterable[StoredOriginal]) -> Knobs:
    """Read the knobs of pods, by uid. Values that cannot be read are None; raises nothing."""
    weights: dict[str, int] = {}
    highs: dict[str, float] = {}
    for each in remembered:
        if isinstance(each.original, CpuWeight):
            weights[each.uid] = each.original.weight
        elif isinstance(each.original, MemoryHigh):
            highs[each.uid] = _bytes(each.original.limit)
    return {
        pod.uid: replace(_now(pod.uid, groups), original_weight=weights.get(pod.uid), original_high=highs.get(pod.uid))
        for pod in pods
    }


def _now(uid: str, groups: Groups) -> PodKnobs:
    try:
        path = groups.find(uid)
    except CgroupError:
        return PodKnobs()
    if path is None:
        return PodKnobs()
    try:
        with groups.open(path) as group:
            weight, high = _unless_failing(group.weight), _unless_failing(lambda: _bytes(group.memory_high()))
            return PodKnobs(weight, group.least_weight, high)
    except CgroupError:
        return PodKnobs()


def _unless_failing(reading: Callable[[], T]) -> T | None:
    try:
        return reading()
    except CgroupError:
        return None


def _bytes(limit: int | None) -> float:
    return UNLIMITED if limit is None else float(limit)
