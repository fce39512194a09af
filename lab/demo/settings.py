"""Settings and start messages of `load-watcher demo`, which runs the service on a simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.fleet.cluster import SimulatedCluster
from watcher.agent_clients.settings import AgentsSettings
from watcher.core.config.quantities import DAY, write_duration
from watcher.core.config.settings import Settings
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.kube.settings import KubernetesSettings
from watcher.sources.settings import ProviderSettings
from watcher.store.settings import StoreSettings

PROVIDER = "demo"
INTERVAL_S = 15.0
FORCED = {"provider.name": "host", "koordinator.publish": "false", "koordinator.thresholds": "false"}
"""Settings that are forced while reading, by key: the configured source is not used, so its requirements need not be
met, and a simulated cluster must not be published to a real cluster."""


def adapted(settings: Settings, *, store: Path) -> Settings:
    """Return the settings of a demo: serving and review as the user set them, external systems reset to defaults.
    The database is the file `store` unless a flag sets one, because a database from the settings file or the
    environment may be a production database."""
    refresh, origins = settings[RefreshSettings], settings.origins
    if origins.get("refresh.interval") == "default":
        refresh = replace(refresh, interval=max(INTERVAL_S, float(refresh.point_resolution)))
    if origins.get("refresh.pods") == "default":
        refresh = replace(refresh, pods="on")  # pods of a simulated cluster cost nothing
    kept = settings[StoreSettings]
    if not origins.get("store.url", "").startswith("flag"):
        kept = replace(kept, url=f"sqlite:///{store}", password_file=None, watcher_id=None)
    provider = ProviderSettings(name=PROVIDER, reason="simulated cluster of load-watcher demo")
    notices = tuple(each for each in settings.notices if not each.startswith("provider."))
    return replace(settings, notices=notices).having(provider, KubernetesSettings(), AgentsSettings(), refresh, kept)


def banner_lines(cluster: SimulatedCluster) -> list[str]:
    """Return the lines that describe a simulated cluster at start."""
    nodes, pods, speed = len(cluster.nodes), len(cluster.pods()), cluster.fleet.pattern.speed
    day = write_duration(round(DAY / speed))
    return [
        f"simulated cluster, all data is generated: {nodes} node{'s' if nodes > 1 else ''}, {pods} pods; "
        f"a simulated day takes {day}",
        *cluster.fleet.faults.descriptions(),
    ]
