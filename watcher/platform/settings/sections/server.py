"""Settings of the API and of other output: [cluster], [server], [metrics], [koordinator] and [log]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher import model
from watcher.core.config import values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import LEVEL, OPERATORS, TYPES_ONLY, WINDOW_LABELS, WINDOWS
from watcher.core.config.policy_rules import AGGREGATE_DURATION, POLICY_RULES, REPORT_INTERVAL
from watcher.core.koordinator.collect_policy import PolicyRule

PERCENT = values.integer(lowest=1, highest=100)


@dataclass(frozen=True, repr=False)
class ClusterSettings(SettingsTable):
    """The cluster of this service, to distinguish several clusters that share a source, a database, logs or metrics."""

    name: Annotated[str | None, values.NAME.like('"prod-1"')] = None
    """Name of the cluster, included in JSON logs and on /metrics (load_watcher_cluster_info). Stored samples of another
    cluster are not loaded. It does not select series; for that, set provider.matchers."""


@dataclass(frozen=True, repr=False)
class ServerSettings(SettingsTable):
    """The address, TLS and authentication of the HTTP API."""

    host: Annotated[str, values.TEXT.flagged("--host")] = "127.0.0.1"
    """Address to listen on; :: serves IPv4 as well. It is the default of the container image."""
    port: Annotated[int, values.integer(lowest=0, highest=65535).flagged("--port")] = 2020
    """Port to listen on; 0 selects a free port."""
    hosts: Annotated[
        tuple[str, ...] | None,
        values.list_of(values.NAME, called="host names", may_be_empty=True).like('["load-watcher.example.org"]'),
    ] = None
    """Further host names under which clients reach the service while server.host is a loopback address, for example
    through a proxy on the same machine. Requests with other names in the Host header are refused; IP addresses and
    localhost are always accepted."""
    tls_cert: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/tls/tls.crt"')] = None
    """Server certificate for HTTPS (PEM, with its chain); needs tls_key."""
    tls_key: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/tls/tls.key"')] = None
    """Private key (PEM) of tls_cert."""
    tls_client_ca: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/tls/clients.crt"')] = None
    """CA certificates (PEM) to verify client certificates. These are optional; a verified one replaces the token for
    reads. Needs tls_cert."""
    token_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/token"')] = None
    """File with the bearer token for requests that change state or read details (decisions, pods, pages of agents);
    with protect_reads, for all reads."""
    protect_reads: Annotated[bool, values.BOOLEAN] = False
    """Whether reads need the token of token_file as well."""
    scheduler_clients: Annotated[
        tuple[str, ...],
        values.list_of(values.NAME, called="certificate names", may_be_empty=True).like('["system:kube-scheduler"]'),
    ] = ()
    """Names of the client certificates that may send filter, prioritize and bind to the extender: common name of the
    subject, or DNS name. All other requests to these paths are refused, also from loopback. Empty: filter and
    prioritize are open to every client. Needs tls_client_ca."""


@dataclass(frozen=True, repr=False)
class MetricsSettings(SettingsTable):
    """Node metrics on /metrics. Each type, operator and window multiplies the number of series in Prometheus."""

    types: Annotated[tuple[str, ...], TYPES_ONLY] = ("CPU", "Memory")
    """Metric types of the nodes' series on /metrics."""
    operators: Annotated[tuple[str, ...], OPERATORS] = ("AVG", "STD")
    """Operators of the nodes' series on /metrics."""
    windows: Annotated[tuple[str, ...], WINDOW_LABELS] = ("15m",)
    """Windows of the nodes' series on /metrics; each must be in refresh.windows."""


@dataclass(frozen=True, repr=False)
class KoordinatorSettings(SettingsTable):
    """The collect policy of the NodeMetrics that the API serves and the plug-in LoadAwareScheduling uses, with
    koordlet's defaults."""

    report_interval: Annotated[int, REPORT_INTERVAL] = 60
    """Interval at which NodeMetrics are updated. The effective interval is at least refresh.interval."""
    aggregate_duration: Annotated[int, AGGREGATE_DURATION] = 300
    """Period over which the usage of nodes and pods is averaged. The effective period is at most the longest of
    refresh.windows."""
    aggregate_durations: Annotated[tuple[model.Window, ...] | None, WINDOWS.like('["5m", "10m", "15m"]')] = None
    """Periods over which NodeMetrics contain mean and percentiles of nodes; each must be in refresh.windows. Default:
    all of refresh.windows."""
    nodes: Annotated[
        tuple[PolicyRule, ...],
        POLICY_RULES.like('[{ names = ["gpu-*"], labels = { pool = "gpu" }, report_interval = "30s" }]'),
    ] = ()
    """Rules with other values of the three settings above for some nodes, selected by name patterns, labels or both;
    the first rule that matches a node applies."""
    publish: Annotated[bool, values.BOOLEAN] = False
    """Write NodeMetrics to the cluster, for koord-scheduler. docs/concepts/koordinator.md lists the permissions. Nodes
    that are reported by a koordlet are skipped."""
    writes_per_second: Annotated[int, values.integer(lowest=1, highest=1000)] = 18
    """Most write requests for NodeMetrics per second; in large clusters each object is then written less often than
    once per report interval. 18 keep 2,160 nodes within koord-scheduler's expiration of 180 s."""
    thresholds: Annotated[bool, values.BOOLEAN] = False
    """Write the annotation scheduling.koordinator.sh/usage-thresholds to nodes, from their forecasts, for
    koord-scheduler. docs/concepts/koordinator.md has the rule and the permissions."""
    lowest_cpu_threshold: Annotated[int, PERCENT] = 50
    """CPU threshold in percent that koordinator.thresholds writes at the peak of a node's load."""
    highest_cpu_threshold: Annotated[int, PERCENT] = 65
    """CPU threshold in percent of nodes without load, and the limit in the valley of a node's load."""
    lowest_memory_threshold: Annotated[int, PERCENT] = 85
    """Memory threshold in percent that koordinator.thresholds writes at the peak of a node's load."""
    highest_memory_threshold: Annotated[int, PERCENT] = 95
    """Memory threshold in percent of nodes without load, and the limit in the valley of a node's load."""
    lease_namespace: Annotated[str | None, values.TEXT.like('"load-watcher"')] = None
    """Namespace of the Leases load-watcher-nodemetrics and load-watcher-thresholds, with which the replicas elect the
    writers. Default: the namespace of this pod, or else default."""


@dataclass(frozen=True, repr=False)
class LogSettings(SettingsTable):
    """Level and format of the log, which is written to standard error."""

    level: Annotated[str, LEVEL.flagged("--log-level")] = "info"
    """Lowest level of messages to log. Aliases: trace for debug, warn, and fatal or panic for critical."""
    format: Annotated[str, values.choice(("text", "json")).flagged("--log-format")] = "text"
    """text: readable lines. json: one JSON object per line, for log collectors."""
