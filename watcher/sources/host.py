"""Provider of the load of the local machine, for installations without monitoring and for a node that watches itself.

The kernel provides counters (CPU ticks, bytes, milliseconds of disk activity), and a load is the difference of two
counter values. A background task therefore reads them at the start of every slot and stores the loads; `fetch` returns
the stored loads. The first load is measured over half a second, so that samples exist within a second of the start.

The definitions match the usual recording rules, so that this provider and Prometheus agree: CPU as in
watcher/core/cpu_use.py, memory as 1 - MemAvailable / MemTotal, network as the sum over all devices except loopback. As
in the rules, bridged traffic is counted on the bridge and on the network card.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from watcher.core.config.settings import Settings
from watcher.core.cpu_use import UNUSED, USED, CpuTimes, CpuUseUnknown, used_share
from watcher.core.windows.settings import RefreshSettings
from watcher.model import METRIC_BY_KEY, Finding, FindingKind, Remedy, SeriesBatch
from watcher.sources.base import Fetch, QueryFailure, QueryPlan
from watcher.sources.errors import ProviderUnreachable
from watcher.sources.settings import ProviderSettings

log = logging.getLogger(__name__)

BASELINE_S = 0.5  # span of the first load; a CPU tick is 0.01 s, so the error is 1 to 2 percent
FIRST_SAMPLE_PATIENCE_S = 3.0
LOOPBACKS = ("lo", "lo0")

Series = tuple[str, str]
"""Metric key and its part: a device, a CPU and its mode, or ""."""


@dataclass(frozen=True, slots=True)
class HostMetric:
    """Rule for reading a metric from this host: source, unit, reason for the choice, message for a host that lacks the
    metric, and the kernel's own averaging time in seconds."""

    expression: str
    unit: str
    reason: str
    absent: str
    smoothing_s: float = 0.0


_NO_CARD = "no network device except loopback"
_NO_PRESSURE = "this kernel provides no pressure stall information (needs Linux 4.20 or later, booted with psi=1)"
PLANS: Mapping[str, HostMetric] = {
    "CPU": HostMetric(
        "psutil.cpu_times", "percent", "share of the ticks that are neither idle, iowait nor steal", "no CPU times"
    ),
    "Memory": HostMetric("psutil.virtual_memory", "percent", "1 - available / total", "no memory figures"),
    "Storage": HostMetric(
        "psutil.disk_io_counters.busy_time", "percent", "the busiest disk", "no disk with a busy time"
    ),
    "NetworkTransmit": HostMetric("psutil.net_io_counters.bytes_sent", "bytes/s", "sum without loopback", _NO_CARD),
    "NetworkReceive": HostMetric("psutil.net_io_counters.bytes_recv", "bytes/s", "sum without loopback", _NO_CARD),
    "NetworkTransmitDrop": HostMetric("psutil.net_io_counters.dropout", "packets/s", "sum without loopback", _NO_CARD),
    "NetworkReceiveDrop": HostMetric("psutil.net_io_counters.dropin", "packets/s", "sum without loopback", _NO_CARD),
    "PressureCPU": HostMetric(
        "/proc/pressure/cpu", "percent", "some avg10, averaged by the kernel", _NO_PRESSURE, 10.0
    ),
    "PressureMemory": HostMetric(
        "/proc/pressure/memory", "percent", "some avg10, averaged by the kernel", _NO_PRESSURE, 10.0
    ),
    "PressureIO": HostMetric("/proc/pressure/io", "percent", "some avg10, averaged by the kernel", _NO_PRESSURE, 10.0),
    "PressureMemoryFull": HostMetric(
        "/proc/pressure/memory full", "percent", "full avg10, averaged by the kernel", _NO_PRESSURE, 10.0
    ),
    "PressureIOFull": HostMetric(
        "/proc/pressure/io full", "percent", "full avg10, averaged by the kernel", _NO_PRESSURE, 10.0
    ),
}
# Not counters: each reading is a value.
LEVELS = ("Memory", "PressureCPU", "PressureMemory", "PressureIO", "PressureMemoryFull", "PressureIOFull")
NETWORK_FIELDS = {
    "NetworkTransmit": "bytes_sent",
    "NetworkReceive": "bytes_recv",
    "NetworkTransmitDrop": "dropout",
    "NetworkReceiveDrop": "dropin",
}


# --- reading the machine ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HostReading:
    """Raw values of the machine at one time. `values`: CPU seconds by mode of each CPU ("0 user"), network counts and
    busy milliseconds by device, levels in percent. `failed`: metric key -> error. A metric in neither does not exist
    on this machine."""

    values: Mapping[Series, float]
    failed: Mapping[str, str] = field(default_factory=dict)


