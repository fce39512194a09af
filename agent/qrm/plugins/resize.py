"""Computes the size of the online CPU pool from the load of the node: grows fast, shrinks slowly, holds without data.

The algorithm uses Katalyst's constants: CPUs needed = CPUs used by online pods * 1.25 + 4, for the largest of all load
windows. A rise of the load appears at once in the shortest window, and the pool shrinks only after the load in the
longest window has fallen. The QoS-aware adjuster calls `resize` every few seconds.

Pure: no I/O, no clock; times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable

_CPUS = values.integer(lowest=0, highest=8192)
_NUMBER = values.number(lowest=0, highest=1000)


@dataclass(frozen=True, repr=False, kw_only=True)
class PoolSettings(SettingsTable):
    """Part of [qrm]: sizes and steps of the pools in CPUs, times in seconds, thresholds as fractions (0 to 1)."""

    usage_factor: Annotated[float, _NUMBER] = 1.25
    """Factor for the CPU usage of the online pool when its target size is computed."""
    reserve_cpus: Annotated[float, _NUMBER] = 4.0
    """CPUs added to the multiplied usage (qrm.usage_factor) in the target size of the online pool."""
    min_online: Annotated[int, _CPUS] = 4
    """Minimum size of the online pool in CPUs."""
    min_offline: Annotated[int, _CPUS] = 4
    """Minimum size of the offline pool in CPUs, at least one per NUMA node; 0: exclusive CPUs and online requests can
    take all of its CPUs, and it then shares the CPUs of the online pool."""
    step_up: Annotated[int, values.integer(lowest=1, highest=8192)] = 10
    """Maximum number of CPUs by which the online pool grows in one adjustment."""
    step_down: Annotated[int, _CPUS] = 2
    """Maximum number of CPUs by which the online pool shrinks in one adjustment; 0 means no maximum."""
    min_down_period: Annotated[float, quantities.duration()] = 30.0
    """Minimum time between two reductions of the online pool."""
    respect_requests: Annotated[bool, values.BOOLEAN] = True
    """Whether the online pool always has at least the CPUs that its pods request."""
    align: int = 1
    """CPUs per core: pools consist of whole cores."""
    stale_after: float = 90.0
    """With windows older than this, in seconds, the pool does not shrink."""
    forget_after: float = 900.0
    """After this time without any load data, in seconds, requests determine the size."""
    busy_node: float = 0.9
    busy_online: float = 0.8
    """The pool does not shrink while the usage of the node (`busy_node`) or of the online pool (`busy_online`) is at
    least this fraction (0 to 1)."""


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """The load of the node. `windows` are the averages of the node's CPU usage in percent (0–100) by window ("5m", …),
    `age` is their age in seconds. `total` is the number of CPUs; the other values are CPUs in use, None if unknown."""

    total: int
    windows: Mapping[str, float] = field(default_factory=dict)
    age: float | None = None
    offline: float | None = None
    online: float | None = None
    exclusive: float = 0.0
    system: float = 0.0
    silent_for: float = 0.0
    """Seconds without windows and without a value for `online`."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """CPUs of all pools, size of the online pool in CPUs, number of NUMA nodes, and CPUs requested by online pods.
    `last_shrink` is a monotonic time in seconds."""

    cpus: int
    online: int
    nodes: int
    requests: float = 0.0
    last_shrink: float | None = None


@dataclass(frozen=True, slots=True)
class Resize:
    """The next size of the online pool in CPUs, with the inputs that determined it and the reason (`action`)."""

    size: int
    action: str
    target: int
    need: float | None
    used: Mapping[str, float] = field(default_factory=dict)

    @property
    def shrinks(self) -> bool:
        """Whether the online pool loses CPUs."""
        return self.action == "down"


def online_usage(load: PoolLoad) -> Mapping[str, float]:
    """CPUs used by online pods, by window; "now" is the usage measured on the node itself, if available."""
    others = (load.offline or 0.0) + load.exclusive + load.system
    used = {name: max(0.0, percent / 100.0 * load.total - others) for name, percent in load.windows.items()}
    return used if load.online is None else {**used, "now": load.online}


def required_cpus(usage: Sequence[float], settings: PoolSettings) -> float:
    """CPUs that the online pool needs for the largest of these usages (CPUs). Raises ValueError if there are none."""
    return settings.usage_factor * max(usage) + settings.reserve_cpus


def target_size(need: float, pools: PoolState, settings: PoolSettings) -> int:
    """The target size in CPUs: the need rounded up to whole cores, at least the requests of online pods, and small
    enough to leave the offline pool its minimum."""
    lower = max(settings.min_online, _whole(pools.requests) if settings.respect_requests else 0)
    upper = pools.cpus - max(settings.min_offline, pools.nodes)
    return min(max(_aligned(_whole(need), settings.align), min(_aligned(lower, settings.align), upper)), upper)


def step(current: int, target: int, *, since_shrink: float | None, may_shrink: str, settings: PoolSettings) -> Resize:
    """One step from `current` towards `target` (CPUs). `may_shrink` is empty, or the reason why the pool must not
    shrink; `since_shrink` is the time in seconds since the last reduction, None if there was none."""
    up, down = (_aligned(size, settings.align) for size in (settings.step_up, settings.step_down))
    if target > current:
        return Resize(min(target, current + up), "up", target, None)
    if target == current:
        return Resize(current, "hold: equal", target, None)
    if may_shrink:
        return Resize(current, f"hold: {may_shrink}", target, None)
    if since_shrink is not None and since_shrink < settings.min_down_period:
        return Resize(current, f"hold: shrunk {since_shrink:.0f} s ago", target, None)
    return Resize(max(target, current - down) if down else target, "down", target, None)


def resize(load: PoolLoad, pools: PoolState, *, now: float, settings: PoolSettings) -> Resize:
    """The next size of the online pool, with the reason."""
    used = online_usage(load)
    if used:
        need = required_cpus(list(used.values()), settings)
    elif load.silent_for >= settings.forget_after:
        need = pools.requests + settings.reserve_cpus
    else:
        return Resize(pools.online, "hold: no data", pools.online, None)
    target = target_size(need, pools, settings)
    since = None if pools.last_shrink is None else now - pools.last_shrink
    found = step(
        pools.online, target, since_shrink=since, may_shrink=_why_not_shrink(load, pools, settings), settings=settings
    )
    return Resize(found.size, found.action, target, need, used)


def _why_not_shrink(load: PoolLoad, pools: PoolState, settings: PoolSettings) -> str:
    """The reason why the pool must not shrink; empty if it may."""
    if not load.windows or load.age is None:
        return "" if load.silent_for >= settings.forget_after else "no windows of the node"
    if load.age > settings.stale_after:
        return f"the windows are {load.age:.0f} s old"
    if load.windows.get("5m", 0.0) >= 100.0 * settings.busy_node:
        return f"the node is {load.windows['5m']:.0f} % busy"
    if load.online is not None and pools.online and load.online >= settings.busy_online * pools.online:
        return f"the online pool is {100.0 * load.online / pools.online:.0f} % busy"
    return ""


def _whole(cpus: float) -> int:
    return math.ceil(round(cpus, 6))  # 28.000000000000004 is 28


def _aligned(cpus: int, to: int) -> int:
    return -(-cpus // to) * to


def headroom(
    *,
    last: float,
    supply: float,
    utilization: float,
    target: float = 0.6,
    max_utilization: float = 0.0,
    max_oversold: float = 1.2,
) -> float:
    """Return the number of CPUs to offer to offline pods. The number grows from `last` while the utilization of the
    pool is below `target` (0 to 1), and falls while the utilization is above `max_utilization` (0: never). The result
    is at least `supply` (CPUs of the pool) and at most `max_oversold` times that."""
    oversold = 0.0
    if utilization < target:
        oversold = supply * (target - utilization)
    elif 0.0 < max_utilization < utilization:
        oversold = supply * (max_utilization - utilization)
    return min(max(last + oversold, supply), max_oversold * supply)
