"""Settings of the source of samples: [provider] with its queries, and [kubernetes]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from watcher import model
from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.model_values import TYPES
from watcher.core.config.quantities import HOUR
from watcher.core.config.values import Secret
from watcher.core.queries.influxdb import DIALECTS
from watcher.core.queries.matchers import Matcher
from watcher.sources.config import ConnectionSettings
from watcher.sources.matchers import MATCHERS

_OPENSHIFT_AUTHORITIES = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


@dataclass(frozen=True, repr=False)
class QuerySettings(SettingsTable):
    """The query of a provider for one metric, in place of the query that the provider would choose."""

    expression: Annotated[str, values.TEXT.like('"instance:node_cpu:ratio"')]
    """The query, in the provider's query language."""
    unit: Annotated[str, values.choice(model.SOURCE_UNITS).like('"ratio"')]
    """Unit of the query's values."""
    node_label: Annotated[str | None, values.TEXT.like('"instance"')] = None
    """Label with the node name. Default: provider.node_label."""
    smoothing: Annotated[float, quantities.duration(highest=HOUR)] = 0.0
    """Averaging period of the expression (5m for rate[5m]). Averaging lowers the deviations."""
    guard: Annotated[str | None, values.TEXT.like("'node_cpu_seconds_total{mode=\"idle\"}'")] = None
    """Selector of a raw series whose samples show that the node's exporter is alive. Default: none is queried."""


@dataclass(frozen=True, repr=False, kw_only=True)
class ProviderName(SettingsTable):
    """The type of the source. `reason` is why it was chosen."""

    name: Annotated[str, values.TEXT.like('"prometheus"').flagged("--provider")] = "host"
    """Type of the source: host (the load of this machine), metrics-server, prometheus, influxdb, datadog, replay, or a
    provider of another package. Default: metrics-server inside a cluster (KUBERNETES_SERVICE_HOST is set), otherwise
    host."""
    reason: str = ""


@dataclass(frozen=True, repr=False, kw_only=True)
class ProviderSettings(ConnectionSettings, ProviderName, section="provider"):
    """The source of samples. `reason` is why this provider was chosen."""

    node_label: Annotated[str | None, values.TEXT.like('"node"')] = None
    """Label with the node name. Default: the first that exists of node, kubernetes_node, nodename and instance (without
    port); host for InfluxDB and Datadog."""
    matchers: Annotated[tuple[Matcher, ...], MATCHERS.like('{ cluster = "prod-1" }')] = ()
    """Label matchers that select this cluster's series, if several clusters share a Prometheus, Thanos, Mimir or
    VictoriaMetrics. Added to every query except the expressions in provider.queries."""
    dialect: Annotated[str | None, values.choice(DIALECTS).like('"influxql"')] = None
    """Query language of InfluxDB. Default: influxql for 1.x and 3.x; for 2.x flux if bucket is set, otherwise
    influxql."""
    database: Annotated[str | None, values.TEXT.like('"telegraf"')] = None
    """Database of InfluxDB, for influxql. Default: bucket, or else telegraf."""
    bucket: Annotated[str | None, values.TEXT.like('"telegraf"')] = None
    """Bucket of InfluxDB, for flux; needs org."""
    org: Annotated[str | None, values.TEXT.like('"example"')] = None
    """Name of the InfluxDB organization that owns the bucket."""
    # Many clusters have no exporter for energy and GPUs or a kernel without pressure, and searching for their series
    # costs queries.
    metrics: Annotated[tuple[str, ...], TYPES] = ("CPU", "Memory", "Storage", "Bandwidth")
    """Metrics to fetch: metric types, or keys of single metrics."""
    queries: Mapping[str, QuerySettings] = field(default_factory=dict)
    trace: Annotated[Path | None, values.PATH.like('"trace.csv.gz"').flagged("--trace")] = None
    """Recording for the provider replay: a trace, or an SQLite database of a load-watcher."""
    speed: Annotated[float, values.number(lowest=0.01, highest=1440).flagged("--speed")] = 1.0
    """Speed of the provider replay, as a multiple of real time. Samples get current timestamps."""
    at_end: Annotated[str, values.choice(("loop", "stop"))] = "loop"
    """What replay does at the end of the recording. loop: start again. stop: return no more samples, so that the load
    becomes stale."""
    openshift_auth: Annotated[bool, values.BOOLEAN] = False
    """Verify the source's certificate with the CA certificates that OpenShift mounts for service accounts. Not used if
    ca_file is set."""
    app_key: Annotated[Secret | None, values.SECRET.like('"…"')] = None
    """Application key for Datadog. Prefer app_key_file."""
    app_key_file: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/datadog-app-key"')] = None
    """File with the application key for Datadog."""
    kubeconfig: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/kubeconfig"')] = None
    """Kubeconfig of the cluster, if kubernetes.kubeconfig is not set. Default: the pod's service account."""
    host_name_suffix: Annotated[str | None, values.TEXT.like('".example.com"')] = None
    """Suffix of the host names to query, for Datadog. Its domain is removed from the node names."""
    cluster_name: Annotated[str | None, values.TEXT.like('"production"')] = None
    """Name of the cluster to query, for Datadog."""

    @property
    def authorities(self) -> Path | None:
        """CA certificates (PEM) to verify the source's certificate; None for those of the system."""
        openshift = self.openshift_auth and self.name == "prometheus"
        return self.ca_file or (_OPENSHIFT_AUTHORITIES if openshift else None)

    @property
    def wanted(self) -> tuple[model.Metric, ...]:
        """The metrics that `metrics` selects, in the order of `model.METRICS`."""
        named = set(self.metrics)
        return tuple(each for each in model.METRICS if each.key in named or each.type.value in named)
