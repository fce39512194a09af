"""What the files of /proc say of the node.

Pure: bytes in, numbers out; ValueError for what the kernel never writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.state.rates import CpuTimes

SECTOR = 512
"""Bytes of a sector in /proc/diskstats, whatever the disk has."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Counters of a block device: reads and writes that ended, bytes, and milliseconds in which it had any to do."""

    reads: int
    read_bytes: int
    writes: int
    written_bytes: int
    busy_ms: int


@dataclass(frozen=True, slots=True)
class Interface:
    """Counters of a network interface, in and out."""

    bytes_in: int
    packets_in: int
    drops_in: int
    bytes_out: int
    packets_out: int
    drops_out: int


def cpu_times(stat: bytes) -> dict[str, CpuTimes]:
    """/proc/stat: by name, "cpu" for all together, "cpu0", … for those that are on."""
    found = {}
    for line in stat.splitlines():
        if not line.startswith(b"cpu"):
            break  # the lines of interrupts that follow may have a hundred kilobytes
        name, *fields = line.split()
        ticks = [int(field) for field in fields[:8]]
        user, nice, system, idle, *others = ticks  # others: iowait, irq, softirq, steal
        found[name.decode("ascii")] = CpuTimes(user + nice + system + sum(others), idle)
    if "cpu" not in found or len(found) < 2:
        raise ValueError("it has no lines of CPUs")
    return found


def memory(meminfo: bytes) -> tuple[int, int]:
    """/proc/meminfo: bytes in total, and available to who asks for them."""
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
        raise ValueError("it does not say what is available of how much")
    return values[b"MemTotal"], values[b"MemAvailable"]


def loads(loadavg: bytes) -> tuple[float, float, float]:
    """/proc/loadavg: over 1, 5 and 15 minutes."""
    one, five, fifteen = (float(field) for field in loadavg.split()[:3])
    if not 0 <= one + five + fifteen < float("inf"):
        raise ValueError("these are no loads")
    return one, five, fifteen


def disks(diskstats: bytes) -> dict[str, Disk]:
    """/proc/diskstats: by name, without those that never did anything (ram0, loop3)."""
    found = {}
    for line in diskstats.splitlines():
        _, _, name, *fields = line.split()
        reads, _, sectors_read, _, writes, _, sectors_written, _, _, busy_ms, *_ = (int(field) for field in fields)
        if reads or writes:
            disk = Disk(reads, sectors_read * SECTOR, writes, sectors_written * SECTOR, busy_ms)
            found[name.decode("ascii", errors="backslashreplace")] = disk
    return found


def interfaces(net_dev: bytes) -> dict[str, Interface]:
    """/proc/net/dev: by name."""
    found = {}
    header, *lines = net_dev.splitlines()
    if b"Receive" not in header:
        raise ValueError("it does not begin as it should")
    for line in lines[1:]:
        name, colon, rest = line.partition(b":")
        if not colon:
            raise ValueError("it has a line without a name")
        fields = [int(field) for field in rest.split()]
        # receive: bytes packets errs drop fifo frame compressed multicast; then transmit: bytes packets errs drop …
        counters = Interface(fields[0], fields[1], fields[3], fields[8], fields[9], fields[11])
        found[name.strip().decode("ascii", errors="backslashreplace")] = counters
    return found


def waited_ns(schedstat: bytes) -> int:
    """/proc/PID/schedstat: nanoseconds that its main thread waited for a CPU."""
    return int(schedstat.split()[1])


def cpu_list(text: str) -> frozenset[int]:
    """CPUs as Linux lists them: "0-2,7"."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first:
            found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def exclusive_cpus(state: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """The CPUs that belong to one container each, of the `entries` of the kubelet's cpu_manager_state: by pod, by
    container."""
    return _union(cpu_list(cpus) for containers in state.values() for cpus in containers.values())


def _union(sets: Iterable[frozenset[int]]) -> frozenset[int]:
    return frozenset().union(*sets)
