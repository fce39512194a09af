"""Data model: metrics, operators, windows, samples, snapshots, and findings.

Pure: no I/O, no clock. A *sample* is one reading of one metric of one node, with the time that the source gives. A
*slot* is floor(time / resolution), so slots are aligned to the wall clock and identical on all replicas. A *window* is
a number of whole slots that ends with the newest accepted sample. A *snapshot* is the state of all nodes at one tick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from watcher.arrays import F64, I64, U8, Bool


class MetricType(StrEnum):
    """Type of a metric, spelt as in the Trimaran plug-ins, which compare case-sensitively."""

    CPU = "CPU"
    MEMORY = "Memory"
    STORAGE = "Storage"
    BANDWIDTH = "Bandwidth"
    ENERGY = "Energy"
    GPU = "GPU"
    PRESSURE = "Pressure"


class Operator(StrEnum):
    """Aggregation of a window's samples to one number. The members are in wire order: TargetLoadPacking uses the last
    of AVG and Latest in the list, so Latest precedes AVG."""

    LATEST = "Latest"
    AVG = "AVG"
    STD = "STD"
    MAX = "MAX"
    P50 = "P50"
    P90 = "P90"
    P95 = "P95"
    P99 = "P99"
    FORECAST = "FORECAST"
    """The upper bound of the next hours, in documents only on request; the rollup is its horizon."""


DEFAULT_OPERATORS = (Operator.AVG, Operator.STD)
QUANTILE = {Operator.P50: 0.5, Operator.P90: 0.9, Operator.P95: 0.95, Operator.P99: 0.99, Operator.MAX: 1.0}


class Unit(StrEnum):
    """Unit of a metric's values, in memory and on the wire."""

    PERCENT = "percent"
    BYTES_PER_SECOND = "bytes/s"
    PACKETS_PER_SECOND = "packets/s"
    WATTS = "watts"

    def text(self, value: float) -> str:
        """A value with the unit, rounded for people: "95.3 %", "12.5 MB/s", "1250 packets/s", "310 W"."""
        if self is Unit.BYTES_PER_SECOND:
            power = next((each for each in (3, 2, 1) if abs(value) >= 1000.0**each), 0)
            return f"{value / 1000.0**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}/s"
        return f"{round(value, 1):g} {_SYMBOLS[self]}"


_SYMBOLS = {Unit.PERCENT: "%", Unit.PACKETS_PER_SECOND: "packets/s", Unit.WATTS: "W"}

# Unit that a source may declare -> (unit of the metric, factor). Units are converted only with this table.
SOURCE_UNITS: Mapping[str, tuple[Unit, float]] = {
    "ratio": (Unit.PERCENT, 100.0),
    "percent": (Unit.PERCENT, 1.0),
    "bytes/s": (Unit.BYTES_PER_SECOND, 1.0),
    "bits/s": (Unit.BYTES_PER_SECOND, 0.125),
    "packets/s": (Unit.PACKETS_PER_SECOND, 1.0),
    "watts": (Unit.WATTS, 1.0),
    "microwatts": (Unit.WATTS, 1e-6),
}


class Combine(StrEnum):
    """Operation that combines several series of one node into one."""

    NEWEST_MAX = "newest, then maximum"
    SUM = "sum"
    MAX = "maximum"
    MEAN = "mean"


Labels = Mapping[str, str]
OF_TARGET = "\1"
"""Separates the target from the pod in Metric.sharer_of."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a node. `key` is its name in settings, `name` its name on the wire (upstream's recording rule name,
    regardless of the expression that produced the values). `moves`: the value always changes on a running node.
    `devices`: what identifies a device in the labels or tags of a series, in groups of names for the same thing, of
    which the first that the series has counts. Series that differ in other labels are duplicates of one device, except
    that several pods may share a device, with a series for each: `sharers` are the labels that name the pod.
    """

    key: str
    name: str
    type: MetricType
    unit: Unit
    combine: Combine
    moves: bool = False
    devices: tuple[tuple[str, ...], ...] = ()
    sharers: tuple[str, ...] = ()
    numbers: int | None = None
    """Index in `devices` of a number of the device on its node, which counts only without the first label, a unique
    one."""

    def device_of(self, labels: Labels) -> str:
        """The device that a series with these labels or tags describes, "" if it describes the node as a whole."""
        found = [next((labels[name] for name in names if labels.get(name)), "") for names in self.devices]
        return "\0".join(found) if any(found) else ""

    def sharer_of(self, labels: Labels) -> str:
        """The target of the series and, after OF_TARGET, the pod for which it describes a shared device; "" without
        `sharers`. The series of two targets are duplicates, whatever their pods are."""
        target = "\0".join(labels.get(name, "") for name in ("job", "instance", "exported_job", "exported_instance"))
        return f"{target}{OF_TARGET}" + "\0".join(labels.get(name, "") for name in self.sharers) if self.sharers else ""


