"""What to ask a Prometheus for each metric, which nobody can know before looking at it.

The same load stands in one cluster as the recording rule `instance:node_cpu:ratio`, in another as the mixin's
`instance:node_cpu_utilisation:rate5m`, in a third only as raw counters; the node's name in a label `node`, or only
behind the address in `instance`. A *candidate* is one way to get a metric; the first that exists is taken. A candidate
is *plain* if it names series that are there: then `selector[span]` brings their samples with their true times.
Everything else is an *expression*, evaluated at chosen times, and a computed value looks fresh for minutes after its
exporter died (`rate(x[5m])` needs two samples in five minutes): so an expression carries a *guard*, which lets a node
through only where its raw series had a sample within two scrape intervals.

Pure: strings and numbers in, strings and numbers out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watcher.core.naming.node_index import without_port
from watcher.core.queries.matchers import LABEL, Matcher, narrowed
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY, SOURCE_UNITS, Metric, MetricType
from watcher.providers import queries as providers_queries

DEFAULT_METRICS: tuple[str, ...] = (
    "CPU",
    "Memory",
    "Storage",
    "NetworkTransmit",
    "NetworkReceive",
    "NetworkTransmitDrop",
    "NetworkReceiveDrop",
)
"""Energy and GPU only on request: most clusters have neither exporter, and looking for them costs queries."""

DEFAULT_SCRAPE_INTERVAL_S = 60.0
"""Prometheus' own default, used where too few samples are there to tell."""

LONGEST_STEP_S = 120.0
"""Rarer samples than that count for no window (contract 5.1, "Coverage"), so a rarer step would be of no use."""


# --- what was configured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueryConfig(providers_queries.QueryConfig):
    """An expression given by the operator for one metric; nothing else is then tried for it.

    `unit` is a key of model.SOURCE_UNITS. `guard` names, as a selector, the raw series behind an expression; without
    it a dead exporter looks alive for as long as the expression looks back.
    """

    guard: str | None = None


@dataclass(frozen=True, slots=True)
class PrometheusConfig:
    """Everything the provider is told. Raises ValueError, naming the setting, for what cannot work."""

    address: str
    token: str = field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    password_file: str = ""
    ca_file: str = ""
    client_cert: str = ""
    client_key: str = ""
    insecure_skip_verify: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 10.0
    """Seconds for one attempt of one query, from the connection to the last byte."""
    fetch_deadline: float = 40.0
    """Seconds for one fetch with all its queries and retries. What has not answered by then costs its metric, whereas
    the caller's own deadline (0.8 intervals), which should be a little longer, costs the tick."""
    backoff: tuple[float, ...] = (0.25, 0.5)
    """Pauses in seconds before each retry of a query."""
    max_body_bytes: int = 512 << 20
    node_label: str | None = None
    metrics: tuple[str, ...] = DEFAULT_METRICS
    """Keys of the wanted metrics."""
    queries: Mapping[str, QueryConfig] = field(default_factory=dict)
    """Configured expressions by key; a metric that is configured is wanted."""
    matchers: tuple[Matcher, ...] = ()
    """Which series are ours: in every selector of what we ask by ourselves, in none of what was configured."""
    resolution: int = 15
    max_seconds: float = 900.0
    """The longest window: nothing older is ever asked for."""
    keys: str = "provider."
    """What the keys of these settings begin with, for errors that name one."""

    def __post_init__(self) -> None:
        providers_queries.check_keys((*self.metrics, *self.queries))
        for key, query in self.queries.items():
            _check_query(f"provider.queries.{key}", METRIC_BY_KEY[key], query)
        if self.node_label is not None and not LABEL.fullmatch(self.node_label):
            raise ValueError(f"provider.node_label: {self.node_label!r} is not a label name")

    def wanted(self) -> tuple[Metric, ...]:
        """The metrics to bring, in the order of model.METRICS."""
        return providers_queries.wanted(self.metrics, self.queries)


