"""Every setting there is: its name, type, default, meaning, and the kind of value that it takes.

One declaration of a setting is all there is about it. The parsing of the TOML file, the names and the parsing of the
environment, `config show`, docs/settings.md and load-watcher.example.toml are all made from these tables, so a new
setting is one field here, and none can be forgotten in one of those places.

Durations are float seconds, sizes int bytes. None means "not set", and the meaning says what then holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from watcher import model
from watcher.collect_policy import SHORTEST_INTERVAL_S, SHORTEST_PERIOD_S, PolicyPart, PolicyRule
from watcher.pod_selection import PodSelection
from watcher.providers.influxdb_plans import DIALECTS
from watcher.providers.prometheus_matchers import Matcher, parse_matchers
from watcher.settings import selections, values
from watcher.settings.values import Kind, Secret

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What a table says of one of its fields. `example` is a TOML literal for a setting that has no default; `flag`
    the option of `serve` that sets it."""

    kind: Kind
    doc: str
    example: str = ""
    flag: str | None = None


def about(kind: Kind, doc: str, *, example: str = "", flag: str | None = None) -> Mapping[str, Setting]:
    """The metadata of a field that is a setting."""
    return {"setting": Setting(kind, doc, example, flag)}


class Table:
    """A section of the settings. Its repr hides what is secret, so that a stray log line or traceback tells nothing."""

    def __repr__(self) -> str:
        shown = (
            f"{each.name}={setting_of(each).kind.write(value)}"
            for each in settings_fields(type(self))
            if (value := getattr(self, each.name)) is not None
        )
        return f"{type(self).__name__}({', '.join(shown)})"


def settings_fields(table: type[Table]) -> Iterator[Field[Any]]:
    """The fields of a table that are settings, in their order."""
    return (each for each in fields(table) if "setting" in each.metadata)  # type: ignore[arg-type]  # all are dataclasses


def setting_of(of: Field[Any]) -> Setting:
    """What the table says of this field."""
    setting: Setting = of.metadata["setting"]
    return setting


# --- kinds of values that only the model can tell --------------------------------------------------------------------


def window(text: str) -> model.Window:
    """The window of this length, labelled in the one way that the wire and the database know: "900s" is "15m"."""
    seconds = int(values.read_duration(text))
    return model.Window(values.write_duration(seconds), seconds)


def _windows() -> Kind:
    length = values.whole_seconds(lowest=2, highest=int(DAY))
    item = Kind(
        'a duration of whole seconds, like "15m", of at most 24h',
        lambda value: window(f"{length.read(value)}s"),
        lambda text: window(f"{length.read_text(text)}s"),
        lambda each: values.write_text(each.label),
    )
    several = values.several(item, called='durations, like ["5m", "10m", "15m"]')
    return Kind(
        several.accepts,
        lambda value: tuple(sorted(several.read(value), key=lambda each: each.seconds)),
        lambda text: tuple(sorted(several.read_text(text), key=lambda each: each.seconds)),
        several.write,
    )


def _window_labels() -> Kind:
    windows = _windows()
    return Kind(
        windows.accepts,
        lambda value: tuple(each.label for each in windows.read(value)),
        lambda text: tuple(each.label for each in windows.read_text(text)),
        lambda labels: "[" + ", ".join(map(values.write_text, labels)) + "]",
    )


def _peer_address(read: Callable[[Any], str]) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if "@" in (address := read(value)):
            raise values.Unfit("given one with a user; replicas know each other by server.token_file")
        return address

    return checked


_PEER = replace(
    values.ADDRESS, read=_peer_address(values.ADDRESS.read), read_text=_peer_address(values.ADDRESS.read_text)
)


_AUTHORITIES = about(
    values.PATH,
    "Authorities (PEM) that may have signed their certificates. Not set: those of the system.",
    example='"/etc/load-watcher/tls/ca.crt"',
)


def _read_matchers(value: Any) -> tuple[Matcher, ...]:
    try:
        if isinstance(value, dict):
            return tuple(_equal(label, text) for label, text in value.items())
        if isinstance(value, list):
            return _distinct_matchers([_one_matcher(text) for text in value])
    except ValueError as error:  # Unfit is one, too
        raise values.Unfit(str(error)) from None
    raise values.Unfit


def _read_matchers_text(text: str) -> tuple[Matcher, ...]:
    try:
        return _distinct_matchers(list(parse_matchers(text)))
    except ValueError as error:
        raise values.Unfit(str(error)) from None


