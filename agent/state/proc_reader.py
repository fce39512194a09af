"""Current load of the node, from /proc.

Each file is read and parsed separately: an error affects only the metrics of that file, which report it as the reason.
Metric names and units are Crane's; docs/reference/agent-state.md lists them, including the differences between Crane's
names and their meaning.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agent import cpuset
from agent.cgroups import values
from agent.metrics.builtin import DISK, NETWORK
from agent.state.rates import NO_PREVIOUS_READING, NoRate, growth, seconds_between
from agent.state.readings import MetricReadings
from watcher.core.cpu_use import CpuTimes, CpuUseUnknown, used_share
from watcher.decoding.json_text import decode_json

T = TypeVar("T")

CPU_RATES = ("cpu_total_usage", "cpu_total_utilization")
LOADS = ("cpu_load_1_min", "cpu_load_5_min", "cpu_load_15_min")
MEMORY = ("memory_total", "memory_total_usage", "memory_total_utilization")
TICKS = 100.0
"""Ticks per second in /proc/stat (USER_HZ)."""
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The order of /proc/stat; guest time, which follows, is included in user and nice."""
SECTOR = 512
"""Bytes per sector in /proc/diskstats, independent of the disk's own sector size."""
PRESSURES = ("cpu", "memory", "io")
SPANS = ("avg10", "avg60", "avg300")

NO_PRESSURE = "this kernel does not report pressure: it must be built with CONFIG_PSI and booted with psi=1"
NO_ROUTE = "no network interface has a default route: set agent.interfaces to the interfaces to be measured"


class ProcReadError(Exception):
    """A file could not be read or parsed."""


class NotOnThisNode(Exception):
    """This node does not have what a metric measures; the message says what is missing."""


class _CpuManagerState(msgspec.Struct, rename="camel"):
    """The kubelet's record of the CPUs assigned exclusively to containers."""

    policy_name: str = ""
    entries: dict[str, dict[str, str]] = {}


@dataclass(frozen=True, slots=True)
class _CounterSample:
    """Counters with the monotonic time at which they were read."""

    at: float
    counters: Any


