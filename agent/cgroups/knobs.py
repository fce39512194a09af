"""The control-group limits that the agent sets and restores, as values that can be stored, compared and printed: CPU
quota (cpu.max), CPU weight (cpu.weight; cpu.shares on version 1), and the soft memory limit (memory.high)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agent.cgroups.base import Group, Quota

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


def read(group: Group, knob: Knob) -> Value:
    """The current value of a group's limit. Raises CgroupError."""
    if knob == CPU_MAX:
        return group.quota()
    return CpuWeight(group.weight()) if knob == CPU_WEIGHT else MemoryHigh(group.memory_high())


def write(group: Group, value: Value) -> None:
    """Set a limit of a group. Raises CgroupError."""
    if isinstance(value, Quota):
        group.set_quota(value)
    elif isinstance(value, CpuWeight):
        group.set_weight(value.weight)
    else:
        group.set_memory_high(value.limit)


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
        return f"{_or_max(value.quota)} {value.period}"
    return str(value.weight) if isinstance(value, CpuWeight) else _or_max(value.limit)


def from_text(knob: Knob, text: str) -> Value:
    """Parse the format of `as_text`. Raises ValueError."""
    if knob == CPU_MAX:
        quota, period = text.split()
        return Quota(None if quota == "max" else int(quota), int(period))
    if knob == CPU_WEIGHT:
        return CpuWeight(int(text))
    return MemoryHigh(None if text == "max" else int(text))


def _or_max(number: int | None) -> str:
    return "max" if number is None else str(number)


def as_json(value: Value) -> Mapping[str, Any]:
    """The value as it appears in the audit log."""
    if isinstance(value, Quota):
        return {"quota": value.quota, "period": value.period}
    return {CPU_WEIGHT: value.weight} if isinstance(value, CpuWeight) else {MEMORY_HIGH: value.limit}


def in_words(value: Value) -> str:
    """The value with its unit, for log and error messages."""
    if isinstance(value, Quota):
        return "unlimited" if value.quota is None else f"{value.quota} of {value.period} µs"
    if isinstance(value, CpuWeight):
        return str(value.weight)
    return "unlimited" if value.limit is None else f"{value.limit} bytes"