def _check_query(where: str, metric: Metric, query: QueryConfig) -> None:
    """Refuse a query that would bring wrong numbers or cannot be asked."""
    if not query.expression.strip():
        raise ValueError(f"{where}.expression is empty")
    if query.unit not in SOURCE_UNITS:
        raise ValueError(f"{where}.unit: {query.unit!r} is none of {', '.join(SOURCE_UNITS)}")
    if SOURCE_UNITS[query.unit][0] is not metric.unit:
        raise ValueError(f"{where}.unit: {query.unit} cannot become {metric.unit}, the unit of {metric.key}")
    if query.node_label is not None and not LABEL.fullmatch(query.node_label):
        raise ValueError(f"{where}.node_label: {query.node_label!r} is not a label name")
    if query.guard is not None and not is_plain(query.guard):
        raise ValueError(f"{where}.guard: {query.guard!r} is not a metric name or selector")


# --- candidates ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to get a metric. `origin` says in words what it is. In `expression`, `<label>` stands for the label that
    tells the node. `raw` selects the series behind an expression (the guard), "" where there are none or none known.
    `evidence` is counted to see whether the candidate exists and what labels it has.

    In those that are built in each selector stands in angle brackets, until `bound` puts the matchers into it.
    """

    origin: str
    expression: str
    unit: str
    smoothing_s: float
    raw: str = ""

    @property
    def evidence(self) -> str:
        return self.raw if "<label>" in self.expression else self.expression

    def bound(self, matchers: Sequence[Matcher]) -> Candidate:
        """With these matchers in every one of its selectors."""

        def bind(found: re.Match[str]) -> str:
            return found[0] if found[1] == "label" else narrowed(found[1], *matchers)

        return replace(self, expression=_PLACE.sub(bind, self.expression), raw=_PLACE.sub(bind, self.raw))


_PLACE = re.compile(r"<([^<>]+)>")


def _rule(name: str, unit: str, smoothing_s: float, origin: str = "recording rule") -> Candidate:
    return Candidate(origin, f"<{name}>", unit, smoothing_s)


def _raw(expression: str, raw: str, unit: str, smoothing_s: float) -> Candidate:
    return Candidate("raw series", expression.replace("<raw>", f"<{raw}>"), unit, smoothing_s, f"<{raw}>")


def _traffic(rule: str, mixin: str, counter: str) -> tuple[Candidate, ...]:
    """Bytes of all devices. The maximum over what is left without `device` keeps an exporter that is scraped by two
    jobs from counting twice."""
    return (
        _rule(rule, "bytes/s", 180.0),
        _rule(mixin, "bytes/s", 300.0, "recording rule of the mixin"),
        _raw(
            "max by (<label>) (sum without (device) (rate(<raw>[3m])))", f'{counter}{{device!="lo"}}', "bytes/s", 180.0
        ),
    )


def _drops(rule: str, counter: str) -> tuple[Candidate, ...]:
    raw = f'{counter}{{device!="lo"}}'
    return (
        _rule(rule, "packets/s", 300.0, "recording rule of the mixin"),
        _raw("max by (<label>) (sum without (device) (rate(<raw>[5m])))", raw, "packets/s", 300.0),
    )


def _joules(zone: str) -> tuple[Candidate, ...]:
    """Kepler counts joules; their rate is watts."""
    raw = f"kepler_node_{zone}_joules_total"
    return (_raw("sum by (<label>) (rate(<raw>[5m]))", raw, "watts", 300.0),)


_MEMORY = (
    "max by (<label>) (1 - (<node_memory_MemAvailable_bytes> or (<node_memory_Buffers_bytes>"
    " + <node_memory_Cached_bytes> + <node_memory_MemFree_bytes> + <node_memory_Slab_bytes>))"
    " / <node_memory_MemTotal_bytes>)"
)

# Names and formulas: trimaran.md 2.1 and testing.md 1.6 (kube-prometheus rules and node-exporter mixin). The raw CPU
# expression is the mixin's: what is neither idle nor iowait nor steal, averaged over CPUs, and over 5 minutes as the
# rules do, so that deviations compare.
_TEMPLATES: Mapping[str, tuple[Candidate, ...]] = {
    "CPU": (
        _rule("instance:node_cpu:ratio", "ratio", 300.0),
        _rule("instance:node_cpu_utilisation:rate5m", "ratio", 300.0, "recording rule of the mixin"),
        Candidate(
            "raw series",
            '1 - avg by (<label>) (sum without (mode) (rate(<node_cpu_seconds_total{mode=~"idle|iowait|steal"}>[5m])))',
            "ratio",
            300.0,
            # Two CPUs are proof enough of an exporter's life. A guard over all of them costs the server a third of what
            # the expression does, with four CPUs a node.
            '<node_cpu_seconds_total{mode="idle",cpu=~"0|1"}>',
        ),
    ),
    "Memory": (
        _rule("instance:node_memory_utilisation:ratio", "ratio", 0.0),
        Candidate("raw series", _MEMORY, "ratio", 0.0, "<node_memory_MemTotal_bytes>"),
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


CANDIDATES: Mapping[str, tuple[Candidate, ...]] = {
    key: tuple(template.bound(()) for template in templates) for key, templates in _TEMPLATES.items()
}
"""As they are where a Prometheus has one cluster only."""


def candidates(
    metric: Metric, configured: QueryConfig | None, *, matchers: Sequence[Matcher] = ()
) -> tuple[Candidate, ...]:
    """The ways to get a metric, best first; none for a metric that Prometheus has under no usual name. `matchers` are
    put into what is built in; a configured expression is the operator's, and may look at other clusters on purpose."""
    if configured is None:
        return tuple(template.bound(matchers) for template in _TEMPLATES.get(metric.key, ()))
    expression = configured.expression.strip()
    guard = ""
    if not is_plain(expression):
        guard = (configured.guard or "").strip()
        # A comment at its end would swallow what is put after it.
        expression += "\n" if "#" in expression else ""
    return (Candidate("configured", expression, configured.unit, configured.smoothing_s, guard),)