_INTERFACE = (("device", "interface", "ifname", "ifName", "ifDescr", "nic"),)
_GPU = (("UUID", "uuid", "gpu_uuid"), ("gpu", "gpu_id", "minor_number", "index"), ("GPU_I_ID", "mig_device"))
# The labels of dcgm-exporter, or those to which Prometheus renames them where the target has them too.
_PODS = ("namespace", "pod", "container", "exported_namespace", "exported_pod", "exported_container", "vgpu")
# The package and mode of Kepler before 0.10; the zone, its path and the GPU of later versions; the chassis of Redfish.
_ENERGY = (("package",), ("mode",), ("zone",), ("path",), ("chassis_id",), (*_GPU[0], *_GPU[1]))


METRICS: tuple[Metric, ...] = (
    Metric("CPU", "instance:node_cpu:ratio", MetricType.CPU, Unit.PERCENT, Combine.NEWEST_MAX, moves=True),
    Metric(
        "Memory",
        "instance:node_memory_utilisation:ratio",
        MetricType.MEMORY,
        Unit.PERCENT,
        Combine.NEWEST_MAX,
        moves=True,
    ),
    Metric(
        "Storage",
        "instance_device:node_disk_io_time_seconds:rate5m",
        MetricType.STORAGE,
        Unit.PERCENT,
        Combine.MAX,
    ),
    Metric(
        "NetworkTransmit",
        "instance:node_network_transmit_bytes:rate:sum",
        MetricType.BANDWIDTH,
        Unit.BYTES_PER_SECOND,
        Combine.SUM,
        moves=True,
        devices=_INTERFACE,
    ),
    Metric(
        "NetworkReceive",
        "instance:node_network_receive_bytes:rate:sum",
        MetricType.BANDWIDTH,
        Unit.BYTES_PER_SECOND,
        Combine.SUM,
        moves=True,
        devices=_INTERFACE,
    ),
    Metric(
        "NetworkTransmitDrop",
        "instance:node_network_transmit_drop_excluding_lo:rate5m",
        MetricType.BANDWIDTH,
        Unit.PACKETS_PER_SECOND,
        Combine.SUM,
        devices=_INTERFACE,
    ),
    Metric(
        "NetworkReceiveDrop",
        "instance:node_network_receive_drop_excluding_lo:rate5m",
        MetricType.BANDWIDTH,
        Unit.PACKETS_PER_SECOND,
        Combine.SUM,
        devices=_INTERFACE,
    ),
    Metric(
        "EnergyPackage",
        "kepler_node_package_joules_total",
        MetricType.ENERGY,
        Unit.WATTS,
        Combine.SUM,
        moves=True,
        devices=_ENERGY,
    ),
    Metric("EnergyCore", "kepler_node_core_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM, devices=_ENERGY),
    Metric(
        "EnergyUncore", "kepler_node_uncore_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM, devices=_ENERGY
    ),
    Metric("EnergyDram", "kepler_node_dram_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM, devices=_ENERGY),
    Metric(
        "EnergyOther", "kepler_node_other_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM, devices=_ENERGY
    ),
    Metric("EnergyGPU", "kepler_node_gpu_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM, devices=_ENERGY),
    Metric(
        "EnergyPlatform",
        "kepler_node_platform_joules_total",
        MetricType.ENERGY,
        Unit.WATTS,
        Combine.SUM,
        devices=_ENERGY,
    ),
    Metric("EnergyHost", "scaph_host_power_microwatts", MetricType.ENERGY, Unit.WATTS, Combine.SUM, devices=_ENERGY),
    Metric(
        "GPU",
        "DCGM_FI_DEV_GPU_UTIL",
        MetricType.GPU,
        Unit.PERCENT,
        Combine.MEAN,
        devices=_GPU,
        sharers=_PODS,
        numbers=1,
    ),
    Metric("PressureCPU", "node_pressure_cpu_some_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
    Metric("PressureMemory", "node_pressure_memory_some_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
    Metric("PressureIO", "node_pressure_io_some_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
    Metric(
        "PressureMemoryFull",
        "node_pressure_memory_full_avg10",
        MetricType.PRESSURE,
        Unit.PERCENT,
        Combine.NEWEST_MAX,
    ),
    Metric("PressureIOFull", "node_pressure_io_full_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
)
METRIC_BY_KEY: Mapping[str, Metric] = {metric.key: metric for metric in METRICS}
METRIC_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
METRIC_ORDER: Mapping[str, int] = {metric.name: order for order, metric in enumerate(METRICS)}


# --- samples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesBatch:
    """Samples of one metric as the source returned them, converted to the metric's unit, not yet reviewed.

    `nodes[k]` is the node of series k (a name may repeat: several series of one node); `series[i]`, `time[i]` (unix
    seconds, true source time) and `value[i]` are sample i. Within a series samples come in ascending time. `devices[k]`
    is the device of series k and `sharers[k]` the pod that shares it (Metric.device_of, sharer_of): several series of
    one device are duplicates, unless one target has them for several pods. If empty, each series is a device of its
    own.
    """

    metric: Metric
    nodes: tuple[str, ...]
    series: I64
    time: F64
    value: F64
    devices: tuple[str, ...] = ()
    sharers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cells:
    """At most one sample per node and slot, as the history stores them. Arrays of equal length; `node` indexes
    `names`, `slot` = floor(time / resolution), `time` in unix seconds, `value` in the metric's unit."""

    names: tuple[str, ...]
    node: I64
    slot: I64
    time: F64
    value: F64

    def where(self, keep: Bool) -> Cells:
        """Return the cells for which `keep` is true; `names` is unchanged."""
        return Cells(self.names, self.node[keep], self.slot[keep], self.time[keep], self.value[keep])


_OF_CLUSTER = " of cluster "


def origin_of(source: str, *, cluster: str) -> str:
    """Return the value of Provenance.source: the source's name, with the cluster's name if it has one."""
    return f"{source}{_OF_CLUSTER}{cluster}" if cluster else source


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a metric's samples. If any field changes, old and new samples must not share a window."""

    source: str
    """Name of the provider on the wire, with the cluster's name if it has one (origin_of)."""
    expression: str
    unit: str
    smoothing_s: float
    """Seconds over which the source itself averages (recording rules with rate[5m]: 300; host: 0)."""

    @property
    def cluster(self) -> str:
        """Name of the cluster that the samples describe, "" if it has no name."""
        return self.source.partition(_OF_CLUSTER)[2]


# --- windows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A window length as users write it ("15m") and in seconds."""

    label: str
    seconds: int


DEFAULT_WINDOW_S = 900


def default_window(windows: Sequence[Window]) -> Window:
    """Return the longest window of at most 15 minutes, or the shortest window if all are longer.

    `windows` is in ascending order and not empty."""
    within = [window for window in windows if window.seconds <= DEFAULT_WINDOW_S]
    return within[-1] if within else windows[0]


@dataclass(frozen=True, slots=True)
class MetricWindows:
    """One metric of all n nodes in all W windows; NaN means unknown. Rows are windows in ascending length.

    `average`, `deviation` (population) and `count` are [W, n]; an average is NaN if the window has too few samples for
    that node (see history.covers). `coverage` [W, n] is count * cadence / window, at most 1. `latest`, `sampled` (unix
    seconds of the newest sample) and `cadence` (seconds) are [n].
    """

    metric: Metric
    provenance: Provenance
    latest: F64
    sampled: F64
    cadence: F64
    count: I64
    coverage: F64
    average: F64
    deviation: F64


@dataclass(frozen=True, slots=True)
class LastSample:
    """Last known values of a node: the time of its newest sample in unix seconds, and its last CPU and Memory in
    percent, None if unknown."""

    sampled: float
    cpu: float | None
    memory: float | None


@dataclass(frozen=True, slots=True)
class SnapshotForecasts:
    """The forecasts of the nodes of a snapshot by (metric name, horizon such as "6h"), each [n]: `bounds` in percent,
    NaN without one; `coverage`, the share (0 to 1) of the bounds of the last week that held, NaN if none was judged;
    `states`, codes of core.forecast.states.STATES. `horizon` is the default one, `level` is 0 to 1."""

    horizon: str
    level: float
    bounds: Mapping[tuple[str, str], F64]
    coverage: Mapping[tuple[str, str], F64]
    states: Mapping[tuple[str, str], U8]

    @property
    def horizons(self) -> tuple[str, ...]:
        """The horizons, the shortest first."""
        return tuple(dict.fromkeys(horizon for _, horizon in self.bounds))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """State of all nodes at one tick, immutable. Times are unix seconds.

    `timestamp` is the end of the fetch, `end` the time of the newest accepted sample. `nodes` is sorted by name; all
    arrays use its order. `sampled` [n] is the time of each node's newest sample. `age_s` [n] is the age in seconds at
    `timestamp` of nodes that are silent or held (see review), NaN for all other nodes. `on_demand(metric name,
    operator)` returns MAX and percentiles [W, n] (same NaN rule as `average`), computed on the first call.
    """

    timestamp: float
    end: float
    source: str
    resolution: int
    windows: tuple[Window, ...]
    nodes: tuple[str, ...]
    metrics: tuple[MetricWindows, ...]
    sampled: F64
    age_s: F64
    quarantined: frozenset[str] = frozenset()
    """Nodes whose exporter repeats its last values; left out until the values change again."""
    lost: Mapping[str, float] = field(default_factory=dict)
    """Known node that vanished with many others in a partial outage -> time of its last sample. If not empty, the list
    of all nodes would be incomplete and is not served (503)."""
    left_out: Mapping[str, LastSample] = field(default_factory=dict)
    """Node with samples that is not among `nodes`, for any reason -> its last known values."""
    on_demand: Callable[[str, Operator], F64] | None = None
    samples: Callable[[str], tuple[F64, F64]] | None = None
    """Metric name -> values and times (unix seconds) of the longest window, each [slots, n], newest slot first; NaN
    without a sample. A carried value has no time."""
    forecasts: SnapshotForecasts | None = None


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """State of the source at the last tick. `ok` is None before the first query. `reason` explains why it is not ok, or
    which part of its responses is missing. `since` is the unix time in seconds at which this state began."""

    ok: bool | None
    reason: str
    since: float

    @property
    def partial(self) -> bool:
        """Whether the source responded with incomplete data."""
        return bool(self.ok and self.reason)


# --- findings --------------------------------------------------------------------------------------------------------


class FindingKind(StrEnum):
    """Kinds of findings: of the review of samples, and about the source and the store."""

    MISSING = "missing"
    STALE = "stale"
    NON_FINITE = "non_finite"
    OUT_OF_RANGE = "out_of_range"
    FROZEN = "frozen"
    COUNTER_RESET = "counter_reset"
    JUMP = "jump"
    DUPLICATE_SERIES = "duplicate_series"
    UNKNOWN_NODE = "unknown_node"
    AMBIGUOUS_NODE = "ambiguous_node"
    NODE_NAMES = "node_names"
    CLOCK_SKEW = "clock_skew"
    FUTURE_SAMPLE = "future_sample"
    CLOCK_STEP = "clock_step"
    SHORT_COVERAGE = "short_coverage"
    PARTIAL_OUTAGE = "partial_outage"
    PARTIAL_RESPONSE = "partial_response"
    QUERY_FAILED = "query_failed"
    NO_SERIES = "no_series"
    SOURCE = "source"
    RESOLUTION = "resolution"
    STORE = "store"
    MEMORY = "memory"


class Remedy(StrEnum):
    """Action taken on a finding. `reported`: no data was changed."""

    REPORTED = "reported"
    DROPPED = "dropped"
    CLAMPED = "clamped"
    CARRIED = "carried"
    SHORTER_WINDOW = "shorter_window"
    QUARANTINED = "quarantined"
    LEFT_OUT = "left_out"
    HELD = "held"
    COMBINED = "combined"
    RENAMED = "renamed"
    HISTORY_EMPTIED = "history_emptied"
    SET_ASIDE = "set_aside"


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation about one node's metric at `time` (unix seconds). `node` "" means the whole fleet, `metric` ""
    means all metrics."""

    kind: FindingKind
    node: str
    metric: str
    time: float
    reason: str
    remedy: Remedy
