"""The names of the providers and the functions that build them."""

from __future__ import annotations

from collections.abc import Mapping

from watcher.platform import entry_points

ENTRY_POINT_GROUP = "load_watcher.providers"
# provider.name -> "module:function" that builds the provider from the settings
PROVIDERS: Mapping[str, str] = {
    "host": "watcher.sources.host:from_settings",
    "prometheus": "watcher.sources.prometheus.provider:from_settings",
    "influxdb": "watcher.sources.influxdb.provider:from_settings",
    "metrics-server": "watcher.sources.metrics_server.provider:from_settings",
}
# provider.name -> the directory of the package that has the provider
EXAMPLES: Mapping[str, str] = {"datadog": "examples/cloud"}
# former provider.name -> what to use instead
REMOVED: Mapping[str, str] = {
    "signalfx": "use metrics-server, prometheus or influxdb, or a source in a package (docs/learn/own-source.md)"
}


def known_names() -> tuple[str, ...]:
    """Provider names that this installation can build, sorted."""
    return tuple(sorted({*PROVIDERS, *entry_points.names(ENTRY_POINT_GROUP)}))
