"""The names of the providers and the functions that build them."""

from __future__ import annotations

from collections.abc import Mapping

from watcher.platform import entry_points

ENTRY_POINT_GROUP = "load_watcher.providers"
# provider.name -> "module:function" that builds the provider from the settings
PROVIDERS: Mapping[str, str] = {
    "host": "watcher.providers.host:from_settings",
    "prometheus": "watcher.providers.prometheus.provider:from_settings",
    "influxdb": "watcher.providers.influxdb.provider:from_settings",
    "datadog": "watcher.providers.cloud.datadog:from_settings",
    "signalfx": "watcher.providers.cloud.signalfx:from_settings",
    "metrics-server": "watcher.providers.metrics_server.provider:from_settings",
    "replay": "watcher.providers.replay:from_settings",
}


def known_names() -> tuple[str, ...]:
    """Provider names that this installation can build, sorted."""
    return tuple(sorted({*PROVIDERS, *entry_points.names(ENTRY_POINT_GROUP)}))
