"""Queries to Prometheus for each metric; which of them exist depends on the cluster.

The same load is the recording rule `instance:node_cpu:ratio` in one cluster, the mixin's
`instance:node_cpu_utilisation:rate5m` in another, and only raw counters in a third. The node name is in a label `node`,
or only the node's address is in `instance`. A *candidate* is one query for a metric; the first candidate with series is
used. A candidate is *plain* if it selects stored series: `selector[span]` then returns their samples with true
timestamps. All others are *expressions*, evaluated at chosen times. A computed value looks current for minutes after
its exporter stopped (`rate(x[5m])` needs two samples in five minutes), so an expression has a *guard*: it returns a
node only if the node's raw series had a sample within two scrape intervals.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watcher.core.naming.name_resolver import without_port
from watcher.core.queries.matchers import LABEL, Matcher, narrowed
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS, Metric, MetricType
from watcher.platform.sources.config import InstantQuery, RangeQuery
from watcher.providers import queries as providers_queries
from watcher.providers.queries import ProviderConfig

DEFAULT_METRICS: tuple[str, ...] = (
    "CPU",
    "Memory",
    "Storage",
    "NetworkTransmit",
    "NetworkReceive",
    "NetworkTransmitDrop",
    "NetworkReceiveDrop",
)
"""Metrics fetched by default. Energy and GPU must be requested: most clusters have no exporter for them, and
searching for their series costs queries."""

DEFAULT_SCRAPE_INTERVAL_S = 60.0
"""Scrape interval in seconds if there are too few samples to measure it: Prometheus' default."""

CPU_VALUES_OF_AVERAGE, VALUES_OF_AVERAGE = 10, 5
"""Number of values in the averaging time of a built-in query, if samples are frequent enough: for CPU, by which most
plug-ins score, and for other metrics."""

LONGEST_STEP_S = 120.0
"""Longest step in seconds. Windows with a longer sample interval have insufficient coverage."""


# --- configuration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrometheusQueryConfig(providers_queries.QueryConfig):
    """A query configured for one metric, which replaces all built-in candidates.

    `unit` is a key of model.SOURCE_UNITS. `guard` is a selector of the raw series behind an expression. Without it, a
    stopped exporter looks alive for the length of the expression's range.
    """

    guard: str | None = None


@dataclass(frozen=True, kw_only=True)
class PrometheusConfig(ProviderConfig):
    """Configuration of the provider. Raises ValueError, naming the setting, for invalid values."""

    node_label: str | None = None
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Keys of the metrics to fetch."""
    queries: Mapping[str, PrometheusQueryConfig] = field(default_factory=dict)
    """Configured queries by metric key. A metric with a query is fetched."""
    matchers: tuple[Matcher, ...] = ()
    """Matchers that select the series of this cluster. They are added to every selector of the built-in queries, but
    not to configured queries."""
    resolution: int = 15

    def __post_init__(self) -> None:
        providers_queries.check_keys((*self.metrics, *self.queries))
        for key, query in self.queries.items():
            _check_query(f"provider.queries.{key}", METRIC_BY_KEY[key], query)
        if self.node_label is not None and not LABEL.fullmatch(self.node_label):
            raise ValueError(f"provider.node_label: {self.node_label!r} is not a label name")

    def wanted(self) -> tuple[Metric, ...]:
        """Metrics to fetch, in the order of model.METRICS."""
        return providers_queries.wanted(self.metrics, self.queries)


def _check_query(where: str, metric: Metric, query: PrometheusQueryConfig) -> None:
    """Raise ValueError for a configured query that is invalid or whose unit does not fit the metric."""
    if not query.expression.strip():
        raise ValueError(f"{where}.expression is empty")
    if query.unit not in SOURCE_UNITS:
        raise ValueError(f"{where}.unit: {query.unit!r} is none of {', '.join(SOURCE_UNITS)}")
    if SOURCE_UNITS[query.unit][0] is not metric.unit:
        raise ValueError(f"{where}.unit: {query.unit} cannot be converted to {metric.unit}, the unit of {metric.key}")
    if query.node_label is not None and not LABEL.fullmatch(query.node_label):
        raise ValueError(f"{where}.node_label: {query.node_label!r} is not a label name")
    if query.guard is not None and not is_plain(query.guard):
        raise ValueError(f"{where}.guard: {query.guard!r} is not a metric name or selector")


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

    @property
    def evidence(self) -> str:
        return self.raw if "<label>" in self.expression else self.expression

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


def _raw(expression: str, raw: str, unit: str, smoothing_s: float) -> QueryCandidate:
    return QueryCandidate("raw series", expression.replace("<raw>", f"<{raw}>"), unit, smoothing_s, f"<{raw}>")


def _traffic(rule: str, mixin: str, counter: str) -> tuple[QueryCandidate, ...]:
    """Bytes per second over all devices. The maximum over the series without `device` prevents double counting of an
    exporter that two jobs scrape."""
    return (
        _rule(rule, "bytes/s", 180.0),
        _rule(mixin, "bytes/s", 300.0, "recording rule of the mixin"),
        _raw(
            "max by (<label>) (sum without (device) (rate(<raw>[3m])))", f'{counter}{{device!="lo"}}', "bytes/s", 180.0
        ),
    )


def _drops(rule: str, counter: str) -> tuple[QueryCandidate, ...]:
    raw = f'{counter}{{device!="lo"}}'
    return (
        _rule(rule, "packets/s", 300.0, "recording rule of the mixin"),
        _raw("max by (<label>) (sum without (device) (rate(<raw>[5m])))", raw, "packets/s", 300.0),
    )


def _joules(zone: str) -> tuple[QueryCandidate, ...]:
    """Power in watts: the rate of Kepler's joule counters."""
    raw = f"kepler_node_{zone}_joules_total"
    return (_raw("sum by (<label>) (rate(<raw>[5m]))", raw, "watts", 300.0),)


