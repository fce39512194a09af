"""Connection settings and configured queries that several providers take from the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from watcher.core.config.settings import Settings
from watcher.core.windows.settings import RefreshSettings
from watcher.sources.fetching import FETCH_SHARE
from watcher.sources.queries import QueryConfig
from watcher.sources.settings import ProviderSettings


class ConnectionSettings(TypedDict):
    """Connection settings of a provider, as keyword arguments of its configuration. Times are in seconds."""

    address: str
    token: str
    token_file: str
    username: str
    password: str
    password_file: str
    ca_file: str
    client_cert: str
    client_key: str
    insecure_skip_verify: bool
    headers: Mapping[str, str]
    timeout: float
    fetch_deadline: float
    max_seconds: float


def connection(settings: Settings) -> ConnectionSettings:
    """Connection settings of the provider, taken from the settings."""
    given, refresh = settings[ProviderSettings], settings[RefreshSettings]
    return ConnectionSettings(
        address=given.address or "",
        token=given.token.reveal() if given.token else "",
        token_file=str(given.token_file or ""),
        username=given.username or "",
        password=given.password.reveal() if given.password else "",
        password_file=str(given.password_file or ""),
        ca_file=str(given.ca_file or ""),
        client_cert=str(given.client_cert or ""),
        client_key=str(given.client_key or ""),
        insecure_skip_verify=given.insecure_skip_verify,
        headers={name: value.reveal() for name, value in given.headers.items()},
        timeout=given.timeout,
        fetch_deadline=FETCH_SHARE * refresh.interval,
        max_seconds=max(window.seconds for window in refresh.windows),
    )


def queries_of(settings: Settings) -> dict[str, QueryConfig]:
    """Configured queries by metric key."""
    return {
        key: QueryConfig(query.expression, query.unit, query.node_label, query.smoothing)
        for key, query in settings[ProviderSettings].queries.items()
    }