def _equal(label: str, text: object) -> Matcher:
    if not isinstance(text, str):
        raise values.Unfit(f"the value of {label} must be text; given {values.describe(text)}")
    return Matcher(label, "=", text)


def _one_matcher(text: object) -> Matcher:
    matchers = parse_matchers(text) if isinstance(text, str) else ()
    if len(matchers) != 1:
        raise values.Unfit(f"each of the list must be one matcher in a text; given {values.describe(text)}")
    return matchers[0]


def _distinct_matchers(matchers: list[Matcher]) -> tuple[Matcher, ...]:
    if twice := next((each for each in matchers if matchers.count(each) > 1), None):
        raise values.Unfit(f"{twice} stands twice")
    return tuple(matchers)


def _write_matchers(matchers: tuple[Matcher, ...]) -> str:
    if len({each.label for each in matchers if each.operator == "="}) < len(matchers):
        return "[" + ", ".join(values.write_text(str(each)) for each in matchers) + "]"
    pairs = ", ".join(f"{each.label} = {values.write_text(each.value)}" for each in matchers)
    return f"{{ {pairs} }}" if pairs else "{}"


_MATCHERS = Kind(
    'a table of labels with their values, like { cluster = "prod-1" }, or a list of matchers as in PromQL, like '
    """['cluster="prod-1"', 'env=~"live|test"'] (environment: cluster="prod-1",env=~"live|test")""",
    _read_matchers,
    _read_matchers_text,
    _write_matchers,
    brief="table of labels, or list of PromQL matchers; environment: matchers separated by commas",
)

_RULE_KEYS = ("names", "labels", "report_interval", "aggregate_duration", "aggregate_durations")


