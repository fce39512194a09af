"""Names and namespace of the leases that elect the replicas that publish NodeMetrics and usage thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.platform.kube.credentials import own_namespace

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

LEASE = "load-watcher-nodemetrics"
THRESHOLDS_LEASE = "load-watcher-thresholds"


def lease_namespace(settings: Settings) -> str:
    """Return the namespace of the Leases: the configured one, that of this pod, or "default"."""
    return settings.koordinator.lease_namespace or own_namespace() or "default"
