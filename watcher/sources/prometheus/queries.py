"""Queries to Prometheus for each metric; which of them exist depends on the cluster.

The same load is the recording rule `instance:node_cpu:ratio` in one cluster, the mixin's
`instance:node_cpu_utilisation:rate5m` in another, and only raw counters in a third. The node name is in a label `node`,
or only the node's address is in `instance`. A *candidate* is one query for a metric; for each node, the first candidate
with series is used. A candidate is *plain* if it selects stored series: `selector[span]` then returns their samples
with true timestamps. All others are *expressions*, evaluated at chosen times. A computed value looks current for
minutes after its exporter stopped (`rate(x[5m])` needs two samples in five minutes), so an expression has a *guard*: it
returns a node only if the node's raw series had a sample within two scrape intervals.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watcher.core.cpu_use import UNUSED
from watcher.core.queries.matchers import Matcher, narrowed
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY, Metric, MetricType
from watcher.sources.settings import QuerySettings

# --- candidates ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryCandidate:
    """One query for a metric. `origin` describes it. In `expression`, `<label>` is the placeholder of the node label.
    `raw` selects the series behind an expression (the guard), "" if there are none or they are unknown. `smoothing_s`
    is the averaging time in seconds. `evidence` is counted to find out whether the candidate has series and which
    labels they have.

    In the built-in candidates, each selector is in angle brackets; `with_matchers` inserts the matchers.
    """

    origin: str
    expression: str
    unit: str
    smoothing_s: float
    raw: str = ""
    cheaper: str = ""
    """Expression that costs the server less, with `<number>` for the result of `condition`."""
    condition: str = ""
    """Query for a number of each node. If it is the same for all, and not 0, the cheaper expression has the same
    values."""
    devices: tuple[str, ...] = ()
    """Labels that distinguish the series in `raw` of one node: the series of two scrape jobs have the same."""
    high_while_young: bool = False
    """Whether the values of a node are too high while its counters are younger than the averaging time."""

    @property
    def evidence(self) -> str:
        return self.raw if "<label>" in self.expression else self.expression

    @property
    def young_s(self) -> float:
        """Seconds for which the values of a new node are too high."""
        return self.smoothing_s if self.high_while_young else 0.0

    def with_matchers(self, matchers: Sequence[Matcher]) -> QueryCandidate:
        """The candidate with these matchers in each of its selectors."""

        def bind(found: re.Match[str]) -> str:
            return found[0] if found[1] in ("label", "number") else narrowed(found[1], *matchers)

        return replace(
            self,
            expression=_PLACE.sub(bind, self.expression),
            raw=_PLACE.sub(bind, self.raw),
            cheaper=_PLACE.sub(bind, self.cheaper),
            condition=_PLACE.sub(bind, self.condition),
        )

    def made_cheaper(self, number: float) -> QueryCandidate:
        """The candidate with its cheaper expression; `number` is the result of the condition."""
        return replace(self, expression=self.cheaper.replace("<number>", f"{number:g}"))


_PLACE = re.compile(r"<([^<>]+)>")


def _rule(name: str, unit: str, smoothing_s: float, origin: str = "recording rule") -> QueryCandidate:
    return QueryCandidate(origin, f"<{name}>", unit, smoothing_s)


def _highest(raw: str, unit: str, span: str, smoothing_s: float, *devices: str) -> QueryCandidate:
    """The highest rate of the series of a node, which differ in the labels `devices`."""
    expression = f"max by (<label>) (rate(<{raw}>[{span}]))"
    return QueryCandidate("raw series", expression, unit, smoothing_s, f"<{raw}>", devices=devices)


def _total(raw: str, unit: str, span: str, smoothing_s: float, *devices: str) -> QueryCandidate:
    """The sum of the rates over the devices of a node. An exporter that two jobs scrape has two series of each device,
    of which the sum has the higher one."""
    once = f"max by (<label>, {', '.join(devices)}) (rate(<{raw}>[{span}]))"
    return QueryCandidate("raw series", f"sum by (<label>) ({once})", unit, smoothing_s, f"<{raw}>", devices=devices)


def _traffic(rule: str, mixin: str, counter: str, windows: str) -> tuple[QueryCandidate, ...]:
    """Bytes per second over all devices."""
    return (
        _rule(rule, "bytes/s", 180.0),
        _rule(mixin, "bytes/s", 300.0, "recording rule of the mixin"),
        _total(f'{counter}{{device!="lo"}}', "bytes/s", "3m", 180.0, "device"),
        _total(windows, "bytes/s", "3m", 180.0, "nic"),
    )


def _drops(rule: str, counter: str, windows: str) -> tuple[QueryCandidate, ...]:
    return (
        _rule(rule, "packets/s", 300.0, "recording rule of the mixin"),
        _total(f'{counter}{{device!="lo"}}', "packets/s", "5m", 300.0, "device"),
        _total(windows, "packets/s", "5m", 300.0, "nic"),
    )


def _joules(part: str) -> tuple[QueryCandidate, ...]:
    """Power in watts: the rate of Kepler's joule counters, which are one metric for each part of the node before Kepler
    0.10, and zones of one metric since then. The zone psys is the platform, without sockets."""
    before = _total(f"kepler_node_{part}_joules_total", "watts", "5m", 300.0, "package", "mode")
    zone = _ZONES.get(part)
    if zone is None:
        return (before,)
    series = f'kepler_node_cpu_joules_total{{zone=~"{zone}(-[0-9]+)?"}}'
    return (before, _total(series, "watts", "5m", 300.0, "zone", "path"))


_ZONES = {"package": "package", "core": "core", "uncore": "uncore", "dram": "dram", "platform": "psys"}


def _pressure(resource: str, kind: str) -> tuple[QueryCandidate, ...]:
    """Share of time in which tasks wait: node exporter's counters of the kernel's totals. `kind` is "waiting" (at least
    one task waits, the kernel's "some") or "stalled" (all tasks wait, its "full")."""
    return (_highest(f"node_pressure_{resource}_{kind}_seconds_total", "ratio", "3m", 180.0),)


_MEMORY = (
    "max by (<label>) (1 - (<node_memory_MemAvailable_bytes> or (<node_memory_Buffers_bytes>"
    " + <node_memory_Cached_bytes> + <node_memory_MemFree_bytes> + <node_memory_Slab_bytes>))"
    " / <node_memory_MemTotal_bytes>)"
)


def _cpu_use(series: str, cpu: str, unused: str, *, firsts: str, every: str = "") -> str:
    """CPU use of a node from the seconds by CPU and mode. The minimum is over the series of two jobs that scrape one
    exporter. All modes of a CPU add up to 1, except while its series are younger than 5 minutes, when all rates are too
    small by the same factor: without the quotient, a new node would appear busy. The first CPUs suffice for it. A
    server that stores only unused time has no quotient."""
    idle = f"sum without (mode) (rate(<{series}{{{unused}}}>[5m]))"
    first = f'{cpu}=~"{firsts}"'
    chosen = f"{every},{first}" if every else first
    used = f'<{series}{{mode="user",{first}}}>'
    whole = f"sum without (mode) (rate(<{series}{{{chosen}}}>[5m])) and ignoring (mode) {used}"
    alone = f"0 * sum without (mode) (rate(<{series}{{{unused},{first}}}>[5m])) + 1"
    total = f"max without ({cpu}) ({whole}) or max without ({cpu}) ({alone})"
    quotient = f"{idle} / ignoring ({cpu}) group_left () ({total}) >= 0"
    return f"1 - avg by (<label>) (min by (<label>, {cpu}) ({quotient}))"


_UNUSED_CPU = f'mode=~"{"|".join(UNUSED)}"'
# Names and formulas are those of the kube-prometheus rules and the node-exporter mixin. The raw CPU expression is the
# mixin's (watcher/core/cpu_use.py), averaged over CPUs, and over 5 minutes as in the rules, so that deviations are
# comparable.
_TEMPLATES: Mapping[str, tuple[QueryCandidate, ...]] = {
    "CPU": (
        _rule("instance:node_cpu:ratio", "ratio", 300.0),
        replace(
            _rule("instance:node_cpu_utilisation:rate5m", "ratio", 300.0, "recording rule of the mixin"),
            high_while_young=True,
        ),
        QueryCandidate(
            "raw series",
            _cpu_use("node_cpu_seconds_total", "cpu", _UNUSED_CPU, firsts="0|1"),
            "ratio",
            300.0,
            # Two CPUs suffice as a guard. A guard over all CPUs would cost the server a third of the expression's cost
            # for nodes with four CPUs.
            '<node_cpu_seconds_total{mode="idle",cpu=~"0|1"}>',
            # Without a sum for each CPU, where all nodes have the same modes, and each once: all CPUs of a node are
            # equally old. That is much less work at 64 CPUs.
            f"1 - <number> * avg by (<label>) (rate(<node_cpu_seconds_total{{{_UNUSED_CPU}}}>[5m]))"
            ' / max by (<label>) (sum without (mode) (rate(<node_cpu_seconds_total{cpu=~"0|1"}>[5m])))',
            "count by (<label>) (count by (<label>, mode)"
            f' (<node_cpu_seconds_total{{{_UNUSED_CPU},cpu="0"}}>) == 1'
            ' and on (<label>) <node_cpu_seconds_total{mode="user",cpu="0"}>)'
            ' or 0 * count by (<label>) (<node_cpu_seconds_total{mode="idle",cpu="0"}>)',
            ("cpu",),
        ),
        QueryCandidate(
            "windows_exporter",
            # Privileged time contains that of the modes dpc and interrupt.
            _cpu_use(
                "windows_cpu_time_total", "core", 'mode="idle"', firsts="0,0|0,1", every='mode=~"idle|privileged|user"'
            ),
            "ratio",
            300.0,
            '<windows_cpu_time_total{mode="idle"}>',
            devices=("core",),
        ),
    ),
    "Memory": (
        _rule("instance:node_memory_utilisation:ratio", "ratio", 0.0),
        QueryCandidate(
            "raw series",
            _MEMORY,
            "ratio",
            0.0,
            "<node_memory_MemTotal_bytes>",
            "max by (<label>) (1 - <node_memory_MemAvailable_bytes> / <node_memory_MemTotal_bytes>)",
            "count by (<label>) (<node_memory_MemAvailable_bytes>)"
            " or 0 * count by (<label>) (<node_memory_MemTotal_bytes>)",
        ),
        QueryCandidate(
            "windows_exporter",
            # The metric of the total has another name before windows_exporter 0.31.
            "max by (<label>) (1 - <windows_memory_available_bytes>"
            " / (<windows_memory_physical_total_bytes> or <windows_cs_physical_memory_bytes>))",
            "ratio",
            0.0,
            "<windows_memory_available_bytes>",
        ),
    ),
    "Storage": (
        _rule("instance_device:node_disk_io_time_seconds:rate5m", "ratio", 300.0),
        _highest('node_disk_io_time_seconds_total{device!=""}', "ratio", "5m", 300.0, "device"),
    ),
    "NetworkTransmit": _traffic(
        "instance:node_network_transmit_bytes:rate:sum",
        "instance:node_network_transmit_bytes_excluding_lo:rate5m",
        "node_network_transmit_bytes_total",
        "windows_net_bytes_sent_total",
    ),
    "NetworkReceive": _traffic(
        "instance:node_network_receive_bytes:rate:sum",
        "instance:node_network_receive_bytes_excluding_lo:rate5m",
        "node_network_receive_bytes_total",
        "windows_net_bytes_received_total",
    ),
    "NetworkTransmitDrop": _drops(
        "instance:node_network_transmit_drop_excluding_lo:rate5m",
        "node_network_transmit_drop_total",
        "windows_net_packets_outbound_discarded_total",
    ),
    "NetworkReceiveDrop": _drops(
        "instance:node_network_receive_drop_excluding_lo:rate5m",
        "node_network_receive_drop_total",
        "windows_net_packets_received_discarded_total",
    ),
    **{
        metric.key: _joules(metric.name.removeprefix("kepler_node_").removesuffix("_joules_total"))
        for metric in METRIC_BY_KEY.values()
        if metric.type is MetricType.ENERGY and metric.name.startswith("kepler_node_")
    },
    "EnergyHost": (_rule("scaph_host_power_microwatts", "microwatts", 0.0, "gauge"),),
    "GPU": (_rule("DCGM_FI_DEV_GPU_UTIL", "percent", 0.0, "gauge"),),
    "PressureCPU": _pressure("cpu", "waiting"),
    "PressureMemory": _pressure("memory", "waiting"),
    "PressureIO": _pressure("io", "waiting"),
    "PressureMemoryFull": _pressure("memory", "stalled"),
    "PressureIOFull": _pressure("io", "stalled"),
}


CANDIDATES: Mapping[str, tuple[QueryCandidate, ...]] = {
    key: tuple(template.with_matchers(()) for template in templates) for key, templates in _TEMPLATES.items()
}
"""Built-in candidates without matchers, for a Prometheus with a single cluster."""


def candidates(
    metric: Metric, configured: QuerySettings | None, *, matchers: Sequence[Matcher] = ()
) -> tuple[QueryCandidate, ...]:
    """Candidates for a metric, best first; empty if Prometheus has no default query for it. `matchers` are inserted
    into built-in candidates only, because a configured query may select other clusters on purpose."""
    if configured is None:
        return tuple(template.with_matchers(matchers) for template in _TEMPLATES.get(metric.key, ()))
    expression = configured.expression.strip()
    guard = ""
    if not is_plain(expression):
        guard = (configured.guard or "").strip()
        # A comment at the end would hide the text that is appended to the expression.
        expression += "\n" if "#" in expression else ""
    return (QueryCandidate("configured", expression, configured.unit, configured.smoothing, guard),)
