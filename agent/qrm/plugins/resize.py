"""How large the online pool ought to be, from the load of the node: quick to grow, slow to shrink, still without data.

The algorithm is reference/qrm.md §7.3 (its constants are Katalyst's): what online pods use, plus a quarter, plus four
CPUs, of the largest of all windows. So growth shows at once in the shortest window, and the longest one must have
fallen before anything is taken away. The QoS-aware adjuster asks this every few seconds, and tells what it answered.

Pure: no I/O, no clock; times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ResizeSettings:
    """CPUs, seconds and shares. `step_down` 0 shrinks at once."""

    usage_factor: float = 1.25
    reserve_cpus: float = 4.0
    align: int = 1
    """CPUs of a core: a pool has whole cores."""
    min_online: int = 4
    min_offline: int = 4
    step_up: int = 10
    step_down: int = 2
    min_down_period: float = 30.0
    respect_requests: bool = True
    stale_after: float = 90.0
    """Windows older than this do not allow to shrink."""
    forget_after: float = 900.0
    """Without any data for so long, requests decide."""
    busy_node: float = 0.9
    busy_online: float = 0.8
    """Nothing shrinks while the node, or the online pool itself, is this busy (0 to 1)."""


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """What is known of the node. `windows` are the means of its CPU in percent by window ("5m", …), aged `age`
    seconds; the others are CPUs in use, None where that cannot be read."""

    total: int
    windows: Mapping[str, float] = field(default_factory=dict)
    age: float | None = None
    offline: float | None = None
    online: float | None = None
    exclusive: float = 0.0
    system: float = 0.0
    silent_for: float = 0.0
    """Seconds without windows and without `online`."""


@dataclass(frozen=True, slots=True)
class Pools:
    """CPUs for pools in all, the online pool's, the number of NUMA nodes, and what online pods ask for."""

    cpus: int
    online: int
    nodes: int
    requests: float = 0.0
    last_shrink: float | None = None


@dataclass(frozen=True, slots=True)
class Resize:
    """The next size of the online pool, and how it came about: every input that counted, and the reason in words."""

    size: int
    action: str
    target: int
    need: float | None
    used: Mapping[str, float] = field(default_factory=dict)

    @property
    def shrinks(self) -> bool:
        """Whether CPUs are taken from online pods."""
        return self.action == "down"


def online_usage(load: NodeLoad) -> Mapping[str, float]:
    """CPUs that online pods use, by window, and "now" where that was measured on the node itself."""
    others = (load.offline or 0.0) + load.exclusive + load.system
    used = {name: max(0.0, percent / 100.0 * load.total - others) for name, percent in load.windows.items()}
    return used if load.online is None else {**used, "now": load.online}


def needed(usage: Sequence[float], settings: ResizeSettings) -> float:
    """CPUs that the online pool needs for the largest of these. Raises ValueError without any."""
    return settings.usage_factor * max(usage) + settings.reserve_cpus


def aimed_at(need: float, pools: Pools, settings: ResizeSettings) -> int:
    """The size to go to: the need in whole cores, at least what online pods ask for, at most what leaves the offline
    pool its own."""
    lower = max(settings.min_online, _whole(pools.requests) if settings.respect_requests else 0)
    upper = pools.cpus - max(settings.min_offline, pools.nodes)
    return min(max(_aligned(_whole(need), settings.align), min(_aligned(lower, settings.align), upper)), upper)


def step(current: int, target: int, *, since_shrink: float | None, may_shrink: str, settings: ResizeSettings) -> Resize:
    """One step from `current` towards `target`. `may_shrink` is empty, or why nothing may be taken away;
    `since_shrink` is how long ago the last time was, None for never."""
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


