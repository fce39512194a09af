"""The order in which pods are acted on: chains of sort keys.

A chain compares two pods key by key; the first key in which they differ decides. The pod that sorts first is acted on
first. The last key is always namespace/name, so that the order is total and the same in every cycle.

| key | pod that comes first |
|---|---|
| classAndPriority | lower QoS class (unknown, BestEffort, Burstable, Guaranteed), then lower priority value |
| cpuUsage, memUsage | higher usage, so that fewer pods are affected |
| extCpuUsage, extMemUsage | pod with a limit of gocrane.io/cpu (memory), then the smaller used fraction of it |
| runningTime | pod that has not started, then the most recently started |

Usages that differ by 1e-9 or less are equal. Pods with unknown usage come last.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cmp_to_key

from agent.model import PodState
from agent.qos import QosClass

TOLERANCE = 1e-9

Shown = float | str | None

_CLASSES = (QosClass.UNKNOWN, QosClass.BEST_EFFORT, QosClass.BURSTABLE, QosClass.GUARANTEED)


@dataclass(frozen=True, slots=True)
class SortKey:
    """One sort key. `compare(p1, p2)` is below 0 if p1 comes first, above 0 if p2 does, and 0 if they are equal.
    `value` is the value shown in explanations. `rank`: the key describes a pod's importance, not its usage."""

    name: str
    compare: Callable[[PodState, PodState], int]
    value: Callable[[PodState], Shown]
    rank: bool = False


@dataclass(frozen=True, slots=True)
class Sorter:
    """A chain of sort keys, created by `ordered_by`."""

    keys: tuple[SortKey, ...]

    def sort(self, pods: Iterable[PodState]) -> list[PodState]:
        """Return the pods in the order in which they are acted on, independent of the input order."""
        named = sorted(pods, key=lambda pod: pod.key)  # equality within a tolerance is not transitive: fix the input
        return sorted(named, key=cmp_to_key(self.compare))

    def compare(self, first: PodState, second: PodState) -> int:
        """Compare by the first key in which the pods differ; 0 if there is none."""
        for key in self.keys:  # called for every pair of pods
            if result := key.compare(first, second):
                return result
        return 0

    def values(self, pod: PodState) -> dict[str, Shown]:
        """The value of each key for the pod, in order, by key name."""
        return {**{key.name: key.value(pod) for key in self.keys}, "name": pod.key}

    def rank(self, first: PodState, second: PodState) -> int:
        """Like `compare`, but only by the keys with `rank`."""
        return next((result for key in self.keys if key.rank and (result := key.compare(first, second))), 0)


def ordered_by(*keys: SortKey) -> Sorter:
    """Create a chain from sort keys, the most significant first."""
    return Sorter(keys)


def _numbers(first: float | None, second: float | None) -> int:
    """Compare two numbers: the smaller first, None last."""
    if first is None or second is None:
        return (first is None) - (second is None)
    return 0 if abs(first - second) <= TOLERANCE else -1 if first < second else 1


def ascending(name: str, value: Callable[[PodState], float | None], *, rank: bool = False) -> SortKey:
    """A key by which pods with a smaller number come first, and pods without a number last."""
    return SortKey(name, lambda p1, p2: _numbers(value(p1), value(p2)), value, rank)


def descending(name: str, value: Callable[[PodState], float | None]) -> SortKey:
    """A key by which pods with a larger number come first, and pods without a number last."""

    def negative(pod: PodState) -> float | None:
        number = value(pod)
        return None if number is None else -number

    return SortKey(name, lambda p1, p2: _numbers(negative(p1), negative(p2)), value)


def _class(pod: PodState) -> int:
    return _CLASSES.index(pod.qos)


def _class_and_priority(first: PodState, second: PodState) -> int:
    return (_class(first) - _class(second)) or _numbers(first.priority, second.priority)


def _start(pod: PodState) -> float:
    return float("-inf") if pod.start_time is None else -pod.start_time


def _extended_share(usage: float | None, limit: float | None) -> float | None:
    return usage / limit if usage is not None and limit else None


class_and_priority = SortKey(
    "classAndPriority", _class_and_priority, lambda pod: f"{pod.qos.value or 'unknown'}/{pod.priority}", rank=True
)
running_time = SortKey(
    "runningTime", lambda p1, p2: (_start(p1) > _start(p2)) - (_start(p1) < _start(p2)), lambda pod: pod.start_time
)
cpu_usage = descending("cpuUsage", lambda pod: pod.cpu)
mem_usage = descending("memUsage", lambda pod: pod.memory)
ext_cpu_usage = ascending("extCpuUsage", lambda pod: _extended_share(pod.cpu, pod.extended_cpu_limit))
ext_mem_usage = ascending("extMemUsage", lambda pod: _extended_share(pod.memory, pod.extended_memory_limit))


@dataclass(frozen=True, slots=True)
class Chains:
    """The sorters of the built-in metrics."""

    general: Sorter
    cpu: Sorter
    memory: Sorter


CHAINS = Chains(
    general=ordered_by(class_and_priority, running_time),
    cpu=ordered_by(class_and_priority, cpu_usage, ext_cpu_usage, running_time),
    memory=ordered_by(class_and_priority, mem_usage, ext_mem_usage, running_time),
)
