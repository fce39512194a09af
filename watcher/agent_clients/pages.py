"""Fetches pages of node agents and QoS Resource Managers, only from endpoints that the settings name.

A name or a label may have many endpoints: the addresses that `discovery` currently finds. A client selects one of
these endpoints and one of a few pages, so it cannot choose an arbitrary host or path. Redirects are not followed, and
the token is sent only to these endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum

import aiohttp
import msgspec
from aiohttp import web

from watcher.agent_clients.client import AgentClient, client_from_settings
from watcher.agent_clients.discovery import AgentEndpoint, DiscoveryResult
from watcher.agent_clients.settings import AgentsSettings, QrmsSettings
from watcher.core.config.settings import Settings
from watcher.decoding.json_text import decode_json
from watcher.platform.net.failures import failure_reason
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge
from watcher.sources.errors import ProviderRefused

MAX_BODY = 16 << 20


class EndpointKind(StrEnum):
    """Kind of server at an endpoint."""

    AGENT = "agent"
    QRM = "qrm"


PAGES: Mapping[EndpointKind, Mapping[str, str]] = {
    EndpointKind.AGENT: {"plan": "/explain", "audit": "/audit?limit=100"},
    EndpointKind.QRM: {"state": "/qrm", "decisions": "/qrm/explain"},
}
"""Kind -> page name -> requested path."""


class AgentError(Exception):
    """A page cannot be fetched; `code` is for programs, `hint` describes the fix."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


class AgentProxy:
    """Fetches pages of the endpoints that the clients, by kind, discover. Use it within `life`."""

    def __init__(self, clients: Mapping[EndpointKind, AgentClient]) -> None:
        self._clients = dict(sorted(clients.items()))

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """Cleanup context: close the clients at shutdown."""
        try:
            yield
        finally:
            for client in self._clients.values():
                await client.close()

    async def known(self) -> Mapping[EndpointKind, DiscoveryResult]:
        """Return the current endpoints and discovery problems, by kind."""
        found = await asyncio.gather(*(client.find() for client in self._clients.values()))
        return dict(zip(self._clients, found, strict=True))

    async def page(self, name: str, page: str) -> bytes:
        """Return a page as JSON. Raises KeyError for an unknown endpoint or page, AgentError if the request fails."""
        known = await self.known()
        paths = {
            place.name: (self._clients[kind], place, PAGES[kind][page])
            for kind, found in known.items()
            if page in PAGES[kind]
            for place in found.places
        }
        return await _page(*paths[name])


async def _page(client: AgentClient, endpoint: AgentEndpoint, path: str) -> bytes:
    name, section = endpoint.name, client.section
    try:
        status, body = await client.get(endpoint, path, largest=MAX_BODY)
    except ProviderRefused as error:
        hint = f"check {section}.token_file and {section}.ca_file; a token is one line of text"
        raise AgentError("agent_refused", str(error), hint=hint) from error
    except AnswerTooLarge as error:
        raise AgentError("agent_failed", f"{name}: {error}", hint=TOO_LARGE_HINT) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        why = failure_reason(error, url=str(endpoint.url))
        hint = "check that it runs and listens on this address; by default it listens on loopback only"
        raise AgentError("agent_unreachable", f"no response from {name}: {why}", hint=hint) from error
    if status in (401, 403):
        hint = f"{section}.token_file must contain the token of that server (agent.token_file, qrm.token_file)"
        raise AgentError("agent_refused", f"{name} denied access (status {status})", hint=hint)
    if status != 200:
        raise AgentError("agent_failed", f"{name} returned status {status}", hint="see its log")
    return await asyncio.to_thread(_checked, body, name)


def _checked(body: bytes, name: str) -> bytes:
    """Return the body unchanged if it is JSON; raise AgentError otherwise."""
    try:
        decode_json(body)
    except msgspec.DecodeError:
        hint = "check that this is the address of a load-watcher agent"
        raise AgentError("agent_failed", f"{name} returned invalid JSON", hint=hint) from None
    return body


def clients_by_kind(settings: Settings) -> Mapping[EndpointKind, AgentClient]:
    """Build the clients of [agents] and [qrms], by kind; sections without endpoints are left out."""
    each = {
        EndpointKind.AGENT: client_from_settings(settings, AgentsSettings),
        EndpointKind.QRM: client_from_settings(settings, QrmsSettings),
    }
    return {kind: client for kind, client in each.items() if client is not None}


def from_settings(settings: Settings) -> AgentProxy | None:
    """Build the pages of the dashboard, None if the settings name neither agents nor QoS Resource Managers."""
    clients = clients_by_kind(settings)
    return AgentProxy(clients) if clients else None
