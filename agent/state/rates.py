"""Convert two readings of a counter into a rate.

A counter holds the total since the machine, or the control group, started. A rate needs a previous reading, a counter
that did not decrease (a decrease means that it was reset), and an elapsed time that is positive and not too long to
describe the present. Otherwise `NoRate` is raised with the reason; a rate is never replaced by 0.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

NO_PREVIOUS_READING = "no previous reading yet: rates are available from the next cycle"
COUNTER_RESET = "its counter decreased: it was reset"


class NoRate(Exception):
    """A rate cannot be computed; the message is the reason."""


def seconds_between(previous: float, current: float, *, longest: float) -> float:
    """Seconds between two readings of the monotonic clock. Raises NoRate if it is not positive, or longer than
    `longest`, which means that the machine was suspended or a cycle did not end."""
    elapsed = current - previous
    if elapsed <= 0.0:
        raise NoRate("no time has passed since the previous reading")
    if elapsed > longest:
        raise NoRate(f"the previous reading is {elapsed:.0f} s old, more than {longest:g} s")
    return elapsed


def growth(previous: int, current: int) -> int:
    """Increase of a counter. Raises NoRate if it decreased."""
    if current < previous:
        raise NoRate(COUNTER_RESET)
    return current - previous


def usage_cores(cpu_ns: int, elapsed_ns: int) -> float:
    """Average cores in use: CPU time divided by elapsed time; 0 if no time elapsed (as in Crane's
    cadvisor_linux.go)."""
    return cpu_ns / elapsed_ns if elapsed_ns > 0 else 0.0


def run_queue_time(waited_ns: int, elapsed_ns: int) -> float:
    """Microseconds of waiting for a CPU per second, summed over all tasks; 0 if no time elapsed (as in Crane)."""
    return waited_ns * 1e6 / elapsed_ns if elapsed_ns > 0 else 0.0


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Time of a CPU since boot, in ticks of 10 ms. Waiting for I/O and time stolen by a hypervisor count as busy, as in
    Crane; guest time is included in user time."""

    busy: int
    idle: int

    @property
    def all(self) -> int:
        """Busy and idle ticks together."""
        return self.busy + self.idle


def busy_percent(previous: CpuTimes, current: CpuTimes) -> float:
    """Percent of the time between two readings in which a CPU was busy: 100 * growth of busy / growth of all; 0 if busy
    did not grow, 100 if only busy grew (as in Crane's nodelocal/cpu.go)."""
    return _share(current.busy - previous.busy, current.all - previous.all)


def idle_percent(previous: CpuTimes, current: CpuTimes) -> float:
    """Percent of the time between two readings in which a CPU was idle."""
    return _share(current.idle - previous.idle, current.all - previous.all)


def _share(part: int, whole: int) -> float:
    if part <= 0:
        return 0.0
    return min(100.0, 100.0 * part / whole) if whole > 0 else 100.0