def _read_rules(value: Any) -> tuple[PolicyRule, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise values.Unfit
    return tuple(_one_rule(number, each) for number, each in enumerate(value, start=1))


def _read_rules_text(text: str) -> tuple[PolicyRule, ...]:
    try:
        return _read_rules(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise values.Unfit(str(error) if isinstance(error, values.Unfit) else f"no JSON: {error}") from None


def _one_rule(number: int, given: Mapping[str, Any]) -> PolicyRule:
    if unknown := next((key for key in given if key not in _RULE_KEYS), None):
        raise values.Unfit(f"number {number} has {unknown!r}; there are {', '.join(_RULE_KEYS)}")
    names, labels = given.get("names", []), given.get("labels", {})
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise values.Unfit(f'names of number {number} must be a list of patterns, like ["gpu-*"]')
    if not isinstance(labels, dict) or not all(isinstance(each, str) for each in labels.values()):
        raise values.Unfit(f'labels of number {number} must be a table of texts, like {{ pool = "gpu" }}')
    if not names and not labels:
        raise values.Unfit(f"number {number} has neither names nor labels, so that nobody knows for which nodes it is")
    read = {key: _part_of_rule(number, key, given[key]) for key in _RULE_KEYS[2:] if key in given}
    if not read:
        raise values.Unfit(f"number {number} changes nothing; there are {', '.join(_RULE_KEYS[2:])}")
    durations = read.get("aggregate_durations")
    part = PolicyPart(
        read.get("report_interval"),
        read.get("aggregate_duration"),
        None if durations is None else tuple(each.seconds for each in durations),
    )
    return PolicyRule(part, tuple(names), tuple(labels.items()))


def _part_of_rule(number: int, key: str, value: Any) -> Any:
    kind = _RULE_PARTS[key]
    try:
        return kind.read(value)
    except values.Unfit as unfit:
        detail = str(unfit) or f"given {values.describe(value)}"
        raise values.Unfit(f"{key} of number {number} must be {kind.accepts}; {detail}") from None


def _write_rules(rules: tuple[PolicyRule, ...]) -> str:
    return "[" + ", ".join(map(_write_rule, rules)) + "]"


def _write_rule(rule: PolicyRule) -> str:
    part, written = rule.part, {}
    if rule.names:
        written["names"] = "[" + ", ".join(map(values.write_text, rule.names)) + "]"
    if rule.labels:
        pairs = ", ".join(f"{values.write_text(key)} = {values.write_text(text)}" for key, text in rule.labels)
        written["labels"] = f"{{ {pairs} }}"
    numbers = {"report_interval": part.report_interval_s, "aggregate_duration": part.aggregate_duration_s}
    for key, seconds in numbers.items():
        if seconds is not None:
            written[key] = values.write_text(values.write_duration(seconds))
    if part.durations_s is not None:
        durations = (values.write_text(values.write_duration(seconds)) for seconds in part.durations_s)
        written["aggregate_durations"] = f"[{', '.join(durations)}]"
    return "{ " + ", ".join(f"{key} = {text}" for key, text in written.items()) + " }"


_REPORT_INTERVAL = values.whole_seconds(lowest=SHORTEST_INTERVAL_S, highest=3600)
_AGGREGATE_DURATION = values.whole_seconds(lowest=SHORTEST_PERIOD_S, highest=86400)
_RULE_PARTS = {
    "report_interval": _REPORT_INTERVAL,
    "aggregate_duration": _AGGREGATE_DURATION,
    "aggregate_durations": _windows(),
}
_POLICY_RULES = Kind(
    'a list of tables, like [{ names = ["gpu-*"], report_interval = "30s" }] (environment: the same as JSON)',
    _read_rules,
    _read_rules_text,
    _write_rules,
    brief=f"list of tables with {', '.join(_RULE_KEYS)}; environment: JSON",
)

_METRIC_TYPES = tuple(kind.value for kind in model.MetricType)
_METRIC_NAMES = tuple(dict.fromkeys((*_METRIC_TYPES, *model.METRIC_BY_KEY)))
_TYPES = values.several(values.choice(_METRIC_NAMES), called="metric types, like CPU, or keys, like NetworkReceive")
_TYPES_ONLY = values.several(values.choice(_METRIC_TYPES), called="metric types, like CPU")
_OPERATORS = values.several(values.choice([each.value for each in model.Operator]), called="operators, like AVG")
_DEFAULT_WINDOWS = tuple(window(label) for label in ("5m", "10m", "15m"))

# The names of logrus, which load-watcher's users know, beside Python's.
LEVELS = {"trace": "debug", "warn": "warning", "fatal": "critical", "panic": "critical"}
LEVEL = values.choice(("debug", "info", "warning", "error", "critical"), aliases=LEVELS)


# --- the tables ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ClusterSettings(Table):
    """Which cluster this is, where several share a source, a database, or a place to which logs and metrics go."""

    name: str | None = field(
        default=None,
        metadata=about(
            values.NAME,
            "Stands in JSON logs and on /metrics (load_watcher_cluster_info); stored samples of another cluster are "
            "not loaded. It chooses no series: that is provider.matchers.",
            example='"prod-1"',
        ),
    )


@dataclass(frozen=True, repr=False)
class ServerSettings(Table):
    """Where the HTTP API listens, and who may use it."""

    host: str = field(
        default="127.0.0.1",
        metadata=about(values.TEXT, "Address to listen on. Containers and manifests set 0.0.0.0.", flag="--host"),
    )
    port: int = field(
        default=2020,
        metadata=about(
            values.whole(lowest=0, highest=65535), "Port to listen on; 0 takes any free one.", flag="--port"
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Certificate (PEM, with its chain) to serve https with; needs tls_key.",
            example='"/etc/load-watcher/tls/tls.crt"',
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=about(values.PATH, "Private key (PEM) of tls_cert.", example='"/etc/load-watcher/tls/tls.key"'),
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Authorities (PEM) whose client certificates are verified and accepted; needs tls_cert.",
            example='"/etc/load-watcher/tls/clients.crt"',
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "File with the bearer token that whatever changes state asks for, and reads too under protect_reads.",
            example='"/etc/load-watcher/token"',
        ),
    )
    protect_reads: bool = field(
        default=False, metadata=about(values.BOOLEAN, "Whether reading needs the token of token_file as well.")
    )


@dataclass(frozen=True, repr=False)
class QuerySettings(Table):
    """What a provider is asked for one metric, in place of what it would find out by itself."""

    expression: str = field(
        metadata=about(values.TEXT, "The query, in the provider's own language.", example='"instance:node_cpu:ratio"')
    )
    unit: str = field(
        metadata=about(values.choice(model.SOURCE_UNITS), "Unit of what the query gives.", example='"ratio"')
    )
    node_label: str | None = field(
        default=None,
        metadata=about(
            values.TEXT, "Label with the name of the node. Not set: provider.node_label.", example='"instance"'
        ),
    )
    smoothing: float = field(
        default=0.0,
        metadata=about(
            values.duration(highest=HOUR),
            "Over how long the expression itself averages (rate[5m]: 5m), since that lowers deviations.",
        ),
    )
    guard: str | None = field(
        default=None,
        metadata=about(
            values.TEXT,
            "Raw series whose samples show that the node's exporter lives. Not set: none is asked for.",
            example="'node_cpu_seconds_total{mode=\"idle\"}'",
        ),
    )


@dataclass(frozen=True, repr=False)
class ProviderSettings(Table):
    """Where samples come from. `reason` says why it is this provider."""

    name: str = field(
        default="host",
        metadata=about(
            values.TEXT,
            "The source of samples. Not set: metrics-server inside a cluster (KUBERNETES_SERVICE_HOST is set), else "
            "host, this machine's own load.",
            example='"prometheus"',
            flag="--provider",
        ),
    )
    reason: str = ""
    address: str | None = field(
        default=None,
        metadata=about(
            values.ADDRESS,
            "Where the source is. A user and password in it count as username and password.",
            example='"http://prometheus.monitoring:9090"',
            flag="--address",
        ),
    )
    token: Secret | None = field(
        default=None, metadata=about(values.SECRET, "Bearer token to send. Rather use token_file.", example='"…"')
    )
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "File with the bearer token to send.",
            example='"/var/run/secrets/kubernetes.io/serviceaccount/token"',
        ),
    )
    username: str | None = field(
        default=None,
        metadata=about(
            values.TEXT, "User for basic authentication; needs password or password_file.", example='"load-watcher"'
        ),
    )
    password: Secret | None = field(
        default=None, metadata=about(values.SECRET, "Password of username. Rather use password_file.", example='"…"')
    )
    password_file: Path | None = field(
        default=None,
        metadata=about(values.PATH, "File with the password of username.", example='"/etc/load-watcher/password"'),
    )
    ca_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Authorities (PEM) that may have signed the source's certificate. Not set: those of the system.",
            example='"/etc/load-watcher/prometheus-ca.crt"',
        ),
    )
    client_cert: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Certificate (PEM) to show to the source, with its key in client_key or in the same file.",
            example='"/etc/load-watcher/client.crt"',
        ),
    )
    client_key: Path | None = field(
        default=None,
        metadata=about(values.PATH, "Private key (PEM) of client_cert.", example='"/etc/load-watcher/client.key"'),
    )
    insecure_skip_verify: bool = field(
        default=False,
        metadata=about(values.BOOLEAN, "Take any certificate from the source. Leaves the connection open to anyone."),
    )
    headers: Mapping[str, Secret] = field(
        default_factory=dict,
        metadata=about(
            values.HEADERS,
            "Further headers to send, the tenant of a Mimir for instance.",
            example='{ "X-Scope-OrgID" = "team-a" }',
        ),
    )
    timeout: float = field(
        default=10.0,
        metadata=about(
            values.duration(lowest=0.1, highest=600),
            "How long one question may take. At most 0.8 of refresh.interval, the deadline of a whole refresh; where "
            "not set and the interval is short, just that.",
        ),
    )
    node_label: str | None = field(
        default=None,
        metadata=about(
            values.TEXT,
            "Label with the name of the node. Not set: node, kubernetes_node, nodename, or instance without its port, "
            "in the order that matches; for InfluxDB, Datadog and SignalFx, host.",
            example='"node"',
        ),
    )
    matchers: tuple[Matcher, ...] = field(
        default=(),
        metadata=about(
            _MATCHERS,
            "Labels that this cluster's series have where several clusters share a Prometheus, Thanos, Mimir or "
            "VictoriaMetrics; in every query but the expressions of provider.queries, which are sent as they are.",
            example='{ cluster = "prod-1" }',
        ),
    )
    dialect: str | None = field(
        default=None,
        metadata=about(
            values.choice(DIALECTS),
            "Query language of InfluxDB. Not set: influxql for 1.x and 3.x; for 2.x flux if bucket is set, else "
            "influxql.",
            example='"influxql"',
        ),
    )
    database: str | None = field(
        default=None,
        metadata=about(
            values.TEXT, "Database of InfluxDB, for influxql. Not set: bucket, else telegraf.", example='"telegraf"'
        ),
    )
    bucket: str | None = field(
        default=None, metadata=about(values.TEXT, "Bucket of InfluxDB, for flux; needs org.", example='"telegraf"')
    )
    org: str | None = field(
        default=None,
        metadata=about(values.TEXT, "Organisation of InfluxDB that has the bucket, by name.", example='"example"'),
    )
    metrics: tuple[str, ...] = field(
        default=("CPU", "Memory", "Storage", "Bandwidth"),
        metadata=about(_TYPES, "What to ask for: metric types, or single metrics by key."),
    )
    queries: Mapping[str, QuerySettings] = field(default_factory=dict)
    trace: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "The recording that replay replays: a trace, or a file of a load-watcher's store.",
            example='"trace.csv.gz"',
            flag="--trace",
        ),
    )
    speed: float = field(
        default=1.0,
        metadata=about(
            values.number(lowest=0.01, highest=1440),
            "How many times as fast replay lets the recording pass. Times of samples stay true.",
            flag="--speed",
        ),
    )
    at_end: str = field(
        default="loop",
        metadata=about(
            values.choice(("loop", "stop")),
            "What replay does where the recording ends: begin anew, or give nothing more, so that load grows stale.",
        ),
    )
    openshift_auth: bool = field(
        default=False,
        metadata=about(
            values.BOOLEAN,
            "Verify the source with the service account's own authorities, as OpenShift's monitoring wants.",
        ),
    )
    app_key: Secret | None = field(
        default=None,
        metadata=about(values.SECRET, "Application key, for Datadog. Rather use app_key_file.", example='"…"'),
    )
    app_key_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH, "File with the application key, for Datadog.", example='"/etc/load-watcher/datadog-app-key"'
        ),
    )
    kubeconfig: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Where kubernetes.kubeconfig is not set: the Kubernetes configuration that says which cluster. Not set: "
            "the pod's service account.",
            example='"/etc/load-watcher/kubeconfig"',
        ),
    )
    host_name_suffix: str | None = field(
        default=None,
        metadata=about(
            values.TEXT,
            "End of the host names to ask for, for SignalFx and Datadog. The domain in it is taken off the names.",
            example='".example.com"',
        ),
    )
    cluster_name: str | None = field(
        default=None,
        metadata=about(values.TEXT, "Cluster to ask for, for SignalFx and Datadog.", example='"production"'),
    )

    @property
    def wanted(self) -> tuple[model.Metric, ...]:
        """The metrics that `metrics` names, in the model's order."""
        named = set(self.metrics)
        return tuple(each for each in model.METRICS if each.key in named or each.type.value in named)