# --- which label is the node -----------------------------------------------------------------------------------------

DIRECT_LABELS = ("node", "kubernetes_node", "nodename")
PROFILE_LABELS = (*DIRECT_LABELS, "instance")
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeNames:
    """instance -> node, read off `label` of node_uname_info."""

    label: str
    by_instance: Mapping[str, str]

    def with_newer(self, some: NodeNames) -> NodeNames:
        """With those of these that were read since, if they were read off the same label."""
        return NodeNames(self.label, {**self.by_instance, **some.by_instance}) if some.label == self.label else self


@dataclass(frozen=True, slots=True)
class NodeLabel:
    """How a series tells its node: by `label`, without the port if `strip_port`, or looked up under its instance among
    the node names if `joined` (then the name of the label of node_uname_info)."""

    label: str
    strip_port: bool = False
    joined: str = ""

    @property
    def shown(self) -> str:
        """For people."""
        if self.joined:
            return f"{self.joined} (of node_uname_info, by {self.label})"
        return f"{self.label} without its port" if self.strip_port else self.label


def profile(evidence: str, *, labels: Iterable[str]) -> str:
    """The query that shows in one answer whether series exist and how their labels tell nodes apart."""
    return f"count by ({', '.join(dict.fromkeys(labels))}) ({evidence})"


def names_query(*, matchers: Sequence[Matcher] = ()) -> str:
    """The query for the names of nodes behind addresses."""
    return profile(narrowed("node_uname_info", *matchers), labels=PROFILE_LABELS)


def _tells_apart(label: str, rows: Sequence[Labels]) -> bool:
    """Whether every row carries the label, and it has at least half as many values as there are instances: a label
    that names the Prometheus or the cluster is on every series too."""
    values = {row.get(label, "") for row in rows}
    instances = {row["instance"] for row in rows if row.get("instance")}
    return bool(rows) and "" not in values and 2 * len(values) >= len(instances)


def read_names(rows: Sequence[Labels]) -> NodeNames:
    """Names of nodes from the labels of node_uname_info: a label that already names Kubernetes nodes is better than
    the kernel's host name."""
    label = next((name for name in DIRECT_LABELS if _tells_apart(name, rows)), "nodename")
    named = {row["instance"]: row[label] for row in rows if row.get("instance") and row.get(label)}
    return NodeNames(label, named)


def direct_label(rows: Sequence[Labels]) -> NodeLabel | None:
    """The first label that by itself names the nodes of all these series, None if none does."""
    return next((NodeLabel(label) for label in DIRECT_LABELS if _tells_apart(label, rows)), None)


