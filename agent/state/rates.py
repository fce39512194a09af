"""From two readings of a counter to a rate, and the cases in which there is none.

A counter tells how much there was since the machine, or the group, began. There is no rate with the first reading, none
where the counter has gone back (what it counts for has begun anew), and none over a time that is nothing or so long
that it says nothing of now. Each is a `NoRate` with its reason, and never a 0.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = "there is no reading before this one yet: rates come with the next cycle"
WENT_BACK = "its counter went back: what it counts for began anew"


class NoRate(Exception):
    """There is no rate, and why."""


def seconds_between(previous: float, current: float, *, longest: float) -> float:
    """The time between two readings of the monotonic clock. Raises NoRate where it is none, or longer than `longest`:
    the machine slept, or a cycle did not end."""
    elapsed = current - previous
    if elapsed <= 0.0:
        raise NoRate("no time has passed since the reading before this one")
    if elapsed > longest:
        raise NoRate(f"the reading before this one is {elapsed:.0f} s old, more than {longest:g} s")
    return elapsed


def growth(previous: int, current: int) -> int:
    """By how much a counter grew. Raises NoRate where it went back."""
    if current < previous:
        raise NoRate(WENT_BACK)
    return current - previous


def usage_cores(cpu_ns: int, elapsed_ns: int) -> float:
    """Cores in use on average: CPU time over time; 0 over no time (upstream, cadvisor_linux.go)."""
    return cpu_ns / elapsed_ns if elapsed_ns > 0 else 0.0


def run_queue_time(waited_ns: int, elapsed_ns: int) -> float:
    """Microseconds of waiting for a CPU in each second, over all tasks; 0 over no time (upstream)."""
    return waited_ns * 1e6 / elapsed_ns if elapsed_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """What a CPU did since it was started, in ticks of 10 ms. Waiting for disks and time stolen by a hypervisor count
    as busy, as upstream has it; guests are within `user`."""

    busy: int
    idle: int

    @property
    def all(self) -> int:
        """Both."""
        return self.busy + self.idle


def busy_percent(previous: CpuTimes, current: CpuTimes) -> float:
    """Percent of the time between that a CPU was busy: 100 * growth of busy / growth of all; 0 where busy did not grow,
    100 where it alone did (upstream, nodelocal/cpu.go)."""
    return _share(current.busy - previous.busy, current.all - previous.all)


def idle_percent(previous: CpuTimes, current: CpuTimes) -> float:
    """The same of being idle."""
    return _share(current.idle - previous.idle, current.all - previous.all)


def _share(part: int, whole: int) -> float:
    if part <= 0:
        return 0.0
    return min(100.0, 100.0 * part / whole) if whole > 0 else 100.0
