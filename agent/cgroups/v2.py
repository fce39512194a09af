"""cgroup version 2: one directory tree for all controllers.

Measured behaviour of the kernel: cpu.stat contains usage_usec even without the cpu controller; a quota below 1000 µs
and -1 fail with EINVAL, "max" is unlimited; a child can have a higher quota than its parent, but its usage is still
limited by the parent.
"""

from __future__ import annotations

import errno
import mmap
from dataclasses import replace

from agent.cgroups import values
from agent.cgroups.base import CgroupDirectory, Group, Resource, read_back
from agent.cgroups.errors import CgroupError, CgroupUnsupported
from agent.cgroups.values import CpuUsage, MemoryUsage, Pressure, Quota

ALL = "all"
"""Key for the one tree of all controllers."""
WEIGHTS = (1, 10000)
PAGE = mmap.PAGESIZE


def shares_of_weight(weight: int) -> int:
    """Convert cpu.weight to cpu.shares by inverting the kubelet's formula weight = 1 + (shares - 2) * 9999 / 262142,
    rounded down; of all shares with this weight, the smallest. (Container runtimes since 2025 use a different,
    non-linear formula.)"""
    return 2 + -(-(weight - 1) * 262142 // 9999)


class GroupV2(Group):
    __slots__ = ()
    least_weight = WEIGHTS[0]
    most_descriptors = 6

    def children(self) -> list[str]:
        return self._here.directories()

    @property
    def _here(self) -> CgroupDirectory:
        return self._in(ALL)

    # --- reads -------------------------------------------------------------------------------------------------------

    def cpu_usage_ns(self) -> int:
        return self._here.parse("cpu.stat", _usage_ns, expected="statistics with usage_usec")

    def cpu(self) -> CpuUsage:
        return self._here.parse("cpu.stat", _cpu, expected="statistics with usage_usec")

    def quota(self) -> Quota:
        return self._here.parse("cpu.max", values.cpu_max, expected="a quota and a period")

    def burst(self) -> int:
        try:
            return self._here.parse("cpu.max.burst", values.natural, expected="microseconds")
        except CgroupUnsupported:
            return 0

    def weight(self) -> int:
        return self._here.parse("cpu.weight", values.natural, expected="a weight")

    def shares(self) -> int:
        return shares_of_weight(self.weight())

    def memory(self) -> MemoryUsage:
        here = self._here
        usage = here.parse("memory.current", values.natural, expected="bytes")
        inactive = here.parse("memory.stat", _inactive_file, expected="statistics with inactive_file")
        return MemoryUsage(usage, max(usage - inactive, 0))

    def memory_high(self) -> int | None:
        return self._here.parse("memory.high", values.limit, expected="bytes or max")

    def pressure(self, resource: Resource) -> Pressure:
        return self._here.parse(f"{resource}.pressure", values.pressure, expected="pressure")

    def processes(self) -> tuple[int, ...]:
        return self._here.parse("cgroup.procs", values.naturals, expected="process ids", whole=True)

    # --- writes ------------------------------------------------------------------------------------------------------

    def set_only_quota(self, quota: Quota) -> None:
        value = f"{'max' if quota.quota is None else quota.quota} {quota.period}"
        self._here.write("cpu.max", value, hint="A quota must be at least 1000 µs, a period 1000 to 1000000 µs.")
        read_back(replace(quota, burst=0), self.quota(), path=f"{self._here.path}/cpu.max")

    def set_burst(self, burst: int) -> None:
        self._here.write("cpu.max.burst", str(burst), hint="A burst must not exceed the quota.")

    def set_weight(self, weight: int) -> None:
        self._here.write("cpu.weight", str(weight), hint=f"A weight must be {WEIGHTS[0]} to {WEIGHTS[1]}.")
        read_back(weight, self.weight(), path=f"{self._here.path}/cpu.weight")

    def set_memory_high(self, limit: int | None) -> None:
        whole = None if limit is None else limit // PAGE * PAGE
        self._here.write("memory.high", "max" if whole is None else str(whole))
        read_back(whole, self.memory_high(), path=f"{self._here.path}/memory.high")

    def reclaim(self, wanted: int) -> int:
        before = self.memory().usage
        try:
            self._here.write("memory.reclaim", str(wanted))
        except CgroupError as error:
            # EAGAIN: less than that could be reclaimed. The reclaimed amount is measured below.
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EAGAIN:
                raise
        return max(before - self.memory().usage, 0)


def _usage_ns(text: bytes) -> int:
    return 1000 * values.required(text, b"usage_usec")


def _cpu(text: bytes) -> CpuUsage:
    throttled = values.field(text, b"throttled_usec")
    return CpuUsage(
        1000 * values.required(text, b"usage_usec"),
        values.field(text, b"nr_periods"),
        values.field(text, b"nr_throttled"),
        None if throttled is None else 1000 * throttled,
    )


def _inactive_file(text: bytes) -> int:
    return values.required(text, b"inactive_file")
