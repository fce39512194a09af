"""The sources, one file each, and the table that names them.

A provider's library is imported in that provider's file alone, and that file only when the provider is chosen. A new
source is one file, one line here and one test file; outside packages add theirs through the entry-point group
`load_watcher.providers` (a function from settings to a Provider).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from watcher import extensions
from watcher.providers.base import Provider, ProviderRefused

if TYPE_CHECKING:
    from watcher.settings import Settings

    Factory = Callable[[Settings], Provider]

ENTRY_POINT_GROUP = "load_watcher.providers"

# name in the settings -> "module:function" that makes the provider from the settings
PROVIDERS: Mapping[str, str] = {
    "host": "watcher.providers.host:from_settings",
    "prometheus": "watcher.providers.prometheus:from_settings",
    "influxdb": "watcher.providers.influxdb:from_settings",
    "datadog": "watcher.providers.datadog:from_settings",
    "signalfx": "watcher.providers.signalfx:from_settings",
    "metrics-server": "watcher.providers.metrics_server:from_settings",
    "replay": "watcher.providers.replay:from_settings",
}


def known_names() -> tuple[str, ...]:
    """The provider names that this installation can build, sorted."""
    return tuple(sorted({*PROVIDERS, *extensions.names(ENTRY_POINT_GROUP)}))


def build(settings: Settings) -> Provider:
    """The provider that the settings name, which they were validated to have. Raises ProviderRefused where it cannot
    work with them, or where the package that it is in does not work."""
    from watcher.providers.agent_pods import with_agents  # here: the agents read settings too, and have no NumPy

    name = settings.provider.name
    try:
        return with_agents(_factory(name)(settings), settings)
    except ValueError as error:
        raise ProviderRefused(
            f"the provider {name} cannot work with these settings: {error}",
            hint="load-watcher config show tells what they are, and where each is from.",
        ) from error


def _factory(name: str) -> Factory:
    if name in PROVIDERS:
        module, function = PROVIDERS[name].split(":")
        factory: Factory = getattr(import_module(module), function)
        return factory
    try:
        factory = extensions.load(ENTRY_POINT_GROUP, name)
    except extensions.InSeveralPackages as error:
        raise ProviderRefused(
            f"the provider {name} is in several packages: {error.homes}", hint="Uninstall all but one."
        ) from error
    except extensions.CannotBeLoaded as error:
        raise ProviderRefused(
            f"the provider {name} cannot be loaded from the package {error.homes}: {error}",
            hint=f"Is {error.homes} made for this version of load-watcher, and are its dependencies installed?",
        ) from error
    return factory
