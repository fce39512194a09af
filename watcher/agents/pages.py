"""Fetches pages of node agents and QoS Resource Managers, only from endpoints that the settings name.

A name or a label may have many endpoints: the addresses that `discovery` currently finds. A client selects one of
these endpoints and one of a few pages, so it cannot choose an arbitrary host or path. Redirects are not followed, and
the token is sent only to these endpoints.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING

import aiohttp
import msgspec
from aiohttp import hdrs, web
from yarl import URL

from watcher import __version__
from watcher.agents.discovery import AgentDiscovery, AgentEndpoint, DiscoveryResult, discovery_from_settings
from watcher.platform.net.decoding import decode_json
from watcher.platform.net.dns import get_from
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound
from watcher.platform.sources.connection import bearer
from watcher.platform.sources.errors import ProviderRefused
from watcher.platform.sources.http_client import read_bounded

if TYPE_CHECKING:
    from watcher.platform.settings.tables import Settings

TIMEOUT_S = 5.0
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


class AgentPageClient:
    """Fetches pages from the endpoints in `places`. Sends the token of `token_file` with every request. Use it within
    `life`."""

    def __init__(self, places: Mapping[EndpointKind, AgentDiscovery], *, token_file: str, tls: ssl.SSLContext) -> None:
        self._places = dict(sorted(places.items()))
        self._token_file = token_file
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """Cleanup context: open the HTTP session, and close it and the discovery at shutdown."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers={hdrs.USER_AGENT: f"load-watcher/{__version__}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as self._session:
            try:
                yield
            finally:
                for places in self._places.values():
                    await places.close()

    async def known(self) -> Mapping[EndpointKind, DiscoveryResult]:
        """Return the current endpoints and discovery problems, by kind."""
        found = await asyncio.gather(*(places.find() for places in self._places.values()))
        return dict(zip(self._places, found, strict=True))

    async def page(self, name: str, page: str) -> bytes:
        """Return a page as JSON. Raises KeyError for an unknown endpoint or page, AgentError if the request fails."""
        known = await self.known()
        paths = {
            place.name: (place, PAGES[kind][page])
            for kind, found in known.items()
            if page in PAGES[kind]
            for place in found.places
        }
        place, path = paths[name]
        body, status = await self._ask(place, path)
        if status in (401, 403):
            hint = "dashboard.token_file must contain the token of that server (agent.token_file, qrm.token_file)"
            raise AgentError("agent_refused", f"{name} denied access (status {status})", hint=hint)
        if status != 200:
            raise AgentError("agent_failed", f"{name} returned status {status}", hint="see its log")
        return await asyncio.to_thread(_checked, body, name)

    async def _ask(self, place: AgentEndpoint, path: str) -> tuple[bytes, int]:
        """Return body and status. Raises AgentError."""
        assert self._session is not None
        try:
            headers = bearer("dashboard.token_file", self._token_file)
        except ProviderRefused as error:
            raise AgentError("agent_refused", str(error), hint="write the token into the file as one line") from error
        try:
            target = URL(f"{str(place.url).rstrip('/')}{path}")
            async with get_from(self._session, target, of=place.server_name, headers=headers) as response:
                return await read_bounded(response, answer_bound(MAX_BODY)), response.status
        except AnswerTooLarge as error:
            raise AgentError("agent_failed", f"{place.name}: {error}", hint=TOO_LARGE_HINT) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            hint = "check that it runs and listens on this address; by default it listens on loopback only"
            raise AgentError("agent_unreachable", f"no response from {place.name}: {why}", hint=hint) from error


def _checked(body: bytes, name: str) -> bytes:
    """Return the body unchanged if it is JSON; raise AgentError otherwise."""
    try:
        decode_json(body)
    except msgspec.DecodeError:
        hint = "check that this is the address of a load-watcher agent"
        raise AgentError("agent_failed", f"{name} returned invalid JSON", hint=hint) from None
    return body


# --- from the settings -----------------------------------------------------------------------------------------------


def discovery_by_kind(settings: Settings) -> Mapping[EndpointKind, AgentDiscovery]:
    """Build the discovery of the endpoints in [dashboard], by kind; kinds without endpoints are left out."""
    named = settings.dashboard
    each = {
        EndpointKind.AGENT: discovery_from_settings(
            settings, urls={"dashboard.agents": named.agents}, pods={"dashboard.agent_pods": named.agent_pods}
        ),
        EndpointKind.QRM: discovery_from_settings(
            settings, urls={"dashboard.qrm": named.qrm}, pods={"dashboard.qrm_pods": named.qrm_pods}
        ),
    }
    return {kind: places for kind, places in each.items() if places is not None}


def from_settings(settings: Settings) -> AgentPageClient | None:
    """Build the page fetcher of the dashboard, None if [dashboard] names no endpoints."""
    places, named = discovery_by_kind(settings), settings.dashboard
    if not places:
        return None
    tls = ssl.create_default_context(cafile=None if named.ca_file is None else str(named.ca_file))
    return AgentPageClient(places, token_file=str(named.token_file or ""), tls=tls)
