"""Fetches of a test from a provider, which is started, used within a time limit, and closed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest

from watcher.core.config.values import Secret
from watcher.core.windows.settings import FETCH_SHARE, RefreshSettings
from watcher.model import Window
from watcher.sources.base import Fetch, Provider
from watcher.sources.errors import ProviderError
from watcher.sources.settings import ProviderSettings

P = TypeVar("P", bound=Provider)
T = TypeVar("T")

QUICK: dict[str, Any] = {"metrics": ("CPU",), "timeout": 5.0, "backoff": (0.01, 0.01)}
"""Settings of a provider of CPU only with short timeouts."""


_SECRETS = ("token", "password", "app_key")
_DEFAULTS = {"fetch_deadline": 40.0, "max_seconds": 900, "resolution": 15}


Sections = tuple[ProviderSettings, RefreshSettings]


def sections(**given: Any) -> Sections:
    """[provider] with these values, secrets and paths as text, and [refresh] with a fetch deadline, a longest window
    and a resolution in seconds."""
    refresh = {name: given.pop(name, default) for name, default in _DEFAULTS.items()}
    window = Window("longest", int(refresh["max_seconds"]))
    values = {name: _value(name, value) for name, value in given.items()}
    return ProviderSettings(**values), RefreshSettings(
        interval=refresh["fetch_deadline"] / FETCH_SHARE, windows=(window,), resolution=refresh["resolution"]
    )


def _value(name: str, value: Any) -> Any:
    if name == "headers":
        return {header: Secret(text) for header, text in value.items()}
    if isinstance(value, str) and name in _SECRETS:
        return Secret(value) if value else None
    return Path(value) if isinstance(value, str) and name.endswith(("_file", "_cert", "client_key")) else value


def address_of(server: Any) -> str:
    """The address of a server of the tests, or the address itself."""
    return server if isinstance(server, str) else str(server.url)


def use(make: Callable[[], P], work: Callable[[P], Awaitable[T]], *, limit_s: float = 30.0) -> T:
    """The result of `work` with a started provider, which is closed afterwards."""

    async def inside() -> T:
        provider = make()
        await provider.start()
        try:
            async with asyncio.timeout(limit_s):
                return await work(provider)
        finally:
            await provider.close()

    return asyncio.run(inside())


def failure_of(work: Callable[[], object]) -> ProviderError:
    """The error of a fetch that fails completely."""
    with pytest.raises(ProviderError) as caught:
        work()
    return caught.value


@dataclass(frozen=True)
class Fetches(Generic[P]):
    """Fetches with the providers that `make` builds from a server and settings. `since` and `until` (unix seconds) are
    the range of a fetch."""

    make: Callable[..., P]
    since: float
    until: float
    limit_s: float = 30.0

    def run(self, server: Any, work: Callable[[P], Awaitable[Any]], **settings: Any) -> Any:
        """The result of `work` with a started provider."""
        return use(lambda: self.make(server, **settings), work, limit_s=self.limit_s)

    def fetch(self, server: Any, **settings: Any) -> Fetch:
        """One fetch; of another range with `since` and `until`."""
        begin, end = settings.pop("since", self.since), settings.pop("until", self.until)
        got: Fetch = self.run(server, lambda provider: provider.fetch(begin, end), **settings)
        return got

    def failure(self, server: Any, **settings: Any) -> ProviderError:
        """The error of a fetch that fails completely."""
        return failure_of(lambda: self.fetch(server, **settings))
