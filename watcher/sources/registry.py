"""Building the provider that the settings name, from this package or from an entry point of another one."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from watcher.core.config.settings import Settings
from watcher.platform import entry_points
from watcher.platform.provider_names import ENTRY_POINT_GROUP, PROVIDERS
from watcher.sources.base import Provider
from watcher.sources.errors import ProviderRefused
from watcher.sources.settings import ProviderSettings

Factory = Callable[[Settings], Provider]


def build(settings: Settings) -> Provider:
    """Build the provider named by the (validated) settings. Raises ProviderRefused if the settings do not work for
    it or its package cannot be loaded."""
    from watcher.agent_clients.usage import with_agents

    name = settings[ProviderSettings].name
    try:
        return with_agents(_factory(name)(settings), settings)
    except ValueError as error:
        raise ProviderRefused(
            f"the provider {name} cannot work with these settings: {error}",
            hint="Run `load-watcher config show` to see each setting and its origin.",
        ) from error


def _factory(name: str) -> Factory:
    if name in PROVIDERS:
        module, function = PROVIDERS[name].split(":")
        factory: Factory = getattr(import_module(module), function)
        return factory
    try:
        factory = entry_points.load(ENTRY_POINT_GROUP, name)
    except entry_points.AmbiguousEntryPoint as error:
        raise ProviderRefused(
            f"the provider {name} is in several packages: {error.packages}", hint="Uninstall all but one."
        ) from error
    except entry_points.EntryPointLoadError as error:
        raise ProviderRefused(
            f"the provider {name} cannot be loaded from the package {error.homes}: {error}",
            hint=f"Check that {error.homes} supports this load-watcher version and has all its dependencies.",
        ) from error
    return factory