@dataclass(frozen=True, repr=False)
class KubernetesSettings(Table):
    """The Kubernetes API: for the names of nodes, and for metrics-server."""

    kubeconfig: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Kubernetes configuration that says which cluster. Not set: provider.kubeconfig, else the pod's service "
            "account.",
            example='"/etc/load-watcher/kubeconfig"',
        ),
    )
    context: str | None = field(
        default=None,
        metadata=about(values.TEXT, "Context of the kubeconfig. Not set: its current one.", example='"production"'),
    )
    node_names: str = field(
        default="auto",
        metadata=about(
            values.choice(("auto", "on", "off")),
            "Whether the source's names of nodes become those of the cluster (docs/node-names.md). auto: if a cluster "
            "is known, by a kubeconfig or because this runs in one, and the provider is neither host nor "
            "metrics-server.",
        ),
    )
    node_label: str = field(
        default="kubernetes.io/hostname",
        metadata=about(values.TEXT, "Label of nodes by which they are known too, beside their name and addresses."),
    )


@dataclass(frozen=True, repr=False)
class RefreshSettings(Table):
    """How often samples are fetched, and which windows are kept over them."""

    interval: float = field(
        default=MINUTE,
        metadata=about(
            values.duration(lowest=1, highest=600),
            "How often samples are fetched. A refresh that takes longer than 0.8 of it is given up.",
            flag="--interval",
        ),
    )
    resolution: int = field(
        default=15,
        metadata=about(
            values.whole_seconds(lowest=1, highest=60),
            "Width of a slot of the history: of the samples of one slot the last counts.",
        ),
    )
    windows: tuple[model.Window, ...] = field(
        default=_DEFAULT_WINDOWS,
        metadata=about(
            _windows(), "The windows to compute, whole multiples of resolution. The history is as long as the longest."
        ),
    )
    pods: str = field(
        default="auto",
        metadata=about(
            values.choice(("auto", "on", "off")),
            "Whether the source is asked once a minute for what pods use (docs/pods.md), which costs more than all "
            "nodes together. auto: from the first time that somebody asks us until 15 minutes after the last.",
        ),
    )
    max_staleness: float = field(
        default=5 * MINUTE,
        metadata=about(
            values.duration(lowest=1),
            "Age above which a node's metric is left out, and above which the whole answer is an error.",
        ),
    )