def read_host(root: Path) -> HostReading:
    """Read all metrics of this machine; takes a few milliseconds. A read failure affects only the metrics involved.

    `root` is the directory with proc/pressure and sys/block. psutil locates the other files.
    """
    values: dict[Series, float] = {}
    failed: dict[str, str] = {}
    for keys, read in _READERS:
        try:
            values |= dict(read(root))
        except Exception as error:  # psutil can raise any exception on unusual kernels
            failed |= dict.fromkeys(keys, f"{type(error).__name__}: {error}")
    return HostReading(values, failed)


def _cpu(_root: Path) -> Iterator[tuple[Series, float]]:
    for number, times in enumerate(psutil.cpu_times(percpu=True)):
        for mode in USED + UNUSED:
            yield ("CPU", f"{number} {mode}"), getattr(times, mode, 0.0)  # macOS has neither iowait nor steal


def _cpus(reading: HostReading) -> dict[str, CpuTimes]:
    """The times of each CPU, by number."""
    cpus: dict[str, dict[str, float]] = {}
    for (key, part), value in reading.values.items():
        if key == "CPU":
            number, _, mode = part.partition(" ")
            cpus.setdefault(f"CPU {number}", {})[mode] = value
    return {name: CpuTimes.of(modes) for name, modes in cpus.items()}


def _memory(_root: Path) -> Iterator[tuple[Series, float]]:
    memory = psutil.virtual_memory()
    yield ("Memory", ""), (1.0 - memory.available / memory.total) * 100.0


def _network(_root: Path) -> Iterator[tuple[Series, float]]:
    for device, counts in psutil.net_io_counters(pernic=True, nowrap=False).items():  # nowrap=True would hide resets
        if device not in LOOPBACKS:
            for key, name in NETWORK_FIELDS.items():
                yield (key, device), float(getattr(counts, name))


def _disks(root: Path) -> Iterator[tuple[Series, float]]:
    """Busy milliseconds of the physical disks: entries of /sys/block (not partitions) with a device (not loop
    devices)."""
    blocks = root / "sys" / "block"
    for name, counts in (psutil.disk_io_counters(perdisk=True, nowrap=False) or {}).items():
        busy_ms = getattr(counts, "busy_time", None)  # Linux and FreeBSD only
        physical = not blocks.is_dir() or (blocks / name.replace("/", "!") / "device").exists()
        if busy_ms is not None and physical:
            yield ("Storage", name), float(busy_ms)


def _pressure(name: str, keys: Mapping[str, str]) -> Callable[[Path], Iterator[tuple[Series, float]]]:
    def read(root: Path) -> Iterator[tuple[Series, float]]:
        try:
            text = (root / "proc" / "pressure" / name).read_text(encoding="ascii")
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:  # built into the kernel, but disabled
                return
            raise
        for key, kind in keys.items():
            yield (key, ""), parse_pressure(text, kind)

    return read


def parse_pressure(text: str, wanted: str = "some") -> float:
    """The "some avg10" or "full avg10" value of a /proc/pressure file, in percent. Raises ValueError if it is
    missing."""
    for line in text.splitlines():
        kind, *fields = line.split()
        values = dict(part.partition("=")[::2] for part in fields)
        if kind == wanted and "avg10" in values:
            return float(values["avg10"])
    raise ValueError(f"no '{wanted} avg10=' in {text[:80]!r}")


_READERS: tuple[tuple[tuple[str, ...], Callable[[Path], Iterator[tuple[Series, float]]]], ...] = (
    (("CPU",), _cpu),
    (("Memory",), _memory),
    (tuple(NETWORK_FIELDS), _network),
    (("Storage",), _disks),
    (("PressureCPU",), _pressure("cpu", {"PressureCPU": "some"})),
    (
        ("PressureMemory", "PressureMemoryFull"),
        _pressure("memory", {"PressureMemory": "some", "PressureMemoryFull": "full"}),
    ),
    (("PressureIO", "PressureIOFull"), _pressure("io", {"PressureIO": "some", "PressureIOFull": "full"})),
)


# --- load from two readings ------------------------------------------------------------------------------------------


