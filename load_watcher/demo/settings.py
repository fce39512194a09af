"""What `load-watcher demo` is beside the service itself: its settings, and what it says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from watcher.fleet.cluster import SimulatedCluster
from watcher.platform.settings.quantities import DAY, write_duration
from watcher.platform.settings.sections.kubernetes import KubernetesSettings
from watcher.platform.settings.sections.peers import AgentsSettings, PeersSettings
from watcher.platform.settings.sections.provider import ProviderSettings
from watcher.platform.settings.tables import Settings

PROVIDER = "demo"
INTERVAL_S = 15.0
FORCED = {"provider.name": "host", "koordinator.publish": "false"}
"""What settings are read with, by key: which real source they name plays no part, so none of its needs must be met, and
nothing of a simulated cluster is written to a real one."""


def adapted(settings: Settings, *, store: Path) -> Settings:
    """The settings of a demo: of how it is served and judged what the user set; of the outside world nothing. The
    database is the file `store`, but where a flag names one: what a file or the environment names may be a real one.
    """
    refresh, origins = settings.refresh, settings.origins
    if origins.get("refresh.interval") == "default":
        refresh = replace(refresh, interval=max(INTERVAL_S, float(refresh.resolution)))
    if origins.get("refresh.pods") == "default":
        refresh = replace(refresh, pods="on")  # they cost nothing here
    kept = settings.store
    if not origins.get("store.url", "").startswith("flag"):
        kept = replace(kept, url=f"sqlite:///{store}", password_file=None, watcher_id=None)
    return replace(
        settings,
        provider=ProviderSettings(name=PROVIDER, reason="a simulated cluster, nothing here is real"),
        kubernetes=KubernetesSettings(),
        peers=PeersSettings(),
        agents=AgentsSettings(),
        refresh=refresh,
        store=kept,
        notices=tuple(each for each in settings.notices if not each.startswith("provider.")),
    )


def told(cluster: SimulatedCluster) -> list[str]:
    """What to say of a simulated cluster, line by line."""
    nodes, pods, speed = len(cluster.nodes), len(cluster.pods()), cluster.fleet.pattern.speed
    day = write_duration(round(DAY / speed))
    return [
        f"a simulated cluster, nothing here is real: {nodes} node{'s' if nodes > 1 else ''}, {pods} pods, "
        f"a day passes in {day}",
        *cluster.fleet.faults.told(),
    ]
