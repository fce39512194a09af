"""Every setting there is: its name, type, default, meaning, and the kind of value that it takes.

One declaration of a setting is all there is about it. The parsing of the TOML file, the names and the parsing of the
environment, `config show`, docs/settings.md and load-watcher.example.toml are all made from these tables, so a new
setting is one field in one of the *_tables.py, and none can be forgotten in one of those places.

Durations are float seconds, sizes int bytes. None means "not set", and the meaning says what then holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from watcher import model
from watcher.platform.settings import addresses
from watcher.platform.settings.declaring import Setting, Table, setting_of, settings_fields
from watcher.platform.settings.sections.kubernetes import KubernetesSettings
from watcher.platform.settings.sections.peers import AgentsSettings, DashboardSettings, PeersSettings
from watcher.platform.settings.sections.provider import ProviderSettings, QuerySettings
from watcher.platform.settings.sections.samples import RefreshSettings, ReviewSettings, StoreSettings
from watcher.platform.settings.sections.server import (
    ClusterSettings,
    KoordinatorSettings,
    LogSettings,
    MetricsSettings,
    ServerSettings,
)

TABLES: Mapping[str, type[Table]] = {
    "cluster": ClusterSettings,
    "server": ServerSettings,
    "provider": ProviderSettings,
    "kubernetes": KubernetesSettings,
    "refresh": RefreshSettings,
    "review": ReviewSettings,
    "store": StoreSettings,
    "peers": PeersSettings,
    "agents": AgentsSettings,
    "dashboard": DashboardSettings,
    "metrics": MetricsSettings,
    "koordinator": KoordinatorSettings,
    "log": LogSettings,
}
PARTS = ("scheduler", "agent", "qrm")


@dataclass(frozen=True)
class Settings:
    """All settings of the service.

    `parts` holds the tables of the other packages as they stand in the file, checked by their own validators.
    `origins` says of every key ("refresh.interval") where its value is from: "flag --interval", "environment NAME",
    "file PATH" or "default", with the reason behind it where the default is not the table's. `notices` are worth a
    line in the log.
    """

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    provider: ProviderSettings = field(default_factory=ProviderSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    refresh: RefreshSettings = field(default_factory=RefreshSettings)
    review: ReviewSettings = field(default_factory=ReviewSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    peers: PeersSettings = field(default_factory=PeersSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    dashboard: DashboardSettings = field(default_factory=DashboardSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    koordinator: KoordinatorSettings = field(default_factory=KoordinatorSettings)
    log: LogSettings = field(default_factory=LogSettings)
    parts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may hold secrets that only their part knows
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    notices: tuple[str, ...] = ()

    @property
    def watcher(self) -> str:
        """Whose rows are ours in the database: the cluster's name, if it has one, and the watcher's. A file has one
        watcher, who needs no name."""
        if not addresses.is_server(self.store.url):
            return ""
        return "/".join(name for name in (self.cluster.name, self.store.watcher_id) if name)

    @property
    def kubeconfig(self) -> Path | None:
        """The kubeconfig that says which cluster; None for the one that this pod runs in."""
        return self.kubernetes.kubeconfig or self.provider.kubeconfig

    @property
    def way_to_cluster(self) -> tuple[Path | None, str | None]:
        """That kubeconfig, and which of its contexts."""
        return self.kubeconfig, self.kubernetes.context


# --- the keys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """One setting by its full name: "refresh.interval", "provider.queries.CPU.unit"."""

    table: tuple[str, ...]
    of: Field[Any]

    @cached_property
    def name(self) -> str:
        """The name in files, in `--set` and in problems."""
        return ".".join((*self.table, self.of.name))

    @property
    def environment(self) -> str:
        """The name in the environment."""
        return "LOAD_WATCHER_" + self.name.replace(".", "_").upper()

    @property
    def setting(self) -> Setting:
        """What its table says of it."""
        return setting_of(self.of)

    @property
    def default(self) -> Any:
        """Its default; MISSING where it must be given."""
        return self.of.default if self.of.default_factory is MISSING else self.of.default_factory()

    @property
    def example(self) -> str:
        """A value for it, as TOML."""
        return self.setting.example or self.setting.kind.write(self.default)


QUERIES = ("provider", "queries")


def _keys() -> Iterator[Key]:
    for name, table in TABLES.items():
        yield from (Key((name,), each) for each in settings_fields(table))
    for metric in model.METRICS:
        yield from (Key((*QUERIES, metric.key), each) for each in settings_fields(QuerySettings))


KEYS: Mapping[str, Key] = {key.name: key for key in _keys()}