def resize(load: NodeLoad, pools: Pools, *, now: float, settings: ResizeSettings) -> Resize:
    """The next size of the online pool."""
    used = online_usage(load)
    if used:
        need = needed(list(used.values()), settings)
    elif load.silent_for >= settings.forget_after:
        need = pools.requests + settings.reserve_cpus
    else:
        return Resize(pools.online, "hold: no data", pools.online, None)
    target = aimed_at(need, pools, settings)
    since = None if pools.last_shrink is None else now - pools.last_shrink
    found = step(
        pools.online, target, since_shrink=since, may_shrink=_why_not_shrink(load, pools, settings), settings=settings
    )
    return Resize(found.size, found.action, target, need, used)


def _why_not_shrink(load: NodeLoad, pools: Pools, settings: ResizeSettings) -> str:
    """Empty where shrinking is allowed."""
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


# --- several pools ---------------------------------------------------------------------------------------------------


def pool_sizes(
    available: int, expandable: Mapping[str, int], unexpandable: Mapping[str, int], *, expand: bool
) -> dict[str, int]:
    """What each pool gets of the available CPUs: all less where they want too much, `expandable` ones more where
    something is left and `expand` says so; else what they want. Where not even one CPU each is there, all share all."""
    wanted = {**expandable, **unexpandable}
    fixed = sum(unexpandable.values())
    if sum(wanted.values()) > available:
        return _scaled(wanted, available, available)
    if expand and expandable:
        return {**_scaled(expandable, available - fixed, available), **unexpandable}
    return wanted


def _scaled(wanted: Mapping[str, int], to: int, available: int) -> dict[str, int]:
    """In proportion, rounded up; then one CPU less of the pool that was favoured most, until they fit."""
    total = sum(wanted.values())
    sizes = {name: -(-size * to // total) for name, size in wanted.items()} if total else dict(wanted)
    while sum(sizes.values()) > to:
        reducible = [name for name, size in sizes.items() if size > 1]
        if not reducible:
            return dict.fromkeys(wanted, available)
        most = max(reducible, key=lambda name: (sizes[name] / wanted[name], sizes[name], name))
        sizes[most] -= 1
    return sizes


def overlap_sizes(share_pools: Mapping[str, int], required: int) -> dict[str, int]:
    """How many CPUs of each share pool reclaimed pods may use too, in proportion, the largest pool first.

    Katalyst's rule (reference/qrm.md §7.1), for whoever lets these pods into share pools. The adjuster does not: our
    pools never overlap but on a machine too small for two; the offline one has `min_offline` CPUs of its own (§7.3).

    Raises ValueError where the pools have fewer.
    """
    total = sum(share_pools.values())
    if required > total:
        raise ValueError(f"{required} CPUs are to be shared, and the pools have {total}")
    left, sizes = required, {}
    for name, size in sorted(share_pools.items(), key=lambda item: (-item[1], item[0])):
        part = min(-(-size * required // total), left) if total else 0
        if part:
            sizes[name] = part
            left -= part
    return sizes


def reserved_for_reclaim(wanted: int, nodes: Sequence[int]) -> dict[int, int]:
    """CPUs kept for reclaimed pods on each NUMA node, the same on all, at least one.

    Katalyst's rule for pools that are bound to NUMA nodes (reference/qrm.md §7.1). The adjuster's pools are spread over
    all nodes, so that it keeps the sum alone: `max(min_offline, nodes)` in `aimed_at` (§7.3).
    """
    return dict.fromkeys(nodes, -(-max(wanted, len(nodes)) // len(nodes))) if nodes else {}


def headroom(
    *,
    last: float,
    supply: float,
    utilization: float,
    target: float = 0.6,
    max_utilization: float = 0.0,
    max_oversold: float = 1.2,
) -> float:
    """CPUs that offline pods may be offered: more than the pool has while it is less than `target` busy (0 to 1), less
    again above `max_utilization` (0: never), from `supply` to `max_oversold` times that."""
    oversold = 0.0
    if utilization < target:
        oversold = supply * (target - utilization)
    elif 0.0 < max_utilization < utilization:
        oversold = supply * (max_utilization - utilization)
    return min(max(last + oversold, supply), max_oversold * supply)
