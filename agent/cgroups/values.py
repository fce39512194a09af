"""The values of control groups: usage, pressure, quotas, weights and memory limits, their text in the audit file and in
messages, and parsers for the content of cgroup files.

The parsers are functions from bytes to numbers; they raise ValueError for content that the kernel never writes. The
caller adds the name of the file.

Units: CPU time in nanoseconds, quotas and periods in microseconds, memory in bytes. None means unlimited.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

# --- usage and limits ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quota:
    """CPU limit of a group: `quota` microseconds in each `period` (microseconds); a quota of None is unlimited. `burst`
    microseconds of unused quota may be used later; the kernel refuses a burst above the quota."""

    quota: int | None
    period: int = 100_000
    burst: int = 0

    @property
    def cores(self) -> float:
        """The quota in cores; infinity if unlimited."""
        return float("inf") if self.quota is None else self.quota / self.period


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """CPU usage of a group since its creation, and its throttling: the number of periods in which it ran, the number of
    periods in which it used up its quota, and the throttled time. The throttling values are None if the cpu controller
    is not enabled for the group."""

    usage_ns: int
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Current memory usage of a group in bytes. The working set excludes the inactive file cache, as in the kubelet's
    eviction signals."""

    usage: int
    working_set: int


@dataclass(frozen=True, slots=True)
class PressureAverages:
    """Percentage of time (0–100) lost to waiting, averaged over 10, 60 and 300 seconds, and its total in
    microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure stall information of one resource: time in which some tasks, or all tasks (`full`), waited for it.
    `full` is None if the kernel does not report it."""

    some: PressureAverages
    full: PressureAverages | None


Knob = Literal["cpu.max", "cpu.weight", "memory.high"]
CPU_MAX: Knob = "cpu.max"
CPU_WEIGHT: Knob = "cpu.weight"
MEMORY_HIGH: Knob = "memory.high"
NOUNS: Mapping[Knob, str] = {CPU_MAX: "quota", CPU_WEIGHT: CPU_WEIGHT, MEMORY_HIGH: MEMORY_HIGH}


@dataclass(frozen=True, slots=True)
class CpuWeight:
    """A CPU weight in the unit of the cgroup version: cpu.weight or cpu.shares."""

    weight: int


@dataclass(frozen=True, slots=True)
class MemoryHigh:
    """Bytes above which a group is throttled and its memory reclaimed; None is unlimited."""

    limit: int | None


Value = Quota | CpuWeight | MemoryHigh


def knob_of(value: Value) -> Knob:
    """The name of the limit that a value belongs to."""
    return CPU_MAX if isinstance(value, Quota) else CPU_WEIGHT if isinstance(value, CpuWeight) else MEMORY_HIGH


def same_quota(value: Value, other: Value | None) -> bool:
    """Whether two values are equal, but for the burst of a quota."""
    if isinstance(value, Quota) and isinstance(other, Quota):
        return replace(value, burst=0) == replace(other, burst=0)
    return value == other


def at_least(value: Value, other: Value) -> bool:
    """Whether `value` restricts a group no more than `other`. False for values of different limits."""
    if isinstance(value, Quota) and isinstance(other, Quota):
        if value.quota is None or other.quota is None:
            return value.quota is None
        return value.quota * other.period >= other.quota * value.period
    if isinstance(value, CpuWeight) and isinstance(other, CpuWeight):
        return value.weight >= other.weight
    if isinstance(value, MemoryHigh) and isinstance(other, MemoryHigh):
        return value.limit is None or (other.limit is not None and value.limit >= other.limit)
    return False


def as_text(value: Value) -> str:
    """The value in the text format of the version 2 file."""
    if isinstance(value, Quota):
        return f"{_or_max(value.quota)} {value.period}" + (f" {value.burst}" if value.burst else "")
    return str(value.weight) if isinstance(value, CpuWeight) else _or_max(value.limit)


