"""All settings: name, type, default, meaning and kind of value.

Each setting is declared once. The parsing of the TOML file, the names and the parsing of environment variables,
`config show`, docs/reference/settings.md and load-watcher.example.toml are derived from these tables, so a new setting
needs only a field in its section (`settings.py` of the package that reads it).

Durations are float seconds, sizes int bytes. None means "not set"; the meaning then describes the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from watcher import model
from watcher.agent_clients.settings import AgentsSettings, QrmsSettings
from watcher.api.settings import MetricsSettings
from watcher.core.config.fields import Setting, SettingsTable, settings_of
from watcher.core.forecast.settings import ForecastSettings
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.settings import KoordinatorSettings
from watcher.platform.http.settings import ServerSettings
from watcher.platform.kube.settings import KubernetesSettings, MarksSettings
from watcher.platform.logs import ClusterSettings, LogSettings
from watcher.platform.net.settings import ExtenderSettings
from watcher.sources.settings import ProviderSettings, QuerySettings
from watcher.store.settings import StoreSettings

_SECTIONS: tuple[type[SettingsTable], ...] = (
    ClusterSettings,
    ServerSettings,
    ProviderSettings,
    KubernetesSettings,
    RefreshSettings,
    ReviewSettings,
    ForecastSettings,
    StoreSettings,
    AgentsSettings,
    QrmsSettings,
    ExtenderSettings,
    MetricsSettings,
    KoordinatorSettings,
    MarksSettings,
    LogSettings,
)
TABLES: Mapping[str, type[SettingsTable]] = {each.section: each for each in _SECTIONS}
PARTS = ("scheduler", "agent", "qrm")
REMOVED: Mapping[str, str] = {
    "dashboard": "use urls, pods, token_file and ca_file of [agents] and [qrms]",
    "peers": "remove it: a source with history fills the windows of a new replica, the database those after a restart",
    **{f"{name}.{key}": instead for name, table in TABLES.items() for key, instead in table.removed.items()},
}
"""Former tables and keys, each with what to use instead."""


# --- the keys --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """A setting with its table: ("refresh",), ("provider", "queries", "CPU")."""

    table: tuple[str, ...]
    setting: Setting

    @cached_property
    def name(self) -> str:
        """The full key, as used in TOML files, with `--set` and in problems."""
        return ".".join((*self.table, self.setting.name))

    @property
    def environment(self) -> str:
        """The name of the environment variable, for example LOAD_WATCHER_REFRESH_INTERVAL."""
        return "LOAD_WATCHER_" + self.name.replace(".", "_").upper()


def keys_of(name: str) -> list[Key]:
    """Return the keys of a section, without those of its inner tables."""
    return [Key((name,), each) for each in settings_of(TABLES[name]).values()]


def query_keys(metric: str) -> list[Key]:
    """Return the keys of the query of a metric."""
    return [Key((*QUERIES, metric), each) for each in settings_of(QuerySettings).values()]


QUERIES = ("provider", "queries")


KEYS: Mapping[str, Key] = {
    key.name: key
    for keys in (*map(keys_of, TABLES), *(query_keys(metric.key) for metric in model.METRICS))
    for key in keys
}