@dataclass(frozen=True, repr=False)
class ReviewSettings(Table):
    """What is done about bad samples."""

    mode: str = field(
        default="enforce",
        metadata=about(
            values.choice(("enforce", "observe")), "enforce acts on what is found, observe only reports it."
        ),
    )
    carry_slots: int = field(
        default=2,
        metadata=about(
            values.whole(lowest=0, highest=20),
            "How many slots a node's last value may stand in for missing ones. Never counts as coverage.",
        ),
    )
    outage_fraction: float = field(
        default=0.2,
        metadata=about(
            values.FRACTION,
            "If more than this part of the known nodes would vanish within one refresh, their last values are kept.",
        ),
    )
    forget_after: float = field(
        default=30 * MINUTE,
        metadata=about(values.duration(lowest=1), "How long a node may be silent before it is no longer known."),
    )


@dataclass(frozen=True, repr=False)
class StoreSettings(Table):
    """Where windows and recent samples are kept, and for how long."""

    url: str = field(
        default="sqlite:///load-watcher.db",
        metadata=about(
            values.DATABASE, "The database: a file of this watcher's own, or a PostgreSQL server.", flag="--store-url"
        ),
    )
    password_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "File with the password of the user in url, for PostgreSQL. Read anew for each connection.",
            example='"/etc/load-watcher/database-password"',
        ),
    )
    watcher_id: str | None = field(
        default=None,
        metadata=about(
            values.NAME,
            "Whose rows these are in a database that several watchers share, with cluster.name before it; no two that "
            "run may have the same. Not set: POD_NAME, else the name of the host. A file has one watcher, and no name.",
            example='"load-watcher-0"',
        ),
    )
    retention: float = field(
        default=DAY,
        metadata=about(values.duration(lowest=1), "How long windows are kept. At least the longest window."),
    )
    on_unusable: str = field(
        default="fail",
        metadata=about(
            values.choice(("fail", "set-aside")),
            "What to do with a database that is corrupt or of a newer version: fail, or set-aside, which renames a "
            "file and begins a new one, and goes on without a server.",
        ),
    )
    max_size: int = field(
        default=2 * 2**30,
        metadata=about(
            values.size(lowest=16 * 2**20),
            "How large the database may become, of PostgreSQL this watcher's part of it; above that, the oldest "
            "windows and decisions go before their time.",
        ),
    )
    decisions: float = field(
        default=DAY,
        metadata=about(
            values.duration(),
            "How long what the scheduling plug-ins decided is kept, for load-watcher why; 0s: not at all.",
        ),
    )
    max_decisions: int = field(
        default=100_000,
        metadata=about(
            values.whole(lowest=100, highest=1_000_000),
            "How many decisions are kept, of one to four kB each; the oldest go first.",
        ),
    )
    upgrade: bool = field(
        default=True, metadata=about(values.BOOLEAN, "Whether serve brings an older database up to date by itself.")
    )
    keep: tuple[str, ...] = field(
        default=("CPU", "Memory"), metadata=about(_TYPES_ONLY, "Metric types whose windows are kept.")
    )