def loads_between(
    before: HostReading, after: HostReading, *, elapsed_s: float
) -> tuple[dict[Series, float], dict[str, str]]:
    """Loads between two readings, in the units of PLANS, and the reasons why metrics have no load, by key: a counter
    decreased, or the CPUs changed.

    A device that only one reading contains is ignored. Disks are returned separately, because the review uses the
    busiest one. Their busy time is a share of the elapsed time, limited to 100 percent, because some kernels account a
    long request only at its end.
    """
    out = {series: value for series, value in after.values.items() if series[0] in LEVELS}
    deltas: dict[str, dict[str, float]] = {}
    for (key, part), value in after.values.items():
        if key not in (*LEVELS, "CPU") and (key, part) in before.values:
            deltas.setdefault(key, {})[part] = value - before.values[key, part]
    unknown: dict[str, str] = {}
    then, now = _cpus(before), _cpus(after)
    if then and now:
        try:
            out["CPU", ""] = 100.0 * used_share(then, now, elapsed_s=elapsed_s)
        except CpuUseUnknown as error:
            unknown["CPU"] = str(error)
    for key, delta in deltas.items():
        if min(delta.values()) < 0.0:
            unknown[key] = "a kernel counter decreased (possible device reset)"
        elif key == "Storage":
            out |= {("Storage", disk): min(100.0, ms / (10.0 * elapsed_s)) for disk, ms in delta.items()}
        else:
            out[key, ""] = sum(delta.values()) / elapsed_s
    return out, unknown


# --- the provider ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TimedReading:
    time: float  # unix seconds
    at: float  # monotonic seconds
    reading: HostReading


@dataclass(frozen=True, slots=True)
class _Sample:
    time: float
    values: Mapping[Series, float]


class HostProvider:
    """Provider with samples of this machine named `node_name`: one per slot of `resolution` seconds, stored for
    `max_seconds`.

    `metrics` are the keys of the metrics to return; a finding reports each one that this machine lacks. `clock` returns
    unix seconds, `monotonic` a time for durations, `read` the raw values.
    """

    source = "Host"
    remembers = False

    def __init__(
        self,
        *,
        node_name: str,
        resolution: float,
        max_seconds: float,
        metrics: Collection[str] = tuple(PLANS),
        root: Path = Path("/"),
        baseline_s: float = BASELINE_S,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        read: Callable[[Path], HostReading] = read_host,
    ) -> None:
        self.node_name = node_name
        self.resolution = resolution
        self.max_seconds = max_seconds
        self.metrics = tuple(metrics)
        self.root = root
        self.baseline_s = min(baseline_s, resolution / 2)
        self._clock, self._monotonic, self._read = clock, monotonic, read
        self._samples: deque[_Sample] = deque()
        self._findings: deque[Finding] = deque(maxlen=100)
        self._had: set[str] = set()
        self._failed: Mapping[str, str] = {}
        self._first_sample = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start sampling in the background."""
        self._task = asyncio.create_task(self._sample_forever(), name="host-sampler")

    async def fetch(self, since: float, until: float, *, only: Collection[str] | None = None) -> Fetch:
        """Stored samples with since <= time <= until (unix seconds). Right after the start it waits for the first
        sample.

        Raises ProviderUnreachable if no sample is available or no metric could be read.
        """
        await self._wait_for_first_sample()
        keys = [key for key in self.metrics if key in PLANS and (only is None or METRIC_BY_KEY[key].name in only)]
        batches = tuple(batch for key in keys if (batch := self._batch(key, since, until)) is not None)
        failures = tuple(_failure(key, self._failed[key]) for key in keys if key in self._failed)
        if not batches and failures and len(failures) == len(keys):
            raise ProviderUnreachable(
                f"no metric of this host could be read: {failures[0].error}",
                hint="check that /proc is mounted and readable for this user",
            )
        findings = tuple(self._findings)
        self._findings.clear()
        planned = [key for key in keys if key in self._had or key in self._failed]
        plans = {METRIC_BY_KEY[key].name: _plan(key, node=self.node_name) for key in planned}
        return Fetch(batches, failures, plans, findings, clock_offset_s=0.0)

    async def close(self) -> None:
        """Stop sampling. A running read finishes in its worker thread within milliseconds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    # --- background task ---

    async def _sample_forever(self) -> None:
        before = await self._look()
        await asyncio.sleep(self.baseline_s)
        while True:
            slot = math.floor(self._clock() / self.resolution)
            after = await self._look()
            if after.at - before.at >= self.baseline_s / 2:  # a load over a few ticks is too imprecise
                self._take(before, after)
                before = after
            await self._until_after(slot)

    async def _until_after(self, slot: int) -> None:
        """Sleep until the next slot starts by the wall clock. Checks again after each sleep, because a timer may
        fire early."""
        while True:
            now = self._clock()
            if math.floor(now / self.resolution) != slot:
                return
            await asyncio.sleep((slot + 1) * self.resolution - now)

    async def _look(self) -> _TimedReading:
        now, at = self._clock(), self._monotonic()
        try:
            reading = await asyncio.to_thread(self._read, self.root)
        except Exception as error:
            reading = HostReading({}, dict.fromkeys(PLANS, f"{type(error).__name__}: {error}"))
        return _TimedReading(now, at, reading)

    def _take(self, before: _TimedReading, after: _TimedReading) -> None:
        """Store the load between two readings at the time of the later one."""
        values, unknown = loads_between(before.reading, after.reading, elapsed_s=after.at - before.at)
        while (
            self._samples and self._samples[-1].time >= after.time
        ):  # the clock was set back: these samples are in the future
            self._samples.pop()
        self._samples.append(_Sample(after.time, values))
        while self._samples[0].time < after.time - self.max_seconds:
            self._samples.popleft()
        for key in sorted(unknown.keys() & set(self.metrics)):
            text = f"{unknown[key]}: no sample this time"
            self._find(FindingKind.COUNTER_RESET, key, after.time, text, Remedy.DROPPED)
        if not self._first_sample.is_set():
            for key in set(self.metrics) - {key for key, _ in after.reading.values} - after.reading.failed.keys():
                why = PLANS[key].absent if key in PLANS else "not available from a machine's own kernel"
                self._find(FindingKind.NO_SERIES, key, after.time, why, Remedy.REPORTED)
        self._note_failures({key: after.reading.failed[key] for key in self.metrics if key in after.reading.failed})
        self._had |= {key for key, _ in values}
        self._first_sample.set()

    def _find(self, kind: FindingKind, key: str, now: float, text: str, remedy: Remedy) -> None:
        self._findings.append(Finding(kind, self.node_name, METRIC_BY_KEY[key].name, now, text, remedy))

    def _note_failures(self, failed: Mapping[str, str]) -> None:
        for key in failed.keys() - self._failed.keys():
            log.warning("%s of this host cannot be read, samples are missing: %s", key, failed[key])
        for key in self._failed.keys() - failed.keys():
            log.info("%s of this host can be read again", key)
        self._failed = failed

    # --- fetch ---

    async def _wait_for_first_sample(self) -> None:
        task = self._task
        if task is None:
            raise ProviderUnreachable(
                "this host is not being sampled", hint="the provider was not started, or it is closed"
            )
        try:
            async with asyncio.timeout(FIRST_SAMPLE_PATIENCE_S):
                await self._first_sample.wait()
        except TimeoutError as error:
            raise ProviderUnreachable(
                f"no sample of this host within {FIRST_SAMPLE_PATIENCE_S:g} s",
                hint="check whether the machine is overloaded or reads of /proc block",
            ) from error
        if task.done():
            raise ProviderUnreachable(
                "this host is no longer sampled", hint="restart load-watcher, and report the error in the log"
            )

    def _batch(self, key: str, since: float, until: float) -> SeriesBatch | None:
        """Samples of one metric between the two times (unix seconds), one series per device, ascending times; None
        if there are none."""
        samples = [sample for sample in self._samples if since <= sample.time <= until]
        parts = sorted({part for sample in samples for metric, part in sample.values if metric == key})
        rows = [
            (k, sample.time, sample.values[key, part])
            for k, part in enumerate(parts)
            for sample in samples
            if (key, part) in sample.values
        ]
        if not rows:
            return None
        series, times, values = zip(*rows, strict=True)
        return SeriesBatch(
            METRIC_BY_KEY[key],
            (self.node_name,) * len(parts),
            np.array(series, dtype=np.int64),
            np.array(times, dtype=np.float64),
            np.array(values, dtype=np.float64),
        )


