"""Parsers for the /proc files of the node.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.state.rates import CpuTimes

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
    """/proc/stat: times by name, "cpu" for all CPUs together, "cpu0", … for each CPU that is online."""
    found = {}
    for line in stat.splitlines():
        if not line.startswith(b"cpu"):
            break  # the interrupt lines that follow may take a hundred kilobytes
        name, *fields = line.split()
        ticks = [int(field) for field in fields[:8]]
        user, nice, system, idle, *others = ticks  # others: iowait, irq, softirq, steal
        found[name.decode("ascii")] = CpuTimes(user + nice + system + sum(others), idle)
    if "cpu" not in found or len(found) < 2:
        raise ValueError("it has no CPU lines")
    return found


def memory(meminfo: bytes) -> tuple[int, int]:
    """/proc/meminfo: total and available memory in bytes."""
    values = {}
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        if name in (b"MemTotal", b"MemAvailable"):
            amount, unit = rest.split()
            if unit != b"kB":
                raise ValueError(f"its unit is {unit[:10]!r}")
            values[name] = int(amount) * 1024
    missing = {b"MemTotal", b"MemAvailable"} - values.keys()
    if missing or not 0 <= values[b"MemAvailable"] <= values[b"MemTotal"]:
        raise ValueError("MemTotal or MemAvailable is missing or invalid")
    return values[b"MemTotal"], values[b"MemAvailable"]


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


def waited_ns(schedstat: bytes) -> int:
    """/proc/PID/schedstat: nanoseconds that the process's main thread waited for a CPU."""
    return int(schedstat.split()[1])


def cpu_list(text: str) -> frozenset[int]:
    """CPU numbers in Linux's list format: "0-2,7"."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first:
            found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def exclusive_cpus(state: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """CPUs assigned exclusively to one container, from the `entries` of the kubelet's cpu_manager_state: by pod, then
    by container."""
    return _union(cpu_list(cpus) for containers in state.values() for cpus in containers.values())


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
