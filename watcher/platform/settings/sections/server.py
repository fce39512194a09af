"""Settings of the API and of other output: [cluster], [server], [metrics], [koordinator] and [log]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from watcher import model
from watcher.core.koordinator.collect_policy import PolicyRule
from watcher.platform.settings import values
from watcher.platform.settings.field_metadata import SettingsTable, setting
from watcher.platform.settings.model_values import LEVEL, OPERATORS, TYPES_ONLY, WINDOW_LABELS, WINDOWS
from watcher.platform.settings.policy_rules import AGGREGATE_DURATION, POLICY_RULES, REPORT_INTERVAL

PERCENT = values.integer(lowest=1, highest=100)


@dataclass(frozen=True, repr=False)
class ClusterSettings(SettingsTable):
    """The cluster of this service, to distinguish several clusters that share a source, a database, logs or metrics."""

    name: str | None = setting(
        None,
        values.NAME,
        "Name of the cluster, included in JSON logs and on /metrics (load_watcher_cluster_info). Stored samples of "
        "another cluster are not loaded. It does not select series; for that, set provider.matchers.",
        example='"prod-1"',
    )


@dataclass(frozen=True, repr=False)
class ServerSettings(SettingsTable):
    """The address, TLS and authentication of the HTTP API."""

    host: str = setting(
        "127.0.0.1",
        values.TEXT,
        "Address to listen on; :: serves IPv4 as well. It is the default of the container image.",
        flag="--host",
    )
    port: int = setting(
        2020, values.integer(lowest=0, highest=65535), "Port to listen on; 0 selects a free port.", flag="--port"
    )
    hosts: tuple[str, ...] | None = setting(
        None,
        values.list_of(values.NAME, called="host names", may_be_empty=True),
        "Further host names under which clients reach the service while server.host is a loopback address, for "
        "example through a proxy on the same machine. Requests with other names in the Host header are refused; IP "
        "addresses and localhost are always accepted.",
        example='["load-watcher.example.org"]',
    )
    tls_cert: Path | None = setting(
        None,
        values.PATH,
        "Server certificate for HTTPS (PEM, with its chain); needs tls_key.",
        example='"/etc/load-watcher/tls/tls.crt"',
    )
    tls_key: Path | None = setting(
        None, values.PATH, "Private key (PEM) of tls_cert.", example='"/etc/load-watcher/tls/tls.key"'
    )
    tls_client_ca: Path | None = setting(
        None,
        values.PATH,
        "CA certificates (PEM) to verify client certificates. These are optional; a verified one replaces the "
        "token for reads. Needs tls_cert.",
        example='"/etc/load-watcher/tls/clients.crt"',
    )
    token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token for requests that change state or read details (decisions, pods, pages of "
        "agents); with protect_reads, for all reads.",
        example='"/etc/load-watcher/token"',
    )
    protect_reads: bool = setting(False, values.BOOLEAN, "Whether reads need the token of token_file as well.")
    scheduler_clients: tuple[str, ...] = setting(
        (),
        values.list_of(values.NAME, called="certificate names", may_be_empty=True),
        "Names of the client certificates that may send filter, prioritize and bind to the extender: common name of "
        "the subject, or DNS name. All other requests to these paths are refused, also from loopback. Empty: filter "
        "and prioritize are open to every client. Needs tls_client_ca.",
        example='["system:kube-scheduler"]',
    )


@dataclass(frozen=True, repr=False)
class MetricsSettings(SettingsTable):
    """Node metrics on /metrics. Each type, operator and window multiplies the number of series in Prometheus."""

    types: tuple[str, ...] = setting(("CPU", "Memory"), TYPES_ONLY, "Metric types of the nodes' series on /metrics.")
    operators: tuple[str, ...] = setting(("AVG", "STD"), OPERATORS, "Operators of the nodes' series on /metrics.")
    windows: tuple[str, ...] = setting(
        ("15m",), WINDOW_LABELS, "Windows of the nodes' series on /metrics; each must be in refresh.windows."
    )


@dataclass(frozen=True, repr=False)
class KoordinatorSettings(SettingsTable):
    """The collect policy of the NodeMetrics that the API serves and the plug-in LoadAwareScheduling uses, with
    koordlet's defaults."""

    report_interval: int = setting(
        60,
        REPORT_INTERVAL,
        "Interval at which NodeMetrics are updated. The effective interval is at least refresh.interval.",
    )
    aggregate_duration: int = setting(
        300,
        AGGREGATE_DURATION,
        "Period over which the usage of nodes and pods is averaged. The effective period is at most the longest of "
        "refresh.windows.",
    )
    aggregate_durations: tuple[model.Window, ...] | None = setting(
        None,
        WINDOWS,
        "Periods over which NodeMetrics contain mean and percentiles of nodes; each must be in refresh.windows. "
        "Default: all of refresh.windows.",
        example='["5m", "10m", "15m"]',
    )
    nodes: tuple[PolicyRule, ...] = setting(
        (),
        POLICY_RULES,
        "Rules with other values of the three settings above for some nodes, selected by name patterns, labels or "
        "both; the first rule that matches a node applies.",
        example='[{ names = ["gpu-*"], labels = { pool = "gpu" }, report_interval = "30s" }]',
    )
    publish: bool = setting(
        False,
        values.BOOLEAN,
        "Write NodeMetrics to the cluster, for koord-scheduler. "
        "docs/concepts/koordinator.md lists the permissions. Nodes "
        "that are reported by a koordlet are skipped.",
    )
    writes_per_second: int = setting(
        18,
        values.integer(lowest=1, highest=1000),
        "Most write requests for NodeMetrics per second; in large clusters each object is then written less often "
        "than once per report interval. 18 keep 2,160 nodes within koord-scheduler's expiration of 180 s.",
    )
    thresholds: bool = setting(
        False,
        values.BOOLEAN,
        "Write the annotation scheduling.koordinator.sh/usage-thresholds to nodes, from their forecasts, for "
        "koord-scheduler. docs/concepts/koordinator.md has the rule and the permissions.",
    )
    lowest_cpu_threshold: int = setting(
        50, PERCENT, "CPU threshold in percent that koordinator.thresholds writes at the peak of a node's load."
    )
    highest_cpu_threshold: int = setting(
        65, PERCENT, "CPU threshold in percent of nodes without load, and the limit in the valley of a node's load."
    )
    lowest_memory_threshold: int = setting(
        85, PERCENT, "Memory threshold in percent that koordinator.thresholds writes at the peak of a node's load."
    )
    highest_memory_threshold: int = setting(
        95, PERCENT, "Memory threshold in percent of nodes without load, and the limit in the valley of a node's load."
    )
    lease_namespace: str | None = setting(
        None,
        values.TEXT,
        "Namespace of the Leases load-watcher-nodemetrics and load-watcher-thresholds, with which the replicas elect "
        "the writers. Default: the namespace of this pod, or else default.",
        example='"load-watcher"',
    )


@dataclass(frozen=True, repr=False)
class LogSettings(SettingsTable):
    """Level and format of the log, which is written to standard error."""

    level: str = setting(
        "info",
        LEVEL,
        "Lowest level of messages to log. Aliases: trace for debug, warn, and fatal or panic for critical.",
        flag="--log-level",
    )
    format: str = setting(
        "text",
        values.choice(("text", "json")),
        "text: readable lines. json: one JSON object per line, for log collectors.",
        flag="--log-format",
    )
