"""Where samples come from: [provider], with what is asked for each metric, and how the Kubernetes API is reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watcher import model
from watcher.core.queries.influxdb import DIALECTS
from watcher.core.queries.matchers import Matcher
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.declaring import Table, about
from watcher.platform.settings.matchers import MATCHERS
from watcher.platform.settings.model_values import TYPES
from watcher.platform.settings.quantities import HOUR
from watcher.platform.settings.values import Secret


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
            quantities.duration(highest=HOUR),
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
            addresses.ADDRESS,
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
            addresses.HEADERS,
            "Further headers to send, the tenant of a Mimir for instance.",
            example='{ "X-Scope-OrgID" = "team-a" }',
        ),
    )
    timeout: float = field(
        default=10.0,
        metadata=about(
            quantities.duration(lowest=0.1, highest=600),
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
            MATCHERS,
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
        metadata=about(TYPES, "What to ask for: metric types, or single metrics by key."),
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
