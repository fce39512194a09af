"""Names and namespace of the leases that elect the replicas that publish NodeMetrics and usage thresholds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watcher.koordinator.settings import KoordinatorSettings
from watcher.platform.kube.credentials import own_namespace

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings

LEASE = "load-watcher-nodemetrics"
THRESHOLDS_LEASE = "load-watcher-thresholds"


def lease_namespace(settings: Settings) -> str:
    """Return the namespace of the Leases: the configured one, that of this pod, or "default"."""
    return settings[KoordinatorSettings].lease_namespace or own_namespace() or "default"
