"""What the agent writes to control groups and gives back, as values that can be kept, compared and told: a quota
(cpu.max), a weight (cpu.weight; cpu.shares of version 1), and where reclaiming begins (memory.high).
"""

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
class Weight:
    """A part of a CPU that is short, as this version counts."""

    weight: int


@dataclass(frozen=True, slots=True)
class High:
    """Bytes above which a group is slowed down and reclaimed from; None is no such limit."""

    limit: int | None


Value = Quota | Weight | High


def knob_of(value: Value) -> Knob:
    """Which one a value is of."""
    return CPU_MAX if isinstance(value, Quota) else CPU_WEIGHT if isinstance(value, Weight) else MEMORY_HIGH


def read(group: Group, knob: Knob) -> Value:
    """What a group has. Raises CgroupError."""
    if knob == CPU_MAX:
        return group.quota()
    return Weight(group.weight()) if knob == CPU_WEIGHT else High(group.memory_high())


def write(group: Group, value: Value) -> None:
    """Give it to a group. Raises CgroupError."""
    if isinstance(value, Quota):
        group.set_quota(value)
    elif isinstance(value, Weight):
        group.set_weight(value.weight)
    else:
        group.set_memory_high(value.limit)


def at_least(value: Value, other: Value) -> bool:
    """Whether it leaves a group no less than another of the same knob."""
    if isinstance(value, Quota) and isinstance(other, Quota):
        if value.quota is None or other.quota is None:
            return value.quota is None
        return value.quota * other.period >= other.quota * value.period
    if isinstance(value, Weight) and isinstance(other, Weight):
        return value.weight >= other.weight
    if isinstance(value, High) and isinstance(other, High):
        return value.limit is None or (other.limit is not None and value.limit >= other.limit)
    return False


def as_text(value: Value) -> str:
    """As version 2's file has it."""
    if isinstance(value, Quota):
        return f"{_or_max(value.quota)} {value.period}"
    return str(value.weight) if isinstance(value, Weight) else _or_max(value.limit)


def from_text(knob: Knob, text: str) -> Value:
    """Back from that. Raises ValueError."""
    if knob == CPU_MAX:
        quota, period = text.split()
        return Quota(None if quota == "max" else int(quota), int(period))
    if knob == CPU_WEIGHT:
        return Weight(int(text))
    return High(None if text == "max" else int(text))


def _or_max(number: int | None) -> str:
    return "max" if number is None else str(number)


def as_json(value: Value) -> Mapping[str, Any]:
    """As the audit shows it."""
    if isinstance(value, Quota):
        return {"quota": value.quota, "period": value.period}
    return {CPU_WEIGHT: value.weight} if isinstance(value, Weight) else {MEMORY_HIGH: value.limit}


def in_words(value: Value) -> str:
    """For messages."""
    if isinstance(value, Quota):
        return "unlimited" if value.quota is None else f"{value.quota} of {value.period} µs"
    if isinstance(value, Weight):
        return str(value.weight)
    return "unlimited" if value.limit is None else f"{value.limit} bytes"
