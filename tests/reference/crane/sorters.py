"""The orders of pods of Crane v0.11.0 (executor/sort/*.go). The pod that sorts first is acted on first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from agent.model import PodState
from agent.qos import QosClass
from tests.reference.crane.faults import CraneFault

TOLERANCE = 1e-9
"""utils.AlmostEqual (pkg/utils/util.go:72)."""
MOST_PODS = 12
"""sort.Sort of Go sorts up to 12 elements by insertion; for more, the order of equal pods is unspecified."""
CLASSES = (QosClass.UNKNOWN, QosClass.BEST_EFFORT, QosClass.BURSTABLE, QosClass.GUARANTEED)

Compare = Callable[[PodState, PodState], int]


def almost_equal(first: float, second: float) -> bool:
    """Whether two numbers are equal for Crane."""
    return abs(first - second) <= TOLERANCE


def _numbers(first: float, second: float) -> int:
    if almost_equal(first, second):
        return 0
    return -1 if first < second else 1


def _priority(first: PodState, second: PodState) -> int:
    return (first.priority > second.priority) - (first.priority < second.priority)


def _qos_class(first: PodState, second: PodState) -> int:
    return CLASSES.index(first.qos) - CLASSES.index(second.qos)


def _running_time(first: PodState, second: PodState) -> int:
    """sort.go:43: a pod without a start time comes first, then the most recently started."""
    if first.start_time is None or second.start_time is None:
        return (first.start_time is not None) - (second.start_time is not None)
    return (first.start_time < second.start_time) - (first.start_time > second.start_time)


def _usage(of: Callable[[PodState], float | None]) -> Compare:
    return lambda first, second: _numbers(of(second) or 0.0, of(first) or 0.0)


def _uses_elastic(limit: Callable[[PodState], float | None]) -> Compare:
    return lambda first, second: bool(limit(second)) - bool(limit(first))


def _elastic_share(
    of: Callable[[PodState], float | None], limit: Callable[[PodState], float | None], scale: float
) -> Compare:
    """The used fraction of the extended limit, divided by `scale`."""

    def compare(first: PodState, second: PodState) -> int:
        if not limit(first) or not limit(second):  # the key before this one has separated the two pods
            return 0
        shares = [(of(pod) or 0.0) / ((limit(pod) or 0.0) * scale) for pod in (first, second)]
        return _numbers(*shares)

    return compare


def _cpu(pod: PodState) -> float | None:
    return pod.cpu


def _memory(pod: PodState) -> float | None:
    return pod.memory


def _cpu_limit(pod: PodState) -> float | None:
    return pod.extended_cpu_limit


def _memory_limit(pod: PodState) -> float | None:
    return pod.extended_memory_limit


def _chains(scale: float) -> Mapping[str, tuple[Compare, ...]]:
    def chain(of: Callable[[PodState], float | None], limit: Callable[[PodState], float | None]) -> tuple[Compare, ...]:
        share = _elastic_share(of, limit, scale)
        return (_uses_elastic(limit), _priority, _qos_class, _usage(of), share, _running_time)

    return {
        "general": (_priority, _qos_class, _running_time),
        "cpu": chain(_cpu, _cpu_limit),
        "mem": chain(_memory, _memory_limit),
    }


CHAINS = _chains(1_000.0)
"""Crane keeps extended limits in thousandths (pkg/utils/pod.go:273)."""
REPAIRED_CHAINS = _chains(1.0)
"""The chains without the fault SHARES."""


def importance(sorter: str, first: PodState, second: PodState) -> int:
    """Compare two pods only by their extended limits, priorities and QoS classes; for CPU or memory."""
    return next((result for key in CHAINS[sorter][:3] if (result := key(first, second))), 0)


def ordered(sorter: str, pods: Iterable[PodState], repaired: Set[CraneFault] = frozenset()) -> list[PodState]:
    """Sort at most `MOST_PODS` pods with the insertion sort of Go: near equality is not transitive, so the result
    depends on the algorithm."""
    keys = (REPAIRED_CHAINS if CraneFault.SHARES in repaired else CHAINS)[sorter]

    def compare(first: PodState, second: PodState) -> int:
        return next((result for key in keys if (result := key(first, second))), 0)

    done: list[PodState] = []
    for pod in sorted(pods, key=lambda each: each.key) if CraneFault.TIES in repaired else pods:
        place = len(done)
        while place and compare(pod, done[place - 1]) < 0:
            place -= 1
        done.insert(place, pod)
    if len(done) > MOST_PODS:
        raise ValueError(f"{len(done)} pods: the order of more than {MOST_PODS} is unspecified in Crane")
    return done
