"""Current load of the node, from /proc.

Each file is read and parsed separately: an error affects only the metrics of that file, which report it as the reason.
Metric names and units are Crane's; docs/reference/agent-state.md lists them, including the differences between Crane's
names and their meaning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from agent.cgroups import content
from agent.state import proc_parsers
from agent.state.rates import (
    COUNTER_RESET,
    NO_PREVIOUS_READING,
    CpuTimes,
    NoRate,
    busy_percent,
    growth,
    idle_percent,
    seconds_between,
)
from agent.state.readings import MetricReadings

T = TypeVar("T")

CPU_RATES = ("cpu_total_usage", "cpu_total_utilization")
LOADS = ("cpu_load_1_min", "cpu_load_5_min", "cpu_load_15_min")
MEMORY = ("memory_total", "memory_total_usage", "memory_total_utilization")
DISK = (
    "disk_read_kibps",
    "disk_write_kibps",
    "disk_read_iops",
    "disk_write_iops",
    "disk_read_utilization",
    "disk_total_utilization",
)
NETWORK = (
    "network_receive_kibps",
    "network_sent_kibps",
    "network_receive_pckps",
    "network_sent_pckps",
    "network_drop_in",
    "network_drop_out",
)
PRESSURES = ("cpu", "memory", "io")
SPANS = ("avg10", "avg60", "avg300")

NO_PRESSURE = "this kernel does not report pressure: it must be built with CONFIG_PSI and booted with psi=1"


class ProcReadError(Exception):
    """A file could not be read or parsed."""


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
    """Reads /proc below `proc_root`. `interfaces` are the network interfaces to measure; `cpu_manager_state` is the
    path of the kubelet's file."""

    def __init__(self, proc_root: str, *, interfaces: tuple[str, ...], cpu_manager_state: str) -> None:
        self._proc = proc_root
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
        for resource in PRESSURES:
            self._read_pressure(resource, look)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _read_cpu(self, look: _ProcContext) -> None:
        times: Mapping[str, CpuTimes] = self._parsed("stat", proc_parsers.cpu_times)
        cores = len(times) - 1
        look.readings.add("cpu_core_numbers", float(cores), look.now)
        before, _ = self._before_now("stat", times, look)
        if times["cpu"].busy < before["cpu"].busy:
            raise NoRate(COUNTER_RESET)
        percent = busy_percent(before["cpu"], times["cpu"])
        look.readings.add("cpu_total_utilization", percent, look.now)
        look.readings.add("cpu_total_usage", percent * cores * 10.0, look.now)
        idle = sum(
            idle_percent(before[name], times[name]) * 10.0
            for name in self._exclusive()
            if name in before and name in times
        )
        look.readings.add("exclusive_cpu_idle", float(idle), look.now)

    def _exclusive(self) -> list[str]:
        """The names of the CPUs assigned exclusively to one container. Raises Unread."""
        path = self._cpu_manager_state
        try:
            state = msgspec.json.decode(_content(path), type=_CpuManagerState)
            return [f"cpu{number}" for number in sorted(proc_parsers.exclusive_cpus(state.entries))]
        except (msgspec.DecodeError, ValueError) as error:
            raise ProcReadError(f"{path} is not a valid CPU manager state of the kubelet: {error}") from error

    def _read_loads(self, look: _ProcContext) -> None:
        for name, load in zip(LOADS, self._parsed("loadavg", proc_parsers.loads), strict=True):
            look.readings.add(name, load, look.now)

    def _read_memory(self, look: _ProcContext) -> None:
        total, available = self._parsed("meminfo", proc_parsers.memory)
        used = total - available
        for name, value in zip(MEMORY, (total, used, 100.0 * used / total), strict=True):
            look.readings.add(name, float(value), look.now)

    def _read_disks(self, look: _ProcContext) -> None:
        disks: Mapping[str, proc_parsers.Disk] = self._parsed("diskstats", proc_parsers.disks)
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
        if DISK[0] not in look.readings.series:
            raise NoRate(why)

    def _read_network(self, look: _ProcContext) -> None:
        interfaces: Mapping[str, proc_parsers.Interface] = self._parsed(self._net_dev(), proc_parsers.interfaces)
        absent = [name for name in self._interfaces if name not in interfaces]
        why = f"unknown network interface {', '.join(absent)}; existing: {', '.join(interfaces)}" if absent else ""
        before, elapsed = self._before_now("net/dev", interfaces, look)
        for name in self._interfaces:
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
            raise NoRate(why or "no network interface is configured (agent.interfaces)")

    def _net_dev(self) -> str:
        """In a pod, /proc/net is the pod's; /proc/1/net is the host's if the host's /proc is mounted."""
        return "1/net/dev" if os.path.exists(f"{self._proc}/1/net/dev") else "net/dev"

    def _read_pressure(self, resource: str, look: _ProcContext) -> None:
        names = {(share, span): f"psi_{resource}_{share}_{span}" for share in ("some", "full") for span in SPANS}
        try:
            pressure = self._parsed(f"pressure/{resource}", content.pressure)
        except ProcReadError as error:
            there = os.path.exists(f"{self._proc}/pressure/{resource}")
            look.readings.mark_missing(str(error) if there else NO_PRESSURE, *names.values())
            return
        for (share, span), name in names.items():
            averages = pressure.some if share == "some" else pressure.full
            if averages is None:
                look.readings.mark_missing(f"this kernel does not report '{share}' pressure of {resource}", name)
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
        raise ProcReadError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


def _disk_rates(before: proc_parsers.Disk | None, disk: proc_parsers.Disk, elapsed: float) -> tuple[float, ...]:
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


def _network_rates(
    before: proc_parsers.Interface | None, now: proc_parsers.Interface, elapsed: float
) -> tuple[float, ...]:
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