@dataclass(frozen=True, repr=False)
class PeersSettings(Table):
    """Other replicas. A start takes over the samples of one that is ready, where the source itself does not remember
    (metrics-server). Not used with other sources, and never waited for longer than `timeout`."""

    urls: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-headless:2020"]'),
            "Where the replicas are. A name stands for all of its addresses, as that of a headless Service does, this "
            "process among them.",
            example='["http://load-watcher-headless:2020"]',
        ),
    )
    timeout: float = field(
        default=3.0,
        metadata=about(
            values.duration(lowest=0.1, highest=60),
            "How long the first refresh waits for all of them together; at most 0.8 of refresh.interval.",
        ),
    )
    ca_file: Path | None = field(default=None, metadata=_AUTHORITIES)


@dataclass(frozen=True, repr=False)
class AgentsSettings(Table):
    """The node agents of the cluster (load-watcher agent). Where they are named, what pods use is asked of them and not
    of the source (docs/pods.md)."""

    urls: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-agent:2023"]'),
            "Where the agents are. A name stands for all of its addresses, as that of a headless Service does.",
            example='["http://load-watcher-agent:2023"]',
        ),
    )
    pods: PodSelection | None = field(
        default=None,
        metadata=about(
            selections.pods(port=2023),
            "The pods of the agents, by label: those that run and are ready are asked at their addresses. namespace: "
            "not set, our own. tls_server_name: whom their certificates are for; not set, they are asked by http.",
            example='{ selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }',
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "A file with the token that the agents want (agent.token_file), read anew each time.",
            example='"/run/secrets/load-watcher/agent-token"',
        ),
    )
    ca_file: Path | None = field(default=None, metadata=_AUTHORITIES)
    timeout: float = field(
        default=3.0, metadata=about(values.duration(lowest=0.1, highest=10), "How long one agent has to answer.")
    )

    @property
    def named(self) -> bool:
        """Whether there are any, so that pods are asked of them."""
        return self.urls is not None or self.pods is not None


