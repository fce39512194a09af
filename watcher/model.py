"""The nouns everything else speaks: metrics, operators, windows, samples, snapshots, and the shapes on the wire.

Pure: no I/O, no clock. A *sample* is one reading of one metric of one node at its true time. A *slot* is
floor(time / resolution), so slots are aligned to the wall clock and two replicas agree. A *window* is a number of
whole slots that ends with the newest accepted sample. A *snapshot* is what one tick knew of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from watcher.arrays import F32, F64, I64, U16, Bool

if TYPE_CHECKING:
    pass


class MetricType(StrEnum):
    """What is measured, spelt as the Trimaran plug-ins compare it (case matters to them)."""

    CPU = "CPU"
    MEMORY = "Memory"
    STORAGE = "Storage"
    BANDWIDTH = "Bandwidth"
    ENERGY = "Energy"
    GPU = "GPU"
    PRESSURE = "Pressure"


class Operator(StrEnum):
    """How the samples of a window became one number. The order is the order on the wire: TargetLoadPacking takes the
    last of AVG and Latest that it meets, so Latest precedes AVG."""

    LATEST = "Latest"
    AVG = "AVG"
    STD = "STD"
    MAX = "MAX"
    P50 = "P50"
    P90 = "P90"
    P95 = "P95"
    P99 = "P99"


DEFAULT_OPERATORS = (Operator.AVG, Operator.STD)
QUANTILE = {Operator.P50: 0.5, Operator.P90: 0.9, Operator.P95: 0.95, Operator.P99: 0.99, Operator.MAX: 1.0}


class Unit(StrEnum):
    """The unit of a metric's values inside and on the wire."""

    PERCENT = "percent"
    BYTES_PER_SECOND = "bytes/s"
    PACKETS_PER_SECOND = "packets/s"
    WATTS = "watts"


# Units a source may declare -> (our unit, factor). The one place where units are converted.
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
    """How several series of one node become one (contract 5.1, "Types")."""

    NEWEST_MAX = "newest, then maximum"
    SUM = "sum"
    MAX = "maximum"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of a node. `key` names it in settings, `name` on the wire (upstream's rule name, whatever expression
    produced the values). `moves` says that on a living node it never stands still."""

    key: str
    name: str
    type: MetricType
    unit: Unit
    combine: Combine
    moves: bool = False


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
    ),
    Metric(
        "NetworkReceive",
        "instance:node_network_receive_bytes:rate:sum",
        MetricType.BANDWIDTH,
        Unit.BYTES_PER_SECOND,
        Combine.SUM,
        moves=True,
    ),
    Metric(
        "NetworkTransmitDrop",
        "instance:node_network_transmit_drop_excluding_lo:rate5m",
        MetricType.BANDWIDTH,
        Unit.PACKETS_PER_SECOND,
        Combine.SUM,
    ),
    Metric(
        "NetworkReceiveDrop",
        "instance:node_network_receive_drop_excluding_lo:rate5m",
        MetricType.BANDWIDTH,
        Unit.PACKETS_PER_SECOND,
        Combine.SUM,
    ),
    Metric(
        "EnergyPackage",
        "kepler_node_package_joules_total",
        MetricType.ENERGY,
        Unit.WATTS,
        Combine.SUM,
        moves=True,
    ),
    Metric("EnergyCore", "kepler_node_core_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("EnergyUncore", "kepler_node_uncore_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("EnergyDram", "kepler_node_dram_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("EnergyOther", "kepler_node_other_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("EnergyGPU", "kepler_node_gpu_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("EnergyPlatform", "kepler_node_platform_joules_total", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("EnergyHost", "scaph_host_power_microwatts", MetricType.ENERGY, Unit.WATTS, Combine.SUM),
    Metric("GPU", "DCGM_FI_DEV_GPU_UTIL", MetricType.GPU, Unit.PERCENT, Combine.MEAN),
    Metric("PressureCPU", "node_pressure_cpu_some_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
    Metric("PressureMemory", "node_pressure_memory_some_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
    Metric("PressureIO", "node_pressure_io_some_avg10", MetricType.PRESSURE, Unit.PERCENT, Combine.NEWEST_MAX),
)
METRIC_BY_KEY: Mapping[str, Metric] = {metric.key: metric for metric in METRICS}
METRIC_BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
METRIC_ORDER: Mapping[str, int] = {metric.name: order for order, metric in enumerate(METRICS)}


# --- samples ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SeriesBatch:
    """Samples of one metric as a source gave them, already in the metric's unit, not yet reviewed.

    `nodes[k]` is the node of series k (a name may repeat: several series of one node); `series[i]`, `time[i]` (unix
    seconds, true source time) and `value[i]` are sample i. Within a series samples come in ascending time.
    """

    metric: Metric
    nodes: tuple[str, ...]
    series: I64
    time: F64
    value: F64


@dataclass(frozen=True, slots=True)
class Cells:
    """At most one sample per node and slot: what fits into the history. Arrays of equal length; `node` indexes
    `names`, `slot` = floor(time / resolution), `time` in unix seconds, `value` in the metric's unit."""

    names: tuple[str, ...]
    node: I64
    slot: I64
    time: F64
    value: F64

    def where(self, keep: Bool) -> Cells:
        """The cells where `keep` is true, same names."""
        return Cells(self.names, self.node[keep], self.slot[keep], self.time[keep], self.value[keep])


_OF_CLUSTER = " of cluster "


