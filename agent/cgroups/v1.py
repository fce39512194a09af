"""cgroup version 1: one directory tree for each controller, with the same relative group path in each tree.

Measured behaviour of the kernel: an unlimited quota is -1; a quota below 1000 µs or above the parent's fails with
EINVAL; a memory limit below the current usage fails with EBUSY; writing 0 to memory.force_empty drops the file cache
even while processes are running.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from agent.cgroups import values
from agent.cgroups.base import Group, Resource, read_back
from agent.cgroups.errors import CgroupError, CgroupUnsupported
from agent.cgroups.values import CpuUsage, MemoryUsage, Pressure, Quota

CONTROLLERS = ("cpu", "cpuacct", "memory")
UNIFIED = "unified"
"""Key for the version 2 tree of a hybrid machine; not a controller."""
SHARES = (2, 262144)


class GroupV1(Group):
    __slots__ = ()
    least_weight = SHARES[0]
    most_descriptors = 10

    def children(self) -> list[str]:
        return self._in("cpuacct").directories()

    # --- reads -------------------------------------------------------------------------------------------------------

    def cpu_usage_ns(self) -> int:
        return self._in("cpuacct").parse("cpuacct.usage", values.natural, expected="nanoseconds")

    def cpu(self) -> CpuUsage:
        usage = self.cpu_usage_ns()
        stat = self._in("cpu").parse("cpu.stat", _throttling, expected="nr_periods, nr_throttled, throttled_time")
        return CpuUsage(usage, *stat)

    def quota(self) -> Quota:
        quota = self._in("cpu").parse("cpu.cfs_quota_us", values.integer, expected="microseconds or -1")
        return Quota(None if quota < 0 else quota, self._period())

    def _period(self) -> int:
        return self._in("cpu").parse("cpu.cfs_period_us", values.positive, expected="microseconds")

    def burst(self) -> int:
        try:
            return self._in("cpu").parse("cpu.cfs_burst_us", values.natural, expected="microseconds")
        except CgroupUnsupported:
            return 0

    def weight(self) -> int:
        return self._in("cpu").parse("cpu.shares", values.natural, expected="shares")

    def shares(self) -> int:
        return self.weight()

    def memory(self) -> MemoryUsage:
        memory = self._in("memory")
        usage = memory.parse("memory.usage_in_bytes", values.natural, expected="bytes")
        inactive = memory.parse("memory.stat", _inactive_file, expected="statistics with total_inactive_file")
        return MemoryUsage(usage, max(usage - inactive, 0))

    def memory_high(self) -> int | None:
        raise self._of_version_2("memory.high")

    def pressure(self, resource: Resource) -> Pressure:
        return self._in(UNIFIED).parse(f"{resource}.pressure", values.pressure, expected="pressure")

    def processes(self) -> tuple[int, ...]:
        return self._in("cpu").parse("cgroup.procs", values.naturals, expected="process ids", whole=True)

    # --- writes ------------------------------------------------------------------------------------------------------

    def set_only_quota(self, quota: Quota) -> None:
        cpu, wanted = self._in("cpu"), -1 if quota.quota is None else quota.quota
        if self._period() != quota.period:
            cpu.write("cpu.cfs_period_us", str(quota.period), hint="A period must be 1000 to 1000000 µs.")
        try:
            cpu.write("cpu.cfs_quota_us", str(wanted), hint="A quota must be at least 1000 µs, or -1 for unlimited.")
        except CgroupError as error:
            error.hint += self._limit_above(quota)
            raise
        read_back(replace(quota, burst=0), self.quota(), path=f"{cpu.path}/cpu.cfs_quota_us")

    def set_burst(self, burst: int) -> None:
        self._in("cpu").write("cpu.cfs_burst_us", str(burst), hint="A burst must not exceed the quota.")

    def _limit_above(self, quota: Quota) -> str:
        """A hint if the parent group's quota is lower than `quota`; empty if it is not, or if the parent cannot be
        read."""
        parent = self.path.rpartition("/")[0]
        with contextlib.suppress(CgroupError), GroupV1(self._roots, parent) as above:
            most = above.quota()
            if parent and quota.cores > most.cores:
                return f" The parent group has {most.quota} of {most.period} µs, which a child cannot exceed."
        return ""

    def set_weight(self, weight: int) -> None:
        cpu = self._in("cpu")
        cpu.write("cpu.shares", str(weight), hint=f"Shares must be {SHARES[0]} to {SHARES[1]}.")
        read_back(weight, self.weight(), path=f"{cpu.path}/cpu.shares")

    def set_memory_high(self, limit: int | None) -> None:
        raise self._of_version_2("memory.high")

    def reclaim(self, wanted: int) -> int:
        before = self.memory().usage
        self._in("memory").write("memory.force_empty", "0")
        return max(before - self.memory().usage, 0)

    def _of_version_2(self, file: str) -> CgroupUnsupported:
        return CgroupUnsupported(f"{file} needs cgroup version 2, and this is version 1", path=self.path)


def _throttling(text: bytes) -> tuple[int, int, int]:
    periods, throttled = values.required(text, b"nr_periods"), values.required(text, b"nr_throttled")
    return periods, throttled, values.required(text, b"throttled_time")


def _inactive_file(text: bytes) -> int:
    return values.required(text, b"total_inactive_file")
