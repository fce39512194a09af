"""Parsers for the /proc files of the node.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent import cpuset
from watcher.core.cpu_use import CpuTimes

TICKS = 100.0
"""Ticks per second in /proc/stat (USER_HZ)."""
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The order of /proc/stat; guest time, which follows, is included in user and nice."""
SECTOR = 512
"""Bytes per sector in /proc/diskstats, independent of the disk's own sector size."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Counters of a block device: completed reads and writes, bytes, and milliseconds with I/O in progress."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    busy_ms: int


@dataclass(frozen=True, slots=True)
class Interface:
    """Counters of a network interface: bytes, packets and drops, received (in) and sent (out)."""

    bytes_in: int
    packets_in: int
    drops_in: int
    bytes_out: int
    packets_out: int
    drops_out: int


def cpu_times(stat: bytes) -> dict[str, CpuTimes]:
    """/proc/stat: seconds since boot of each CPU that is online, by name ("cpu0", …)."""
    found = {}
    for line in stat.splitlines():
        if not line.startswith(b"cpu"):
            break  # the interrupt lines that follow may take a hundred kilobytes
        name, *fields = line.split()
        ticks = [int(field) for field in fields[: len(MODES)]]
        if len(ticks) < 4:
            raise ValueError("a CPU line has fewer than four fields")
        found[name.decode("ascii")] = CpuTimes.of(
            {mode: tick / TICKS for mode, tick in zip(MODES, ticks, strict=False)}
        )
    found.pop("cpu", None)  # the sum also has the CPUs that are offline
    if not found:
        raise ValueError("it has no CPU lines")
    return found


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory: total, available to programs, and in free huge pages of the default size."""

    total: int
    available: int
    free_huge: int = 0


def memory(meminfo: bytes) -> Memory:
    """/proc/meminfo. Available memory has no huge pages, whether they are free or not."""
    names = (b"MemTotal", b"MemAvailable", b"Hugepagesize")
    values = {}
    pages = 0
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        if name in names:
            amount, unit = rest.split()
            if unit != b"kB":
                raise ValueError(f"its unit is {unit[:10]!r}")
            values[name] = int(amount) * 1024
        elif name == b"HugePages_Free":
            pages = int(rest)
    missing = set(names[:2]) - values.keys()
    if missing or not 0 <= values[b"MemAvailable"] <= values[b"MemTotal"]:
        raise ValueError("MemTotal or MemAvailable is missing or invalid")
    return Memory(values[b"MemTotal"], values[b"MemAvailable"], pages * values.get(b"Hugepagesize", 0))


def loads(loadavg: bytes) -> tuple[float, float, float]:
    """/proc/loadavg: load averages over 1, 5 and 15 minutes."""
    one, five, fifteen = (float(field) for field in loadavg.split()[:3])
    if not 0 <= one + five + fifteen < float("inf"):
        raise ValueError("the load averages are invalid")
    return one, five, fifteen


def disks(diskstats: bytes) -> dict[str, Disk]:
    """/proc/diskstats: counters by device name, without devices that were never used (ram0, loop3)."""
    found = {}
    for line in diskstats.splitlines():
        _, _, name, *fields = line.split()
        reads, _, sectors_read, _, writes, _, sectors_written, _, _, busy_ms, *_ = (int(field) for field in fields)
        if reads or writes:
            disk = Disk(reads, sectors_read * SECTOR, writes, sectors_written * SECTOR, busy_ms)
            found[name.decode("ascii", errors="backslashreplace")] = disk
    return found


def interfaces(net_dev: bytes) -> dict[str, Interface]:
    """/proc/net/dev: counters by interface name."""
    found = {}
    header, *lines = net_dev.splitlines()
    if b"Receive" not in header:
        raise ValueError("unexpected header line")
    for line in lines[1:]:
        name, colon, rest = line.partition(b":")
        if not colon:
            raise ValueError("a line has no interface name")
        fields = [int(field) for field in rest.split()]
        # receive: bytes packets errs drop fifo frame compressed multicast; then transmit: bytes packets errs drop …
        counters = Interface(fields[0], fields[1], fields[3], fields[8], fields[9], fields[11])
        found[name.strip().decode("ascii", errors="backslashreplace")] = counters
    return found


def default_interfaces(route: bytes) -> frozenset[str]:
    """/proc/net/route or /proc/net/ipv6_route: the interfaces of the default routes, without lo."""
    found = set()
    for line in route.splitlines():
        fields = line.decode("ascii", errors="backslashreplace").split()
        if len(fields) == 10 and fields[:2] == ["0" * 32, "00"]:  # IPv6: destination, its prefix length, …, interface
            found.add(fields[9])
        elif (
            len(fields) > 10 and fields[1] == "0" * 8 and fields[7] == "0" * 8
        ):  # IPv4: interface, destination, …, mask
            found.add(fields[0])
    return frozenset(found - {"lo"})


def waited_ns(schedstat: bytes) -> int:
    """/proc/PID/schedstat: nanoseconds that the process's main thread waited for a CPU."""
    return int(schedstat.split()[1])


def exclusive_cpus(state: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """CPUs assigned exclusively to one container, from the `entries` of the kubelet's cpu_manager_state: by pod, then
    by container."""
    return _union(cpuset.parse(cpus.replace(" ", "")) for containers in state.values() for cpus in containers.values())


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
