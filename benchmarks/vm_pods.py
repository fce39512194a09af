"""A trace for `simulate` from the recorded load of VMs: each pod has the CPU of one VM.

Pods have random sizes and VMs, and their days begin on a random day of the VM's record, at the same hour. They live for
a day on average. Each requests the mean use of its VM, so that peaks exceed the requests; memory is constant. Equal
seeds give equal traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lab.backtest.deals import LEAST_USE, MOST_GAPS
from lab.backtest.usage import UsageGrid
from lab.fleet.machines import machines
from lab.traces.records import MOST_PODS, Begin, EndRecord, NodeRecord, PodRecord, Record, UsageRecord
from watcher.arrays import F64, I64
from watcher.core.forecast.maxima import DAY_SLOTS, SLOT_S

BEGINS = 1_699_920_000.0  # 2023-11-14T00:00:00Z
SIZES = (1.0, 2.0, 4.0)  # cores
LIFETIME_S = 86_400.0  # mean
FILLING_S = 1_800.0
REQUESTED_SHARE = 0.4  # of the allocatable CPU
LEAST_REQUEST = 0.05  # cores
GIB_PER_CORE = 3.0


@dataclass(frozen=True, slots=True)
class VmPods:
    """Pods in order of arrival [n]: times in seconds since the beginning, `size` and `request` in cores; `first` is
    the slot of the VM's record at the beginning of the trace."""

    arrives: F64
    lifetime: F64
    vm: I64
    first: I64
    size: F64
    request: F64


def vm_trace(grid: UsageGrid, *, nodes: int, seed: int, days: int) -> Iterator[Record]:
    """Generate the trace from VMs with few gaps that are not idle; a pod beyond the end of the record continues at its
    beginning."""
    there = machines(nodes, seed=seed)
    share = _shares(grid)
    pods = _pods(share, allocatable=sum(each.allocatable_milli for each in there) / 1000.0, seed=seed, days=days)
    yield Begin(BEGINS, f"load of {share.shape[1]:,} VMs as {len(pods.arrives):,} pods on {nodes} nodes, seed {seed}")
    for each in there:
        yield NodeRecord(
            BEGINS,
            each.name,
            float(each.pool.cores),
            int(each.memory),
            each.allocatable_milli / 1000.0,
            each.allocatable_bytes,
            MOST_PODS,
        )
    yield from _records(pods, share, days=days)
    yield EndRecord(BEGINS + days * 86_400.0)


def _shares(grid: UsageGrid) -> F64:
    """The use of each usable VM as a share of its capacity [slots, n], whole days."""
    busy = grid.usage.mean(axis=0) > LEAST_USE * grid.capacity
    usable = np.flatnonzero((1.0 - grid.present < MOST_GAPS) & busy)
    slots = len(grid.usage) // DAY_SLOTS * DAY_SLOTS
    found: F64 = grid.usage[:slots, usable] / grid.capacity[usable]
    return found


def _pods(share: F64, *, allocatable: float, seed: int, days: int) -> VmPods:
    """The pods that fill the cluster, and their replacements."""
    random = np.random.default_rng(seed)
    mean = share.mean(axis=0)
    typical = float(np.maximum(mean[None, :] * np.array(SIZES)[:, None], LEAST_REQUEST).mean())
    filling = round(REQUESTED_SHARE * allocatable / typical)
    later = round(filling * days * 86_400.0 / LIFETIME_S)
    arrives = np.concatenate(
        [random.uniform(0.0, FILLING_S, filling), np.sort(random.uniform(FILLING_S, days * 86_400.0, later))]
    )
    arrives[:filling].sort()
    vm = random.integers(share.shape[1], size=len(arrives))
    size = np.array(SIZES)[random.integers(len(SIZES), size=len(arrives))]
    first = DAY_SLOTS * random.integers(len(share) // DAY_SLOTS, size=len(arrives))
    lifetime = np.maximum(random.exponential(LIFETIME_S, len(arrives)), SLOT_S)
    return VmPods(arrives, lifetime, vm, first, size, np.maximum(mean[vm] * size, LEAST_REQUEST))


def _records(pods: VmPods, share: F64, *, days: int) -> Iterator[Record]:
    """The records of the pods; usage only where it changes."""
    slot_of = (pods.arrives // SLOT_S).astype(np.int64)
    ends = pods.arrives + pods.lifetime
    last = np.full(len(slot_of), np.nan)
    running = np.zeros(0, dtype=np.int64)
    edges = np.searchsorted(slot_of, np.arange(days * DAY_SLOTS + 1))
    for slot in range(days * DAY_SLOTS):
        time = slot * float(SLOT_S)
        running = running[ends[running] > time]
        cores = _cores(pods, share, running, slot)
        changed = cores != last[running]
        for pod, used in zip(running[changed].tolist(), cores[changed].tolist(), strict=True):
            yield UsageRecord(BEGINS + time, f"p{pod}", used)
        last[running] = cores
        new = np.arange(edges[slot], edges[slot + 1])
        last[new] = _cores(pods, share, new, slot)
        for pod in new.tolist():
            yield from _arrival(pods, pod, float(last[pod]))
        running = np.concatenate([running, new])


def _cores(pods: VmPods, share: F64, which: I64, slot: int) -> F64:
    """The use of these pods in a slot of the trace, in cores."""
    used: F64 = share[(pods.first[which] + slot) % len(share), pods.vm[which]] * pods.size[which]
    return used.round(3)


def _arrival(pods: VmPods, pod: int, cores: float) -> Iterator[Record]:
    time, request = BEGINS + round(float(pods.arrives[pod]), 3), round(float(pods.request[pod]), 3)
    size = int(GIB_PER_CORE * request * 2**30)
    owner = f"ReplicaSet/vm-{pods.vm[pod]}"
    lifetime = round(float(pods.lifetime[pod]), 3)
    yield PodRecord(time, f"p{pod}", f"vms/p{pod}", request, size, None, None, lifetime, 0, owner)
    yield UsageRecord(time, f"p{pod}", cores)
