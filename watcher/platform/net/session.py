"""HTTP sessions of aiohttp, each with the TLS context of `tls` and the resolver of `resolver`."""

from __future__ import annotations

import ssl
from typing import Any

import aiohttp

from watcher.platform.net.resolver import ThreadResolver
from watcher.platform.net.tls import system_context


def client_session(
    *, tls: ssl.SSLContext | None = None, connector: dict[str, Any] | None = None, **options: Any
) -> aiohttp.ClientSession:
    """A session whose connections use the context `tls`, by default that of the system. `connector` has options of
    aiohttp.TCPConnector, `options` those of the session. To be called in the event loop."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=tls or system_context(), **{"resolver": ThreadResolver(), **(connector or {})}
        ),
        **options,
    )