@dataclass(frozen=True, repr=False)
class DashboardSettings(Table):
    """What the dashboard shows beside the service itself: pages of node agents and QoS Resource Managers, asked for by
    the service and only to be looked at (docs/dashboard.md)."""

    agents: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-agent:2023"]'),
            "Agents whose plan and audit are shown. A name stands for all of its addresses, as that of a headless "
            "Service does.",
            example='["http://load-watcher-agent:2023"]',
        ),
    )
    agent_pods: PodSelection | None = field(
        default=None,
        metadata=about(
            selections.pods(port=2023),
            "The same by label, as agents.pods. They are shown with their nodes.",
            example='{ selector = "app.kubernetes.io/name=load-watcher-agent", namespace = "load-watcher-agent" }',
        ),
    )
    qrm: tuple[str, ...] | None = field(
        default=None,
        metadata=about(
            values.several(_PEER, called='addresses, like ["http://load-watcher-qrm:2024"]'),
            "QoS Resource Managers whose pools and CPUs are shown, likewise.",
            example='["http://load-watcher-qrm:2024"]',
        ),
    )
    qrm_pods: PodSelection | None = field(
        default=None,
        metadata=about(
            selections.pods(port=2024),
            "The same by label, as agents.pods.",
            example='{ selector = "app.kubernetes.io/name=load-watcher-qrm", namespace = "load-watcher-qrm" }',
        ),
    )
    token_file: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "A file with the token that they want (agent.token_file, qrm.token_file), read anew each time.",
            example='"/run/secrets/load-watcher/agent-token"',
        ),
    )
    ca_file: Path | None = field(default=None, metadata=_AUTHORITIES)


@dataclass(frozen=True, repr=False)
class MetricsSettings(Table):
    """What /metrics shows of the nodes. Each type, operator and window multiplies the series that Prometheus stores."""

    types: tuple[str, ...] = field(
        default=("CPU", "Memory"), metadata=about(_TYPES_ONLY, "Metric types that /metrics shows.")
    )
    operators: tuple[str, ...] = field(
        default=("AVG", "STD"), metadata=about(_OPERATORS, "Operators that /metrics shows.")
    )
    windows: tuple[str, ...] = field(
        default=("15m",), metadata=about(_window_labels(), "Windows that /metrics shows; each one of refresh.windows.")
    )


@dataclass(frozen=True, repr=False)
class KoordinatorSettings(Table):
    """The collect policy of NodeMetrics, as served and as LoadAwareScheduling has them from us; koordlet's defaults."""

    report_interval: int = field(
        default=60,
        metadata=about(
            _REPORT_INTERVAL,
            "How often NodeMetrics are made anew; at least refresh.interval, whatever stands here.",
        ),
    )
    aggregate_duration: int = field(
        default=300,
        metadata=about(
            _AGGREGATE_DURATION,
            "Over how long the usage of nodes and pods is averaged; at most the longest of refresh.windows, whatever "
            "stands here.",
        ),
    )
    aggregate_durations: tuple[model.Window, ...] | None = field(
        default=None,
        metadata=about(
            _windows(),
            "Over how long NodeMetrics have mean and percentiles of nodes, each one of refresh.windows. Not set: all "
            "of these.",
            example='["5m", "10m", "15m"]',
        ),
    )
    nodes: tuple[PolicyRule, ...] = field(
        default=(),
        metadata=about(
            _POLICY_RULES,
            "Other values of the three settings above for some nodes, by patterns of their names or by labels that "
            "they all have; the first of the list that fits a node counts.",
            example='[{ names = ["gpu-*"], labels = { pool = "gpu" }, report_interval = "30s" }]',
        ),
    )
    publish: bool = field(
        default=False,
        metadata=about(
            values.BOOLEAN,
            "Write NodeMetrics to the cluster, where koord-scheduler looks for them (docs/koordinator.md, with the "
            "rights that it takes). Nodes that a koordlet reports are left to it.",
        ),
    )
    lease_namespace: str | None = field(
        default=None,
        metadata=about(
            values.TEXT,
            "Namespace of the Lease load-watcher-nodemetrics, by which replicas agree on who writes. Not set: that of "
            "this pod, or default.",
            example='"load-watcher"',
        ),
    )