class ProcReader:
    """Reads /proc below `proc_root`, and huge pages below `sys_root`. `interfaces` are the network interfaces to
    measure, by default those of the default routes; `cpu_manager_state` is the path of the kubelet's file."""

    def __init__(
        self, proc_root: str, *, interfaces: tuple[str, ...], cpu_manager_state: str, sys_root: str = "/sys"
    ) -> None:
        self._proc = proc_root
        self._sys = sys_root
        self._interfaces = interfaces
        self._cpu_manager_state = cpu_manager_state
        self._before: dict[str, _CounterSample] = {}

    def read(self, readings: MetricReadings, *, now: float, monotonic: Callable[[], float], longest: float) -> None:
        """Add all metrics of /proc to `readings`, with time `now` (unix seconds). Rates cover the time since the last
        call, at most `longest` seconds."""
        look = _ProcContext(readings, now, monotonic, longest)
        parts: tuple[tuple[Callable[[_ProcContext], None], tuple[str, ...]], ...] = (
            (self._read_cpu, ("cpu_core_numbers", *CPU_RATES, "exclusive_cpu_idle")),
            (self._read_loads, LOADS),
            (self._read_memory, MEMORY),
            (self._read_disks, DISK),
            (self._read_network, NETWORK),
        )
        for part, metrics in parts:
            try:
                part(look)
            except (ProcReadError, NoRate) as error:
                readings.mark_missing(str(error), *(name for name in metrics if name not in readings.series))
            except NotOnThisNode as error:
                readings.mark_absent(str(error), *(name for name in metrics if name not in readings.series))
        for resource in PRESSURES:
            self._read_pressure(resource, look)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _read_cpu(self, look: _ProcContext) -> None:
        times: Mapping[str, CpuTimes] = self._parsed("stat", parse_cpu_times)
        cores = len(times)
        look.readings.add("cpu_core_numbers", float(cores), look.now)
        before, elapsed = self._before_now("stat", times, look)
        share = _cpu_use(before, times, elapsed)
        look.readings.add("cpu_total_utilization", 100.0 * share, look.now)
        look.readings.add("cpu_total_usage", share * cores * 1000.0, look.now)
        exclusive = [name for name in self._exclusive() if name in times]
        idle = (1.0 - _cpu_use({name: before[name]}, {name: times[name]}, elapsed) for name in exclusive)
        look.readings.add("exclusive_cpu_idle", 1000.0 * sum(idle), look.now)

    def _exclusive(self) -> list[str]:
        """The names of the CPUs assigned exclusively to one container. Raises Unread."""
        path = self._cpu_manager_state
        if not os.path.exists(path):
            raise NotOnThisNode(
                f"{path} does not exist: the kubelet does not run, or its directory is not mounted here"
            )
        try:
            state = decode_json(_content(path), type=_CpuManagerState)
            return [f"cpu{number}" for number in sorted(exclusive_cpus(state.entries))]
        except ValueError as error:
            raise ProcReadError(f"{path} is not a valid CPU manager state of the kubelet: {error}") from error

    def _read_loads(self, look: _ProcContext) -> None:
        for name, load in zip(LOADS, self._parsed("loadavg", parse_loads), strict=True):
            look.readings.add(name, load, look.now)

    def _read_memory(self, look: _ProcContext) -> None:
        memory = self._parsed("meminfo", parse_memory)
        free_huge = self._free_huge_pages()
        used = memory.total - memory.available - (memory.free_huge if free_huge is None else free_huge)
        used = max(0, used)
        for name, value in zip(MEMORY, (memory.total, used, 100.0 * used / memory.total), strict=True):
            look.readings.add(name, float(value), look.now)

    def _free_huge_pages(self) -> int | None:
        """Bytes in free huge pages of all sizes: nothing uses them, and no eviction makes them available. None if the
        kernel has no list of sizes."""
        found = None
        for path in glob.glob(f"{self._sys}/kernel/mm/hugepages/hugepages-*kB"):
            with contextlib.suppress(ProcReadError, ValueError):
                size = int(path.rpartition("-")[2].removesuffix("kB")) * 1024
                found = (found or 0) + size * int(_content(f"{path}/free_hugepages"))
        return found

    def _read_disks(self, look: _ProcContext) -> None:
        disks: Mapping[str, Disk] = self._parsed("diskstats", parse_disks)
        before, elapsed = self._before_now("diskstats", disks, look)
        why = "no disk has been used since boot"
        for name, disk in disks.items():
            try:
                rates = _disk_rates(before.get(name), disk, elapsed)
            except NoRate as error:
                why = f"{name}: {error}"
                continue
            for metric, value in zip(DISK, rates, strict=True):
                look.readings.add(metric, value, look.now, {"diskName": name})
        if not disks:
            raise NotOnThisNode(why)
        if DISK[0] not in look.readings.series:
            raise NoRate(why)

    def _read_network(self, look: _ProcContext) -> None:
        interfaces: Mapping[str, Interface] = self._parsed(self._net("dev"), parse_interfaces)
        wanted = self._interfaces or sorted(self._default_interfaces() & interfaces.keys())
        if not wanted:
            raise NotOnThisNode(NO_ROUTE)
        absent = [name for name in wanted if name not in interfaces]
        why = f"unknown network interface {', '.join(absent)}; existing: {', '.join(interfaces)}" if absent else ""
        before, elapsed = self._before_now("net/dev", interfaces, look)
        for name in wanted:
            if name not in interfaces:
                continue
            try:
                rates = _network_rates(before.get(name), interfaces[name], elapsed)
            except NoRate as error:
                why = f"{name}: {error}"
                continue
            for metric, value in zip(NETWORK, rates, strict=True):
                look.readings.add(metric, value, look.now, {"NetInterface": name})
        if NETWORK[0] not in look.readings.series:
            raise NoRate(why)

    def _default_interfaces(self) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for name in ("route", "ipv6_route"):
            if os.path.exists(path := f"{self._proc}/{self._net(name)}"):
                found |= default_interfaces(_content(path))
        return found

    def _net(self, name: str) -> str:
        """In a pod, /proc/net is the pod's; /proc/1/net is the host's if the host's /proc is mounted."""
        return f"1/net/{name}" if os.path.exists(f"{self._proc}/1/net/dev") else f"net/{name}"

    def _read_pressure(self, resource: str, look: _ProcContext) -> None:
        names = {(share, span): f"psi_{resource}_{share}_{span}" for share in ("some", "full") for span in SPANS}
        try:
            if not os.path.exists(f"{self._proc}/pressure/{resource}"):
                raise NotOnThisNode(NO_PRESSURE)
            pressure = self._parsed(f"pressure/{resource}", values.pressure)
        except NotOnThisNode as error:
            look.readings.mark_absent(str(error), *names.values())
            return
        except ProcReadError as error:
            look.readings.mark_missing(str(error), *names.values())
            return
        for (share, span), name in names.items():
            averages = pressure.some if share == "some" else pressure.full
            if averages is None:
                look.readings.mark_absent(f"this kernel does not report '{share}' pressure of {resource}", name)
            else:
                look.readings.add(name, getattr(averages, span), look.now)

    # --- pieces ------------------------------------------------------------------------------------------------------

    def _parsed(self, name: str, parser: Callable[[bytes], T]) -> T:
        path = f"{self._proc}/{name}"
        text = _content(path)
        try:
            return parser(text)
        except (ValueError, KeyError, IndexError) as error:
            raise ProcReadError(f"{path} does not have the expected format: {str(error) or text[:60]!r}") from error

    def _before_now(self, what: str, counters: Any, look: _ProcContext) -> tuple[Any, float]:
        """The counters of the previous reading, and the seconds since then. Stores the new counters. Raises NoRate."""
        at = look.monotonic()
        before, self._before[what] = self._before.get(what), _CounterSample(at, counters)
        if before is None:
            raise NoRate(NO_PREVIOUS_READING)
        return before.counters, seconds_between(before.at, at, longest=look.longest)


