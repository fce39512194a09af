"""All settings: name, type, default, meaning and kind of value.

Each setting is declared once. The parsing of the TOML file, the names and the parsing of environment variables,
`config show`, docs/reference/settings.md and load-watcher.example.toml are derived from these tables, so a new setting
needs only a field in its section (the folder `sections`).

Durations are float seconds, sizes int bytes. None means "not set"; the meaning then describes the default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from watcher import model
from watcher.platform.settings import addresses
from watcher.platform.settings.field_metadata import Setting, SettingsTable, setting_of, settings_fields
from watcher.platform.settings.sections.forecast import ForecastSettings
from watcher.platform.settings.sections.kubernetes import KubernetesSettings
from watcher.platform.settings.sections.peers import AgentsSettings, ExtenderSettings, QrmsSettings
from watcher.platform.settings.sections.provider import ProviderSettings, QuerySettings
from watcher.platform.settings.sections.samples import RefreshSettings, ReviewSettings, StoreSettings
from watcher.platform.settings.sections.server import (
    ClusterSettings,
    KoordinatorSettings,
    LogSettings,
    MetricsSettings,
    ServerSettings,
)

TABLES: Mapping[str, type[SettingsTable]] = {
    "cluster": ClusterSettings,
    "server": ServerSettings,
    "provider": ProviderSettings,
    "kubernetes": KubernetesSettings,
    "refresh": RefreshSettings,
    "review": ReviewSettings,
    "forecast": ForecastSettings,
    "store": StoreSettings,
    "agents": AgentsSettings,
    "qrms": QrmsSettings,
    "extender": ExtenderSettings,
    "metrics": MetricsSettings,
    "koordinator": KoordinatorSettings,
    "log": LogSettings,
}
PARTS = ("scheduler", "agent", "qrm")
REMOVED: Mapping[str, str] = {
    "dashboard": "use urls, pods, token_file and ca_file of [agents] and [qrms]",
    "peers": "remove it: a source with history fills the windows of a new replica, the database those after a restart",
    **{f"{name}.{key}": instead for name, table in TABLES.items() for key, instead in table.removed.items()},
}
"""Former tables and keys, each with what to use instead."""


@dataclass(frozen=True)
class Settings:
    """All settings of the service.

    `parts` holds the tables of other packages as in the file, validated by the packages. `origins` maps every key
    ("refresh.interval") to the source of its value: "flag --interval", "environment NAME", "file PATH" or "default",
    the last with a reason if the default is computed. `notices` are messages for the log.
    """

    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    provider: ProviderSettings = field(default_factory=ProviderSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    refresh: RefreshSettings = field(default_factory=RefreshSettings)
    review: ReviewSettings = field(default_factory=ReviewSettings)
    forecast: ForecastSettings = field(default_factory=ForecastSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    agents: AgentsSettings = field(default_factory=AgentsSettings)
    qrms: QrmsSettings = field(default_factory=QrmsSettings)
    extender: ExtenderSettings = field(default_factory=ExtenderSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    koordinator: KoordinatorSettings = field(default_factory=KoordinatorSettings)
    log: LogSettings = field(default_factory=LogSettings)
    parts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may contain secrets
    origins: Mapping[str, str] = field(default_factory=dict, repr=False)
    notices: tuple[str, ...] = ()

    @property
    def watcher_name(self) -> str:
        """Name that marks this process's rows in a PostgreSQL database: "[CLUSTER/]WATCHER_ID"; "" for SQLite."""
        if not addresses.is_server(self.store.url):
            return ""
        return "/".join(name for name in (self.cluster.name, self.store.watcher_id) if name)

    @property
    def kubeconfig(self) -> Path | None:
        """Path of the kubeconfig; None for the cluster that this pod runs in."""
        return self.kubernetes.kubeconfig or self.provider.kubeconfig

    @property
    def cluster_access(self) -> tuple[Path | None, str | None]:
        """The kubeconfig's path and context; None for the pod's cluster and for the current context."""
        return self.kubeconfig, self.kubernetes.context


# --- the keys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A setting with its full name: "refresh.interval", "provider.queries.CPU.unit"."""

    table: tuple[str, ...]
    field: Field[Any]

    @cached_property
    def name(self) -> str:
        """The full key, as used in TOML files, with `--set` and in problems."""
        return ".".join((*self.table, self.field.name))

    @property
    def environment(self) -> str:
        """The name of the environment variable, for example LOAD_WATCHER_REFRESH_INTERVAL."""
        return "LOAD_WATCHER_" + self.name.replace(".", "_").upper()

    @property
    def setting(self) -> Setting:
        return setting_of(self.field)

    @property
    def default(self) -> Any:
        """The default; MISSING if the setting is required."""
        return self.field.default if self.field.default_factory is MISSING else self.field.default_factory()

    @property
    def example(self) -> str:
        """An example value as a TOML literal: the declared example, or the default."""
        return self.setting.example or self.setting.kind.write(self.default)


QUERIES = ("provider", "queries")


def _keys() -> Iterator[Key]:
    for name, table in TABLES.items():
        yield from (Key((name,), each) for each in settings_fields(table))
    for metric in model.METRICS:
        yield from (Key((*QUERIES, metric.key), each) for each in settings_fields(QuerySettings))


KEYS: Mapping[str, Key] = {key.name: key for key in _keys()}
