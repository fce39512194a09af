"""The settings of the service, where each came from, and what is wrong with them.

Flags win over the environment, that over the TOML file, that over defaults. `tables` declares every setting once;
`values` reads and writes single values; `sources` takes in what was given; `checks` holds settings against each other;
`loading` makes the one `Settings` out of all of it; `pages` writes it down again. Other packages need only the names
below. Nothing here reads the process's own environment or working directory: both are arguments.
"""

from watcher.settings.loading import load
from watcher.settings.pages import show
from watcher.settings.problems import Problem, SettingsError
from watcher.settings.tables import (
    LogSettings,
    MetricsSettings,
    ProviderSettings,
    QuerySettings,
    RefreshSettings,
    ReviewSettings,
    ServerSettings,
    Settings,
    StoreSettings,
)
from watcher.settings.values import Secret

__all__ = [
    "LogSettings",
    "MetricsSettings",
    "Problem",
    "ProviderSettings",
    "QuerySettings",
    "RefreshSettings",
    "ReviewSettings",
    "Secret",
    "ServerSettings",
    "Settings",
    "SettingsError",
    "StoreSettings",
    "load",
    "show",
]
