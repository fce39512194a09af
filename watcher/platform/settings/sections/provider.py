"""Settings of the source of samples: [provider] with its queries, and [kubernetes]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watcher import model
from watcher.core.queries.influxdb import DIALECTS
from watcher.core.queries.matchers import Matcher
from watcher.platform.settings import addresses, quantities, values
from watcher.platform.settings.field_metadata import SettingsTable, required, setting
from watcher.platform.settings.matchers import MATCHERS
from watcher.platform.settings.model_values import TYPES
from watcher.platform.settings.quantities import HOUR
from watcher.platform.settings.values import Secret


@dataclass(frozen=True, repr=False)
class QuerySettings(SettingsTable):
    """The query of a provider for one metric, in place of the query that the provider would choose."""

    expression: str = required(
        values.TEXT, "The query, in the provider's query language.", example='"instance:node_cpu:ratio"'
    )
    unit: str = required(values.choice(model.SOURCE_UNITS), "Unit of the query's values.", example='"ratio"')
    node_label: str | None = setting(
        None, values.TEXT, "Label with the node name. Default: provider.node_label.", example='"instance"'
    )
    smoothing: float = setting(
        0.0,
        quantities.duration(highest=HOUR),
        "Averaging period of the expression (5m for rate[5m]). Averaging lowers the deviations.",
    )
    guard: str | None = setting(
        None,
        values.TEXT,
        "Selector of a raw series whose samples show that the node's exporter is alive. Default: none is queried.",
        example="'node_cpu_seconds_total{mode=\"idle\"}'",
    )


@dataclass(frozen=True, repr=False)
class ProviderSettings(SettingsTable):
    """The source of samples. `reason` is why this provider was chosen."""

    name: str = setting(
        "host",
        values.TEXT,
        "Type of the source: host (the load of this machine), metrics-server, prometheus, influxdb, datadog, "
        "replay, or a provider of another package. Default: metrics-server inside a cluster "
        "(KUBERNETES_SERVICE_HOST is set), otherwise host.",
        example='"prometheus"',
        flag="--provider",
    )
    reason: str = ""
    address: str | None = setting(
        None,
        addresses.ADDRESS,
        "URL of the source. A user and password in it are used as username and password.",
        example='"http://prometheus.monitoring:9090"',
        flag="--address",
    )
    token: Secret | None = setting(None, values.SECRET, "Bearer token to send. Prefer token_file.", example='"…"')
    token_file: Path | None = setting(
        None,
        values.PATH,
        "File with the bearer token to send.",
        example='"/var/run/secrets/kubernetes.io/serviceaccount/token"',
    )
    username: str | None = setting(
        None, values.TEXT, "User for basic authentication; needs password or password_file.", example='"load-watcher"'
    )
    password: Secret | None = setting(None, values.SECRET, "Password of username. Prefer password_file.", example='"…"')
    password_file: Path | None = setting(
        None, values.PATH, "File with the password of username.", example='"/etc/load-watcher/password"'
    )
    ca_file: Path | None = setting(
        None,
        values.PATH,
        "CA certificates (PEM) to verify the source's certificate. Default: the system's CA certificates.",
        example='"/etc/load-watcher/prometheus-ca.crt"',
    )
    client_cert: Path | None = setting(
        None,
        values.PATH,
        "Client certificate (PEM) for the source, with its private key in client_key or in the same file.",
        example='"/etc/load-watcher/client.crt"',
    )
    client_key: Path | None = setting(
        None, values.PATH, "Private key (PEM) of client_cert.", example='"/etc/load-watcher/client.key"'
    )
    insecure_skip_verify: bool = setting(
        False, values.BOOLEAN, "Accept any certificate of the source. Insecure: the connection can be intercepted."
    )
    headers: Mapping[str, Secret] = setting(
        {},
        addresses.HEADERS,
        "Additional HTTP headers to send, for example the tenant of Grafana Mimir.",
        example='{ "X-Scope-OrgID" = "team-a" }',
    )
    timeout: float = setting(
        10.0,
        quantities.duration(lowest=0.1, highest=600),
        "Timeout of a request; at most 0.8 of refresh.interval, the deadline of a refresh. Default: 10s, or that "
        "deadline if it is shorter.",
    )
    node_label: str | None = setting(
        None,
        values.TEXT,
        "Label with the node name. Default: the first that exists of node, kubernetes_node, nodename and instance "
        "(without port); host for InfluxDB and Datadog.",
        example='"node"',
    )
    matchers: tuple[Matcher, ...] = setting(
        (),
        MATCHERS,
        "Label matchers that select this cluster's series, if several clusters share a Prometheus, Thanos, Mimir "
        "or VictoriaMetrics. Added to every query except the expressions in provider.queries.",
        example='{ cluster = "prod-1" }',
    )
    dialect: str | None = setting(
        None,
        values.choice(DIALECTS),
        "Query language of InfluxDB. Default: influxql for 1.x and 3.x; for 2.x flux if bucket is set, otherwise "
        "influxql.",
        example='"influxql"',
    )
    database: str | None = setting(
        None,
        values.TEXT,
        "Database of InfluxDB, for influxql. Default: bucket, or else telegraf.",
        example='"telegraf"',
    )
    bucket: str | None = setting(None, values.TEXT, "Bucket of InfluxDB, for flux; needs org.", example='"telegraf"')
    org: str | None = setting(
        None, values.TEXT, "Name of the InfluxDB organization that owns the bucket.", example='"example"'
    )
    metrics: tuple[str, ...] = setting(
        ("CPU", "Memory", "Storage", "Bandwidth"), TYPES, "Metrics to fetch: metric types, or keys of single metrics."
    )
    queries: Mapping[str, QuerySettings] = field(default_factory=dict)
    trace: Path | None = setting(
        None,
        values.PATH,
        "Recording for the provider replay: a trace, or an SQLite database of a load-watcher.",
        example='"trace.csv.gz"',
        flag="--trace",
    )
    speed: float = setting(
        1.0,
        values.number(lowest=0.01, highest=1440),
        "Speed of the provider replay, as a multiple of real time. Samples get current timestamps.",
        flag="--speed",
    )
    at_end: str = setting(
        "loop",
        values.choice(("loop", "stop")),
        "What replay does at the end of the recording. loop: start again. stop: return no more samples, so that "
        "the load becomes stale.",
    )
    openshift_auth: bool = setting(
        False,
        values.BOOLEAN,
        "Verify the source's certificate with the CA certificates that OpenShift mounts for service accounts. Not "
        "used if ca_file is set.",
    )
    app_key: Secret | None = setting(
        None, values.SECRET, "Application key for Datadog. Prefer app_key_file.", example='"…"'
    )
    app_key_file: Path | None = setting(
        None, values.PATH, "File with the application key for Datadog.", example='"/etc/load-watcher/datadog-app-key"'
    )
    kubeconfig: Path | None = setting(
        None,
        values.PATH,
        "Kubeconfig of the cluster, if kubernetes.kubeconfig is not set. Default: the pod's service account.",
        example='"/etc/load-watcher/kubeconfig"',
    )
    host_name_suffix: str | None = setting(
        None,
        values.TEXT,
        "Suffix of the host names to query, for Datadog. Its domain is removed from the node names.",
        example='".example.com"',
    )
    cluster_name: str | None = setting(
        None, values.TEXT, "Name of the cluster to query, for Datadog.", example='"production"'
    )

    @property
    def wanted(self) -> tuple[model.Metric, ...]:
        """The metrics that `metrics` selects, in the order of `model.METRICS`."""
        named = set(self.metrics)
        return tuple(each for each in model.METRICS if each.key in named or each.type.value in named)
