"""Convert two readings of a counter into a rate.

A counter holds the total since the machine, or the control group, started. A rate needs a previous reading, a counter
that did not decrease (a decrease means that it was reset), and an elapsed time that is positive and not too long to
describe the present. Otherwise `NoRate` is raised with the reason; a rate is never replaced by 0.

Pure.
"""

from __future__ import annotations

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


def usage_cores(cpu_ns: int, elapsed_s: float) -> float:
    """Average cores in use: CPU time divided by the positive elapsed time."""
    return cpu_ns / 1e9 / elapsed_s


def run_queue_time(waited_ns: int, elapsed_s: float) -> float:
    """Microseconds of waiting for a CPU per second, summed over all tasks; the elapsed time is positive."""
    return waited_ns / 1e3 / elapsed_s


def waited_ns(schedstat: bytes) -> int:
    """/proc/PID/schedstat: nanoseconds that the process's main thread waited for a CPU."""
    return int(schedstat.split()[1])
