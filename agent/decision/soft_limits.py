"""Plans soft limits: cpu.weight before a pod's quota is lowered, and memory.high before a pod is evicted.

A pod with a low `cpu.weight` can still use idle CPU. If a policy asks for it, lowering the weight to the minimum
replaces the pod's first quota step. The release that the quota would have had is assumed until `effect` has passed; if
usage has not fallen by then, the quota follows. Restoring a weight, which happens after the quotas, gives back an
amount that cannot be computed.

`memory.high` makes the kernel reclaim memory from a pod and slow it down while it allocates more. It is set below the
pod's usage by the gap, at most by a twentieth of the usage, and never below the pod's request. If the kernel cannot
reclaim the memory, the pod gets no further step, and the gap is open again once `effect` has passed.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from agent.metrics.action_metric import PodSteps
from agent.metrics.pod_actions import UNKNOWN_MEMORY
from agent.model import CPU, CPU_WEIGHT, MEMORY, MEMORY_HIGH, KnobChange, PodKnobs, PodState, Step

MOST_HELD = 0.05
"""Largest fraction of a pod's usage that one step reclaims."""
GRAIN = 1 << 16
"""Bytes: the largest base page size of Linux. Kernels store a multiple of it unchanged."""
SLACK = 0.01
"""Fraction by which a pod's usage may exceed memory.high although the limit works: each CPU charges some pages in
advance."""
_MILLI = 1_000.0


def weight_lowered(pod: PodState, knobs: PodKnobs, quotas: PodSteps) -> PodSteps:
    """Replace these quota steps by a step that lowers cpu.weight to the minimum. Returns `quotas` unchanged if the
    weight was lowered before, is at its minimum, or is unknown, or if the quotas release no CPU."""
    hoped = quotas.released.get(CPU, 0.0)
    if knobs.weight is None or knobs.original_weight is not None or knobs.weight <= knobs.least_weight or hoped <= 0.0:
        return quotas
    metric = quotas.steps[0].metric
    aim = None if pod.cpu is None else pod.cpu - hoped / _MILLI
    change = KnobChange(CPU_WEIGHT, knobs.weight, knobs.least_weight, aim)
    return PodSteps((Step("throttle", change, pod.key, pod.uid, metric, quotas.released),), quotas.released)


def memory_high_lowered(pod: PodState, knobs: PodKnobs, metric: str, gap: float) -> PodSteps:
    """Plan setting memory.high below the pod's usage; `gap` in bytes."""
    if pod.memory is None:
        return PodSteps(problem=UNKNOWN_MEMORY, unknown=True)
    if knobs.memory_high is None:
        return PodSteps(problem="its control group has no memory.high (cgroup v2 only)")
    wanted = pod.memory - min(gap, MOST_HELD * pod.memory)
    least = -(-(pod.memory_request or 1) // GRAIN) * GRAIN
    after = max(int(wanted) // GRAIN * GRAIN, least)
    if after >= pod.memory:
        return PodSteps(problem="its memory usage does not exceed its request")
    if pod.memory > (1.0 + SLACK) * knobs.memory_high or after >= knobs.memory_high:
        return PodSteps(problem="its memory.high is below its usage already, and the kernel can reclaim no more")
    released = {MEMORY: float(pod.memory - after)}
    change = KnobChange(MEMORY_HIGH, limit(knobs.memory_high), after, float(after))
    return PodSteps((Step("hold", change, pod.key, pod.uid, metric, released),), released)


def limit(high: float | None) -> int | None:
    """Convert a memory.high in bytes (infinity: no limit) to the form of a step (None: no limit)."""
    return None if high is None or high == float("inf") else int(high)