def origin_of(source: str, *, cluster: str) -> str:
    """The source of a metric's samples, and the cluster where it has a name, as Provenance has them."""
    return f"{source}{_OF_CLUSTER}{cluster}" if cluster else source


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a metric's samples come from. If any of it changes, old and new samples must not share a window."""

    source: str
    """Name of the provider on the wire, and the cluster where it has a name (origin_of)."""
    expression: str
    unit: str
    smoothing_s: float
    """Over how many seconds the source itself already averages (recording rules with rate[5m]: 300; host: 0)."""

    @property
    def cluster(self) -> str:
        """The cluster that the samples are of, "" where it has no name."""
        return self.source.partition(_OF_CLUSTER)[2]


# --- windows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A length of time as users write it ("15m") and in seconds."""

    label: str
    seconds: int


DEFAULT_WINDOW_S = 900


def default_window(windows: Sequence[Window]) -> Window:
    """15 minutes if served, else the longest below, else the shortest. `windows` ascend and are not empty."""
    within = [window for window in windows if window.seconds <= DEFAULT_WINDOW_S]
    return within[-1] if within else windows[0]


@dataclass(frozen=True, slots=True)
class MetricWindows:
    """One metric of all n nodes in all W windows; NaN is "not known". Row order of the windows: ascending length.

    `average`, `deviation` (population) and `count` are [W, n]; an average is NaN where the window does not count for
    that node (too few samples, contract 5.1 "Coverage"). `coverage` [W, n] is count * cadence / window, at most 1.
    `latest`, `sampled` (unix seconds of the newest sample) and `cadence` (seconds) are [n].
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
    """What a node showed last: the time of its newest sample in unix seconds, and its last CPU and Memory in percent,
    None where it had none."""

    sampled: float
    cpu: float | None
    memory: float | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one tick knew, immutable. Times are unix seconds.

    `timestamp` is when the fetch finished, `end` the time of the newest accepted sample. `nodes` is sorted by name;
    all arrays follow it. `sampled` [n] is each node's newest sample, `age_s` [n] is NaN but for nodes that have gone
    silent or are held (see review): there it is their age at `timestamp`. `on_demand(metric name, operator)` gives
    MAX and percentiles [W, n] (same NaN rule as `average`), computed when first asked for.
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
    """nodes whose exporter repeats itself, left out until it moves again"""
    lost: Mapping[str, float] = field(default_factory=dict)
    """known node that vanished with many others in a partial outage -> its last sample's time; not empty means that
    the list of all nodes would be a remnant and is not served (503)"""
    left_out: Mapping[str, LastSample] = field(default_factory=dict)
    """node with samples that is not among `nodes`, for whatever reason -> what it showed last"""
    on_demand: Callable[[str, Operator], F64] | None = None
    samples: Callable[[str], tuple[F64, F64]] | None = None
    """metric name -> the values behind the longest window and their times, each [slots, n], newest slot first; NaN
    where there is none, and a carried value has no time"""


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """How the source stood at the last tick. `ok` is None until it was first asked; `reason` says why it is not ok, or
    what it said of a part that its answers lack; `since` is the unix time in seconds at which this state began."""

    ok: bool | None
    reason: str
    since: float

    @property
    def partial(self) -> bool:
        """Whether it answered, but not with all that it should have."""
        return bool(self.ok and self.reason)


# --- what the store keeps --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleBlock:
    """k consecutive slots of one metric for all n nodes: `values` [k, n] (NaN: none) and `offset_ms` [k, n], the
    milliseconds of the true time after the slot's start (CARRIED: not a sample, a carried value)."""

    metric: str
    first_slot: int
    nodes: tuple[str, ...]
    values: F64
    offset_ms: U16


CARRIED = 65535  # in offset_ms: this cell was filled from the cell before, and never counts as coverage


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """One minute of one window for the record: `values` [columns, n], columns are (metric name, operator)."""

    window: Window
    time: int
    nodes: tuple[str, ...]
    columns: tuple[tuple[str, Operator], ...]
    values: F32


@dataclass(frozen=True, slots=True)
class TickRecord:
    """All that one tick asks the store to keep, in one transaction."""

    timestamp: float
    end: float
    source: str
    resolution: int
    windows: tuple[Window, ...]
    provenance: Mapping[str, Provenance]
    blocks: tuple[SampleBlock, ...]
    records: tuple[WindowRecord, ...]
    lost: Mapping[str, float] = field(default_factory=dict)
    """as in Snapshot: a start must go on refusing the list that was refused"""


@dataclass(frozen=True, slots=True)
class Restored:
    """What the store had at start: the samples of the last tick that it kept, and where they came from."""

    timestamp: float
    end: float
    source: str
    resolution: int
    windows: tuple[Window, ...]
    provenance: Mapping[str, Provenance]
    blocks: tuple[SampleBlock, ...]
    lost: Mapping[str, float] = field(default_factory=dict)


# --- findings --------------------------------------------------------------------------------------------------------


class FindingKind(StrEnum):
    """What the review of samples can find, and what the service finds out about its source."""

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
    STORE = "store"


class Remedy(StrEnum):
    """What was done about a finding. `reported` means nothing was changed."""

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
    """One observation about one node's metric (either may be "": the whole fleet, all metrics) at `time`."""

    kind: FindingKind
    node: str
    metric: str
    time: float
    reason: str
    remedy: Remedy


# --- shapes on the wire ----------------------------------------------------------------------------------------------
# These types are the one source of the JSON that clients decode and of /openapi.json. The hot bodies are written by
# publish.py with templates; a test holds that both agree byte for byte in meaning.
