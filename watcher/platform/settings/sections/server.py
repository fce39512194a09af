"""What is served, to whom and under which name: [cluster], [server], [metrics], [koordinator] and [log]."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from watcher import model
from watcher.core.koordinator.collect_policy import PolicyRule
from watcher.platform.settings import values
from watcher.platform.settings.declaring import Table, about
from watcher.platform.settings.model_values import LEVEL, OPERATORS, TYPES_ONLY, WINDOW_LABELS, WINDOWS
from watcher.platform.settings.policy_rules import AGGREGATE_DURATION, POLICY_RULES, REPORT_INTERVAL


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
class MetricsSettings(Table):
    """What /metrics shows of the nodes. Each type, operator and window multiplies the series that Prometheus stores."""

    types: tuple[str, ...] = field(
        default=("CPU", "Memory"), metadata=about(TYPES_ONLY, "Metric types that /metrics shows.")
    )
    operators: tuple[str, ...] = field(
        default=("AVG", "STD"), metadata=about(OPERATORS, "Operators that /metrics shows.")
    )
    windows: tuple[str, ...] = field(
        default=("15m",), metadata=about(WINDOW_LABELS, "Windows that /metrics shows; each one of refresh.windows.")
    )


@dataclass(frozen=True, repr=False)
class KoordinatorSettings(Table):
    """The collect policy of NodeMetrics, as served and as LoadAwareScheduling has them from us; koordlet's defaults."""

    report_interval: int = field(
        default=60,
        metadata=about(
            REPORT_INTERVAL,
            "How often NodeMetrics are made anew; at least refresh.interval, whatever stands here.",
        ),
    )
    aggregate_duration: int = field(
        default=300,
        metadata=about(
            AGGREGATE_DURATION,
            "Over how long the usage of nodes and pods is averaged; at most the longest of refresh.windows, whatever "
            "stands here.",
        ),
    )
    aggregate_durations: tuple[model.Window, ...] | None = field(
        default=None,
        metadata=about(
            WINDOWS,
            "Over how long NodeMetrics have mean and percentiles of nodes, each one of refresh.windows. Not set: all "
            "of these.",
            example='["5m", "10m", "15m"]',
        ),
    )
    nodes: tuple[PolicyRule, ...] = field(
        default=(),
        metadata=about(
            POLICY_RULES,
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
