"""Configuration of a provider for a cloud monitoring service, and the node name of a configured host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from watcher.model import METRIC_BY_KEY, SOURCE_UNITS, Metric
from watcher.sources.queries import ProviderConfig, QueryConfig, check_keys, wanted

HOST = "host"
"""Name of the tag that contains the host name."""


@dataclass(frozen=True, kw_only=True)
class CloudConfig(ProviderConfig):
    """Configuration of a provider. Raises ValueError, naming the setting, for invalid values."""

    node_label: str = HOST
    host_name_suffix: str = ""
    cluster_name: str = ""
    metrics: tuple[str, ...] = ("CPU", "Memory")
    """Keys of the metrics to fetch."""
    queries: Mapping[str, QueryConfig] = field(default_factory=dict)
    """Configured queries by metric key. A metric with a query is fetched."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError("provider.address must have the form https://api.example.com, without a query")
        if "@" in parts.netloc:
            raise ValueError("provider.address must not contain credentials; use provider.token")
        check_keys((*self.metrics, *self.queries))
        for key, query in self.queries.items():
            if SOURCE_UNITS.get(query.unit, ("",))[0] is not METRIC_BY_KEY[key].unit:
                raise ValueError(
                    f"provider.queries.{key}.unit: {query.unit} cannot be converted to {METRIC_BY_KEY[key].unit}"
                )

    def wanted(self) -> tuple[Metric, ...]:
        """Metrics to fetch, in the order of model.METRICS."""
        return wanted(self.metrics, self.queries)


def node_of(host: str, *, suffix: str) -> str:
    """Node name of a host: the host name without the domain labels that are covered by the configured suffix.

    With the suffix ".dev.example", the host "a.dev.example" is the node "a", and "a.b.dev.example" is "a.b". Without a
    suffix, the name is unchanged, because nodes may be named by their fully qualified domain names. (The Go
    load-watcher truncates every name at its first dot.)
    """
    if not suffix or not host.endswith(suffix):
        return host
    at = len(host) - len(suffix)
    dot = at - 1 if host[at - 1 : at] == "." else host.find(".", at)
    return host[:dot] if dot > 0 else host