def from_text(knob: Knob, text: str) -> Value:
    """Parse the format of `as_text`. Raises ValueError."""
    if knob == CPU_MAX:
        quota, period, *burst = text.split()
        return Quota(None if quota == "max" else int(quota), int(period), int(burst[0]) if burst else 0)
    if knob == CPU_WEIGHT:
        return CpuWeight(int(text))
    return MemoryHigh(None if text == "max" else int(text))


def _or_max(number: int | None) -> str:
    return "max" if number is None else str(number)


def as_json(value: Value) -> Mapping[str, Any]:
    """The value as it appears in the audit log."""
    if isinstance(value, Quota):
        return {"quota": value.quota, "period": value.period} | ({"burst": value.burst} if value.burst else {})
    return {CPU_WEIGHT: value.weight} if isinstance(value, CpuWeight) else {MEMORY_HIGH: value.limit}


def in_words(value: Value) -> str:
    """The value with its unit, for log and error messages."""
    if isinstance(value, Quota):
        text = "unlimited" if value.quota is None else f"{value.quota} of {value.period} µs"
        return f"{text} with a burst of {value.burst} µs" if value.burst else text
    if isinstance(value, CpuWeight):
        return str(value.weight)
    return "unlimited" if value.limit is None else f"{value.limit} bytes"


# --- content of cgroup files -----------------------------------------------------------------------------------------

UNLIMITED_V1 = 2**62
"""Version 1 writes an unlimited memory limit as the largest number of whole pages, close to 2**63."""


def natural(content: bytes) -> int:
    """A whole number that is not negative."""
    text = content.strip()
    if not text.isdigit():  # int() would also accept signs and underscores
        raise ValueError(content)
    return int(text)


def integer(content: bytes) -> int:
    """A whole number, possibly negative."""
    text = content.strip()
    return -natural(text[1:]) if text[:1] == b"-" else natural(text)


def positive(content: bytes) -> int:
    """A whole number above 0, such as a period, which is used as a divisor."""
    number = natural(content)
    if not number:
        raise ValueError(content)
    return number


def naturals(content: bytes) -> tuple[int, ...]:
    """Whole numbers separated by whitespace, normally one per line."""
    return tuple(natural(line) for line in content.split())


def limit(content: bytes) -> int | None:
    """A number of bytes; None for "max" and for the "unlimited" value of version 1."""
    if content.strip() == b"max":
        return None
    number = natural(content)
    return None if number >= UNLIMITED_V1 else number


def field(content: bytes, key: bytes) -> int | None:
    """The number that follows a key, in a file with one key and one number per line; None if the key is missing."""
    start = content.find(b"\n" + key + b" ") + 1
    if not start and not content.startswith(key + b" "):
        return None
    start += len(key) + 1
    end = content.find(b"\n", start)
    text = content[start:] if end < 0 else content[start:end]
    if not text.isdigit():
        raise ValueError(content)
    return int(text)


def required(content: bytes, key: bytes) -> int:
    """Like `field`, but raises ValueError if the key is missing."""
    found = field(content, key)
    if found is None:
        raise ValueError(content)
    return found


def cpu_max(content: bytes) -> Quota:
    """The cpu.max file of version 2: "max 100000" or "20000 100000" (quota and period in microseconds)."""
    quota, period = content.split()
    return Quota(None if quota == b"max" else positive(quota), positive(period))


def pressure(content: bytes) -> Pressure:
    """A pressure file: the lines `some` and `full`. Older kernels do not write `full` for the CPU."""
    lines = {}
    for line in content.splitlines():
        name, *pairs = line.split()
        values = dict(pair.split(b"=", 1) for pair in pairs)
        avg10, avg60, avg300 = (_percent(values[key]) for key in (b"avg10", b"avg60", b"avg300"))
        lines[name] = PressureAverages(avg10, avg60, avg300, natural(values[b"total"]))
    return Pressure(lines[b"some"], lines.get(b"full"))


def _percent(text: bytes) -> float:
    number = float(text)
    if not 0.0 <= number <= 100.0:  # also rejects NaN
        raise ValueError(text)
    return number