@dataclass(frozen=True, repr=False)
class LogSettings(Table):
    """What is logged, and how. The log goes to standard error."""

    level: str = field(
        default="info",
        metadata=about(
            LEVEL, "The least important messages to log. Also known: trace, warn, fatal, panic.", flag="--log-level"
        ),
    )
    format: str = field(
        default="text",
        metadata=about(
            values.choice(("text", "json")),
            "text for people, json for collectors: one object a line.",
            flag="--log-format",
        ),
    )


TABLES: Mapping[str, type[Table]] = {
    "cluster": ClusterSettings,
    "server": ServerSettings,
    "provider": ProviderSettings,
    "kubernetes": KubernetesSettings,
    "refresh": RefreshSettings,
    "review": ReviewSettings,
    "store": StoreSettings,
    "peers": PeersSettings,
    "agents": AgentsSettings,
    "dashboard": DashboardSettings,
    "metrics": MetricsSettings,
    "koordinator": KoordinatorSettings,
    "log": LogSettings,
}
PARTS = ("scheduler", "agent", "qrm")


@dataclass(frozen=True)
class Settings:
    """All settings of the service.

    `parts` holds the tables of the other packages as they stand in the file, checked by their own validators.
    `origins` says of every key ("refresh.interval") where its value is from: "flag --interval", "environment NAME",
    "file PATH" or "default", with the reason behind it where the default is not the table's. `notices` are worth a
    line in the log.
    """

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    provider: ProviderSettings = field(default_factory=ProviderSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    refresh: RefreshSettings = field(default_factory=RefreshSettings)
    review: ReviewSettings = field(default_factory=ReviewSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    peers: PeersSettings = field(default_factory=PeersSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    dashboard: DashboardSettings = field(default_factory=DashboardSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    koordinator: KoordinatorSettings = field(default_factory=KoordinatorSettings)
    log: LogSettings = field(default_factory=LogSettings)
    parts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold secrets that only their part knows
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    notices: tuple[str, ...] = ()

    @property
    def watcher(self) -> str:
        """Whose rows are ours in the database: the cluster's name, if it has one, and the watcher's. A file has one
        watcher, who needs no name."""
        if not values.is_server(self.store.url):
            return ""
        return "/".join(name for name in (self.cluster.name, self.store.watcher_id) if name)

    @property
    def kubeconfig(self) -> Path | None:
        """The kubeconfig that says which cluster; None for the one that this pod runs in."""
        return self.kubernetes.kubeconfig or self.provider.kubeconfig


# --- the keys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """One setting by its full name: "refresh.interval", "provider.queries.CPU.unit"."""

    table: tuple[str, ...]
    of: Field[Any]

    @cached_property
    def name(self) -> str:
        """The name in files, in `--set` and in problems."""
        return ".".join((*self.table, self.of.name))

    @property
    def environment(self) -> str:
        """The name in the environment."""
        return "LOAD_WATCHER_" + self.name.replace(".", "_").upper()

    @property
    def setting(self) -> Setting:
        """What its table says of it."""
        return setting_of(self.of)

    @property
    def default(self) -> Any:
        """Its default; MISSING where it must be given."""
        return self.of.default if self.of.default_factory is MISSING else self.of.default_factory()

    @property
    def example(self) -> str:
        """A value for it, as TOML."""
        return self.setting.example or self.setting.kind.write(self.default)


QUERIES = ("provider", "queries")


def _keys() -> Iterator[Key]:
    for name, table in TABLES.items():
        yield from (Key((name,), each) for each in settings_fields(table))
    for metric in model.METRICS:
        yield from (Key((*QUERIES, metric.key), each) for each in settings_fields(QuerySettings))


KEYS: Mapping[str, Key] = {key.name: key for key in _keys()}