_MEMORY = (
    "max by (<label>) (1 - (<node_memory_MemAvailable_bytes> or (<node_memory_Buffers_bytes>"
    " + <node_memory_Cached_bytes> + <node_memory_MemFree_bytes> + <node_memory_Slab_bytes>))"
    " / <node_memory_MemTotal_bytes>)"
)

# Names and formulas are those of the kube-prometheus rules and the node-exporter mixin. The raw CPU expression is the
# mixin's: the share that is not idle, iowait or steal, averaged over CPUs, and over 5 minutes as in the rules, so that
# deviations are comparable.
_TEMPLATES: Mapping[str, tuple[QueryCandidate, ...]] = {
    "CPU": (
        _rule("instance:node_cpu:ratio", "ratio", 300.0),
        _rule("instance:node_cpu_utilisation:rate5m", "ratio", 300.0, "recording rule of the mixin"),
        QueryCandidate(
            "raw series",
            '1 - avg by (<label>) (sum without (mode) (rate(<node_cpu_seconds_total{mode=~"idle|iowait|steal"}>[5m])))',
            "ratio",
            300.0,
            # Two CPUs suffice as a guard. A guard over all CPUs would cost the server a third of the expression's cost
            # for nodes with four CPUs.
            '<node_cpu_seconds_total{mode="idle",cpu=~"0|1"}>',
            # Without a sum for each CPU, where all nodes have the same modes: a quarter less work at 64 CPUs.
            '1 - <number> * avg by (<label>) (rate(<node_cpu_seconds_total{mode=~"idle|iowait|steal"}>[5m]))',
            "count by (<label>) (count by (<label>, mode)"
            ' (<node_cpu_seconds_total{mode=~"idle|iowait|steal",cpu="0"}>))',
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
    ),
    "Storage": (
        _rule("instance_device:node_disk_io_time_seconds:rate5m", "ratio", 300.0),
        _raw("max by (<label>) (rate(<raw>[5m]))", 'node_disk_io_time_seconds_total{device!=""}', "ratio", 300.0),
    ),
    "NetworkTransmit": _traffic(
        "instance:node_network_transmit_bytes:rate:sum",
        "instance:node_network_transmit_bytes_excluding_lo:rate5m",
        "node_network_transmit_bytes_total",
    ),
    "NetworkReceive": _traffic(
        "instance:node_network_receive_bytes:rate:sum",
        "instance:node_network_receive_bytes_excluding_lo:rate5m",
        "node_network_receive_bytes_total",
    ),
    "NetworkTransmitDrop": _drops(
        "instance:node_network_transmit_drop_excluding_lo:rate5m", "node_network_transmit_drop_total"
    ),
    "NetworkReceiveDrop": _drops(
        "instance:node_network_receive_drop_excluding_lo:rate5m", "node_network_receive_drop_total"
    ),
    **{
        metric.key: _joules(metric.name.removeprefix("kepler_node_").removesuffix("_joules_total"))
        for metric in METRIC_BY_KEY.values()
        if metric.type is MetricType.ENERGY and metric.name.startswith("kepler_node_")
    },
    "EnergyHost": (_rule("scaph_host_power_microwatts", "microwatts", 0.0, "gauge"),),
    "GPU": (_rule("DCGM_FI_DEV_GPU_UTIL", "percent", 0.0, "gauge"),),
}


CANDIDATES: Mapping[str, tuple[QueryCandidate, ...]] = {
    key: tuple(template.with_matchers(()) for template in templates) for key, templates in _TEMPLATES.items()
}
"""Built-in candidates without matchers, for a Prometheus with a single cluster."""


def candidates(
    metric: Metric, configured: PrometheusQueryConfig | None, *, matchers: Sequence[Matcher] = ()
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
    return (QueryCandidate("configured", expression, configured.unit, configured.smoothing_s, guard),)


# --- node label ------------------------------------------------------------------------------------------------------

DIRECT_LABELS = ("node", "kubernetes_node", "nodename")
PROFILE_LABELS = (*DIRECT_LABELS, "instance")
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeNames:
    """Node names by instance, read from the label `label` of node_uname_info."""

    label: str
    by_instance: Mapping[str, str]

    def with_newer(self, some: NodeNames) -> NodeNames:
        """These names updated by newer ones, if both were read from the same label."""
        return NodeNames(self.label, {**self.by_instance, **some.by_instance}) if some.label == self.label else self


@dataclass(frozen=True, slots=True)
class NodeLabel:
    """Rule that derives the node name of a series: from `label`, without the port if `strip_port`. With `joined` (a
    label of node_uname_info), the node is looked up by the instance."""

    label: str
    strip_port: bool = False
    joined: str = ""

    @property
    def shown(self) -> str:
        """Display name of the node label."""
        if self.joined:
            return f"{self.joined} (of node_uname_info, by {self.label})"
        return f"{self.label} without its port" if self.strip_port else self.label


def profile(evidence: str, *, labels: Iterable[str]) -> str:
    """Query that returns whether series exist, and the values of the labels that may identify nodes."""
    return f"count by ({', '.join(dict.fromkeys(labels))}) ({evidence})"


def names_query(*, matchers: Sequence[Matcher] = ()) -> str:
    """Query for the node names by instance."""
    return profile(narrowed("node_uname_info", *matchers), labels=PROFILE_LABELS)


def _tells_apart(label: str, rows: Sequence[Labels]) -> bool:
    """Whether all rows have the label, with at least half as many values as instances. Labels that name the
    Prometheus or the cluster are also on all series, but have fewer values."""
    values = {row.get(label, "") for row in rows}
    instances = {row["instance"] for row in rows if row.get("instance")}
    return bool(rows) and "" not in values and 2 * len(values) >= len(instances)


def read_names(rows: Sequence[Labels]) -> NodeNames:
    """Node names from the labels of node_uname_info. A label that identifies Kubernetes nodes is preferred to the
    kernel's host name."""
    label = next((name for name in DIRECT_LABELS if _tells_apart(name, rows)), "nodename")
    named = {row["instance"]: row[label] for row in rows if row.get("instance") and row.get(label)}
    return NodeNames(label, named)


def direct_label(rows: Sequence[Labels]) -> NodeLabel | None:
    """The first label that directly names the nodes of all these series, None if there is none."""
    return next((NodeLabel(label) for label in DIRECT_LABELS if _tells_apart(label, rows)), None)


def fallback_label(rows: Sequence[Labels], names: NodeNames) -> NodeLabel | None:
    """Node label for series that do not name a node. In order of preference: the instance looked up in `names`, if
    most instances are known and their names differ (cloned machines may all be called localhost); the instance
    without its port; the instance. None if a series has no instance."""
    if not _tells_apart("instance", rows):
        return None
    known = [{**row, names.label: names.by_instance[row["instance"]]} for row in rows if _has_name(row, names)]
    joined = _joined(rows, names) if _tells_apart(names.label, known) else None
    # Simulated machines may be different ports of one host.
    hosts = [{**row, "host": without_port(row["instance"])} for row in rows]
    return joined or NodeLabel("instance", strip_port=_tells_apart("host", hosts))


def _has_name(row: Labels, names: NodeNames) -> bool:
    return row.get("instance", "") in names.by_instance


def configured_label(label: str, rows: Sequence[Labels], names: NodeNames) -> NodeLabel | None:
    """The configured label, None if no series has it. `nodename` may come from node_uname_info, and `instance` is
    used without its port, as in the automatic selection."""
    if any(row.get(label) for row in rows):
        return NodeLabel(label, strip_port=label == "instance")
    return _joined(rows, names) if label == names.label else None


def _joined(rows: Sequence[Labels], names: NodeNames) -> NodeLabel | None:
    instances = {row["instance"] for row in rows if row.get("instance")}
    known = sum(instance in names.by_instance for instance in instances)
    return NodeLabel("instance", joined=names.label) if instances and 2 * known >= len(instances) else None


# --- queries ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrometheusQueryPlan:
    """The query in use for one metric: `expression` contains the node label, `scrape_interval` is in seconds (None
    for a plain selector)."""

    metric: Metric
    candidate: QueryCandidate
    label: NodeLabel
    expression: str
    scrape_interval: float | None
    reason: str

    def question(
        self, since: float, until: float, *, resolution: int, beyond: float = 0.0, guarded: bool = True
    ) -> InstantQuery | RangeQuery | None:
        """Query for the samples between `since` and `until` (unix seconds), None if no step of the expression is in
        this range. Steps are multiples of the resolution (seconds), so that a later fetch evaluates the same times.
        `beyond` extends the range of an expression, in seconds; `guarded` puts the guard into the expression."""
        if self.scrape_interval is None:
            span = max(1, math.ceil(until - since))
            return InstantQuery(f"{self.expression}[{span}s]", until)
        step = self._step(resolution)
        start, end = math.ceil(since / step) * step, math.floor(until / step) * step
        later = step * math.ceil(beyond / step)
        query = self.guarded() if guarded else self.expression
        return RangeQuery(query, start, end + later, step) if start <= end else None

    def _step(self, resolution: int) -> int:
        """Distance of the values in seconds. An average over minutes changes slowly, so that more values would cost the
        server much and show little."""
        values = CPU_VALUES_OF_AVERAGE if self.metric.type is MetricType.CPU else VALUES_OF_AVERAGE
        smallest = 0.0 if self.candidate.origin == "configured" else self.candidate.smoothing_s / values
        wanted = max(min(self.scrape_interval or 0.0, LONGEST_STEP_S), smallest)
        return resolution * math.ceil(wanted / resolution)

    def guarded(self) -> str:
        """The expression, restricted to nodes whose raw series had a sample within two scrape intervals."""
        if not self.candidate.raw or self.scrape_interval is None:
            return self.expression
        alive = f"count_over_time({self.candidate.raw}[{2 * self.scrape_interval:.0f}s]) > 0"
        return f"({self.expression}) and on ({self.label.label}) ({alive})"


def make_plan(
    metric: Metric,
    candidate: QueryCandidate,
    *,
    label: NodeLabel,
    scrape_interval: float | None,
    rejected: Sequence[str],
) -> PrometheusQueryPlan:
    """Plan for a candidate with series. `scrape_interval` is in seconds, None if it could not be measured.
    `rejected` are the better candidates, which have no series."""
    plain = is_plain(candidate.expression)
    interval = None if plain else scrape_interval or DEFAULT_SCRAPE_INTERVAL_S
    reasons = [candidate.origin + (f" (no series of {', '.join(rejected)})" if rejected else "")]
    if interval is not None:
        how = "measured" if scrape_interval else "assumed, too few samples to measure"
        reasons.append(f"scrape interval {interval:.0f} s {how}")
        guard = (
            f"guarded by {candidate.raw}"
            if candidate.raw
            else "no guard, so a stopped exporter looks alive for a while"
        )
        reasons.append(guard)
    expression = candidate.expression.replace("<label>", label.label) if candidate.raw else candidate.expression
    return PrometheusQueryPlan(metric, candidate, label, expression, interval, "; ".join(reasons))


def among(label: str, values: Iterable[str]) -> Matcher:
    """Matcher for a label with any of these values."""
    return Matcher(label, "=~", "|".join(re.escape(value) for value in values))