def _plan(key: str, *, node: str) -> QueryPlan:
    # The label contains the node name: after a rename (for example a restarted container with another host name), the
    # samples of the previous name must not continue, and that name must not be reported as silent.
    plan, label = PLANS[key], f"this host, {node}"
    return QueryPlan(METRIC_BY_KEY[key].name, plan.expression, plan.unit, label, plan.smoothing_s, plan.reason)


def _failure(key: str, why: str) -> QueryFailure:
    error = ProviderUnreachable(
        f"{PLANS[key].expression}: {why}", hint="the user of load-watcher may lack the permission"
    )
    return QueryFailure(METRIC_BY_KEY[key].name, error)


def from_settings(settings: Settings) -> HostProvider:
    """Build the provider for this host. The node name is NODE_NAME (from the downward API), default: the host name.
    Provides all available metrics unless provider.metrics is set."""
    chosen = settings.origins.get("provider.metrics", "default") != "default"
    return HostProvider(
        node_name=os.environ.get("NODE_NAME") or socket.gethostname(),
        resolution=settings[RefreshSettings].point_resolution,
        max_seconds=max(window.seconds for window in settings[RefreshSettings].windows),
        metrics=[metric.key for metric in settings[ProviderSettings].wanted] if chosen else list(PLANS),
    )