def fallback_label(rows: Sequence[Labels], names: NodeNames) -> NodeLabel | None:
    """For series that name no node: by their instance, looked up among the names if most are there and tell nodes
    apart (machines made of one image may all be called localhost), else without its port, else as it is. None where
    some series have no instance."""
    if not _tells_apart("instance", rows):
        return None
    known = [{**row, names.label: names.by_instance[row["instance"]]} for row in rows if _has_name(row, names)]
    joined = _joined(rows, names) if _tells_apart(names.label, known) else None
    # Simulated machines may be ports of one host.
    hosts = [{**row, "host": without_port(row["instance"])} for row in rows]
    return joined or NodeLabel("instance", strip_port=_tells_apart("host", hosts))


def _has_name(row: Labels, names: NodeNames) -> bool:
    return row.get("instance", "") in names.by_instance


def configured_label(label: str, rows: Sequence[Labels], names: NodeNames) -> NodeLabel | None:
    """The label that the operator named, None if no series has it. `nodename` may come from node_uname_info, and
    `instance` loses its port, as when found out."""
    if any(row.get(label) for row in rows):
        return NodeLabel(label, strip_port=label == "instance")
    return _joined(rows, names) if label == names.label else None


def _joined(rows: Sequence[Labels], names: NodeNames) -> NodeLabel | None:
    instances = {row["instance"] for row in rows if row.get("instance")}
    known = sum(instance in names.by_instance for instance in instances)
    return NodeLabel("instance", joined=names.label) if instances and 2 * known >= len(instances) else None


# --- questions -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant query at `time`, unix seconds."""

    query: str
    time: float


@dataclass(frozen=True, slots=True)
class Range:
    """A range query; unix seconds, whole."""

    query: str
    start: int
    end: int
    step: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What was settled for one metric: `expression` has its label filled in, `scrape_interval` is in seconds and None
    for plain series, which need none."""

    metric: Metric
    candidate: Candidate
    label: NodeLabel
    expression: str
    scrape_interval: float | None
    reason: str

    def question(self, since: float, until: float, *, resolution: int, beyond: float = 0.0) -> Instant | Range | None:
        """What to ask for the samples between `since` and `until`, None if no step of the expression falls in
        between. Steps are aligned to slots, so that a second fetch meets the same times again. `beyond` is for how
        many seconds more an expression is evaluated."""
        if self.scrape_interval is None:
            span = max(1, math.ceil(until - since))
            return Instant(f"{self.expression}[{span}s]", until)
        step = resolution * math.ceil(min(self.scrape_interval, LONGEST_STEP_S) / resolution)
        start, end = math.ceil(since / step) * step, math.floor(until / step) * step
        later = step * math.ceil(beyond / step)
        return Range(self._guarded(), start, end + later, step) if start <= end else None

    def _guarded(self) -> str:
        """The expression, for nodes whose raw series had a sample within two scrape intervals (issue 2)."""
        if not self.candidate.raw or self.scrape_interval is None:
            return self.expression
        alive = f"count_over_time({self.candidate.raw}[{2 * self.scrape_interval:.0f}s]) > 0"
        return f"({self.expression}) and on ({self.label.label}) ({alive})"


def settle(
    metric: Metric, candidate: Candidate, *, label: NodeLabel, scrape_interval: float | None, rejected: Sequence[str]
) -> Plan:
    """The plan for a candidate that exists; `scrape_interval` None means that it could not be told. `rejected` are the
    better candidates that do not exist."""
    plain = is_plain(candidate.expression)
    interval = None if plain else scrape_interval or DEFAULT_SCRAPE_INTERVAL_S
    reasons = [candidate.origin + (f", there being no {' and no '.join(rejected)}" if rejected else "")]
    if interval is not None:
        how = "measured" if scrape_interval else "assumed, too few samples to tell"
        reasons.append(f"scrape interval {interval:.0f} s {how}")
        guard = (
            f"guarded by {candidate.raw}" if candidate.raw else "no guard, so a dead exporter looks alive for a while"
        )
        reasons.append(guard)
    expression = candidate.expression.replace("<label>", label.label) if candidate.raw else candidate.expression
    return Plan(metric, candidate, label, expression, interval, "; ".join(reasons))


def among(label: str, values: Iterable[str]) -> Matcher:
    """That `label` has one of these values."""
    return Matcher(label, "=~", "|".join(re.escape(value) for value in values))
