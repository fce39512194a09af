"""The gentler steps: what is done to a pod before its quota is lowered, and before it is evicted.

`cpu.weight` leaves a pod all the CPU that nobody else wants. Where a policy asks for it, it takes the place of a pod's
first lowered quota: the pod's weight becomes the least there is, and what the quota would have released is hoped for
until the effect's time is over. If it was in vain the quota follows. A weight takes nothing where CPU is left, so
giving it back, after the quotas, lets nothing come back that could be computed.

`memory.high` lets the kernel reclaim from a pod, and slows it down while it wants more. It is set to just below what
the pod uses, by the gap and no more than a twentieth of its usage, and never below its request. What the kernel cannot
reclaim stays in use; then there is no further step, and the gap is there again once the effect's time is over.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from agent.metrics.action_metric import Planned
from agent.metrics.pod_actions import UNKNOWN_MEMORY
from agent.model import CPU, CPU_WEIGHT, MEMORY, MEMORY_HIGH, KnobStep, PodKnobs, PodState

MOST_HELD = 0.05
"""The part of its usage that is taken from a pod in a round, at most."""
GRAIN = 1 << 16
"""Bytes: the largest page that Linux has for a limit; a multiple of it is kept by every kernel as it was written."""
SLACK = 0.01
"""How far above memory.high, as a part of it, a pod is that keeps to it: each CPU has some pages charged in advance."""
_MILLI = 1_000.0


def weight_lowered(pod: PodState, knobs: PodKnobs, quotas: Planned) -> Planned:
    """In the place of these quotas; those themselves where the weight had its turn, where it is the least already, or
    where nobody knows it."""
    hoped = quotas.released.get(CPU, 0.0)
    if knobs.weight is None or knobs.original_weight is not None or knobs.weight <= knobs.least_weight or hoped <= 0.0:
        return quotas
    metric = quotas.steps[0].metric
    aim = None if pod.cpu is None else pod.cpu - hoped / _MILLI
    step = KnobStep(
        pod.key, pod.uid, CPU_WEIGHT, knobs.weight, knobs.least_weight, metric, released=quotas.released, aim=aim
    )
    return Planned((step,), quotas.released)


def weight_restored(pod: PodState, knobs: PodKnobs, metric: str) -> Planned:
    """The original one, at once."""
    if knobs.weight is None:
        return Planned(problem="its cpu.weight cannot be read now")
    step = KnobStep(pod.key, pod.uid, CPU_WEIGHT, knobs.weight, knobs.original_weight, metric, kind="restore")
    return Planned((step,))


def held_back(pod: PodState, knobs: PodKnobs, metric: str, gap: float) -> Planned:
    """memory.high just below what the pod uses."""
    if pod.memory is None:
        return Planned(problem=UNKNOWN_MEMORY, unknown=True)
    if knobs.memory_high is None:
        return Planned(problem="its control group has no memory.high, which is of version 2")
    wanted = pod.memory - min(gap, MOST_HELD * pod.memory)
    least = -(-(pod.memory_request or 1) // GRAIN) * GRAIN
    after = max(int(wanted) // GRAIN * GRAIN, least)
    if after >= pod.memory:
        return Planned(problem="it uses no more than its request")
    if pod.memory > (1.0 + SLACK) * knobs.memory_high or after >= knobs.memory_high:
        return Planned(problem="its memory.high is below its usage already, and the kernel finds no more to take")
    released = {MEMORY: float(pod.memory - after)}
    step = KnobStep(
        pod.key,
        pod.uid,
        MEMORY_HIGH,
        limit(knobs.memory_high),
        after,
        metric,
        released=released,
        aim=float(after),
        kind="hold",
    )
    return Planned((step,), released)


def loosened(pod: PodState, knobs: PodKnobs, metric: str) -> Planned:
    """The original memory.high, at once."""
    if knobs.memory_high is None:
        return Planned(problem="its memory.high cannot be read now")
    before, after = limit(knobs.memory_high), limit(knobs.original_high)
    return Planned((KnobStep(pod.key, pod.uid, MEMORY_HIGH, before, after, metric, kind="restore"),))


def limit(high: float | None) -> int | None:
    """As a step has it: None is no limit."""
    return None if high is None or high == float("inf") else int(high)