@dataclass(frozen=True, slots=True)
class _ProcContext:
    """Context of one cycle: where to add results, and the clocks."""

    readings: MetricReadings
    now: float
    monotonic: Callable[[], float]
    longest: float


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:  # of /proc/pressure: built into the kernel, and disabled
            raise NotOnThisNode(NO_PRESSURE) from None
        raise ProcReadError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


def _cpu_use(before: Mapping[str, CpuTimes], now: Mapping[str, CpuTimes], elapsed: float) -> float:
    """Share of CPU use. Raises NoRate."""
    try:
        return used_share(before, now, elapsed_s=elapsed)
    except CpuUseUnknown as error:
        raise NoRate(str(error)) from None


def _disk_rates(before: Disk | None, disk: Disk, elapsed: float) -> tuple[float, ...]:
    """Rates in the order of DISK: KiB/s, operations per second and percent of time busy. Raises NoRate."""
    if before is None:
        raise NoRate(NO_PREVIOUS_READING)
    busy = min(100.0, 100.0 * growth(before.busy_ms, disk.busy_ms) / (1000.0 * elapsed))
    return (
        growth(before.read_bytes, disk.read_bytes) / 1024.0 / elapsed,
        growth(before.written_bytes, disk.written_bytes) / 1024.0 / elapsed,
        growth(before.reads, disk.reads) / elapsed,
        growth(before.writes, disk.writes) / elapsed,
        busy,
        busy,
    )


def _network_rates(before: Interface | None, now: Interface, elapsed: float) -> tuple[float, ...]:
    """Rates in the order of NETWORK. Crane's "kibps" are thousands of bits per second. Raises NoRate."""
    if before is None:
        raise NoRate(NO_PREVIOUS_READING)
    return (
        growth(before.bytes_in, now.bytes_in) * 8 / 1000.0 / elapsed,
        growth(before.bytes_out, now.bytes_out) * 8 / 1000.0 / elapsed,
        growth(before.packets_in, now.packets_in) / elapsed,
        growth(before.packets_out, now.packets_out) / elapsed,
        growth(before.drops_in, now.drops_in) / elapsed,
        growth(before.drops_out, now.drops_out) / elapsed,
    )


# --- the files -------------------------------------------------------------------------------------------------------


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


def parse_cpu_times(stat: bytes) -> dict[str, CpuTimes]:
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


def parse_memory(meminfo: bytes) -> Memory:
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


def parse_loads(loadavg: bytes) -> tuple[float, float, float]:
    """/proc/loadavg: load averages over 1, 5 and 15 minutes."""
    one, five, fifteen = (float(field) for field in loadavg.split()[:3])
    if not 0 <= one + five + fifteen < float("inf"):
        raise ValueError("the load averages are invalid")
    return one, five, fifteen


def parse_disks(diskstats: bytes) -> dict[str, Disk]:
    """/proc/diskstats: counters by device name, without devices that were never used (ram0, loop3)."""
    found = {}
    for line in diskstats.splitlines():
        _, _, name, *fields = line.split()
        reads, _, sectors_read, _, writes, _, sectors_written, _, _, busy_ms, *_ = (int(field) for field in fields)
        if reads or writes:
            disk = Disk(reads, sectors_read * SECTOR, writes, sectors_written * SECTOR, busy_ms)
            found[name.decode("ascii", errors="backslashreplace")] = disk
    return found


def parse_interfaces(net_dev: bytes) -> dict[str, Interface]:
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


def exclusive_cpus(state: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """CPUs assigned exclusively to one container, from the `entries` of the kubelet's cpu_manager_state: by pod, then
    by container."""
    sets = (cpuset.parse(cpus.replace(" ", "")) for containers in state.values() for cpus in containers.values())
    return frozenset().union(*sets)
