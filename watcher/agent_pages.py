"""Asking agents and QoS Resource Managers of nodes for their pages: those that the settings name, and no others.

A name may stand for many of them, as that of a headless Service does, whose selector says by which label pods are
found. So what may be asked is what the names have for addresses at this moment; who asks us names one of these, and one
of a few pages, and decides neither host nor path. Nothing is followed to elsewhere, and the token goes nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum

import aiohttp
import msgspec
from aiohttp import hdrs, web
from yarl import URL

from watcher import __version__
from watcher.bodies import read_at_most
from watcher.providers.base import ProviderRefused
from watcher.providers.exchange import bearer
from watcher.resolving import addresses_of, get_from

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
MOST_BODY = 16 << 20
KNOWN_S = 30.0  # addresses of names


class Kind(StrEnum):
    """What answers at an address."""

    AGENT = "agent"
    QRM = "qrm"


PAGES: Mapping[Kind, Mapping[str, str]] = {
    Kind.AGENT: {"plan": "/explain", "audit": "/audit?limit=100"},
    Kind.QRM: {"state": "/qrm", "decisions": "/qrm/explain"},
}
"""By kind and name, the path that is asked for."""


class AgentError(Exception):
    """A page cannot be had; `code` is for programs, `hint` says what to do."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Place:
    """One that may be asked: at `url`, which has an address in the place of the name that is configured, `of`."""

    kind: Kind
    url: URL
    of: URL

    @property
    def name(self) -> str:
        """By which people ask for it: address and port."""
        return self.url.authority


class AgentPages:
    """Those at `agents` and `qrms`, each URL standing for all addresses of its name. The token of the file is sent with
    every question. Used within `life`."""

    def __init__(
        self,
        *,
        agents: Sequence[str],
        qrms: Sequence[str],
        token_file: str,
        tls: ssl.SSLContext,
        monotonic: Callable[[], float],
    ) -> None:
        self._urls = [*((Kind.AGENT, URL(url)) for url in agents), *((Kind.QRM, URL(url)) for url in qrms)]
        self._token_file = token_file
        self._tls = tls
        self._monotonic = monotonic
        self._session: aiohttp.ClientSession | None = None
        self._known: tuple[Place, ...] = ()
        self._until = float("-inf")
        self._looking = asyncio.Lock()

    @asynccontextmanager
    async def life(self, _app: web.Application) -> AsyncIterator[None]:
        """From the start of the service to its end."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            headers={hdrs.USER_AGENT: f"load-watcher/{__version__}"},
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        ) as self._session:
            yield

    async def known(self) -> tuple[Place, ...]:
        """All that may be asked now, by kind and name; a name without an address has none."""
        async with self._looking:
            if self._monotonic() >= self._until:
                found = await asyncio.gather(*(self._addresses(kind, url) for kind, url in self._urls))
                each = {(place.kind, place.name): place for some in found for place in some}
                self._known = tuple(each[key] for key in sorted(each))
                self._until = self._monotonic() + KNOWN_S
            return self._known

    async def _addresses(self, kind: Kind, url: URL) -> list[Place]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return [Place(kind, url.with_host(address), url) for address in await addresses_of(url)]
        except (OSError, UnicodeError) as error:  # TimeoutError is an OSError
            log.debug("%s of [dashboard] has no address now: %s", url.host, str(error) or "no answer")
            return []

    async def page(self, name: str, page: str) -> bytes:
        """A page as JSON. KeyError where there is nobody of that name, or no such page; AgentError where it cannot be
        had."""
        paths = {each.name: (each, PAGES[each.kind][page]) for each in await self.known() if page in PAGES[each.kind]}
        place, path = paths[name]
        body, status = await self._ask(place, path)
        if status in (401, 403):
            hint = "dashboard.token_file must hold the token that it was given (agent.token_file, qrm.token_file)"
            raise AgentError("agent_refused", f"{name} refuses us ({status})", hint=hint)
        if status != 200 or body is None:
            what = f"more than {MOST_BODY >> 20} MiB" if body is None else f"status {status}"
            raise AgentError("agent_failed", f"{name} answered with {what}", hint="its log may say why")
        return await asyncio.to_thread(_checked, body, name)

    async def _ask(self, place: Place, path: str) -> tuple[bytes | None, int]:
        """Body (None if it is too large) and status. Raises AgentError."""
        assert self._session is not None
        try:
            headers = bearer("dashboard.token_file", self._token_file)
        except ProviderRefused as error:
            raise AgentError("agent_refused", str(error), hint="a line with the token belongs into it") from error
        try:
            target = URL(f"{str(place.url).rstrip('/')}{path}")
            async with get_from(self._session, target, of=place.of, headers=headers) as response:
                return await read_at_most(response.content, MOST_BODY), response.status
        except (aiohttp.ClientError, OSError, ValueError) as error:
            why = str(error) or type(error).__name__
            hint = "is it running, and does it listen there? In a pod it listens to itself alone unless it is told to"
            raise AgentError("agent_unreachable", f"no answer from {place.name}: {why}", hint=hint) from error


def _checked(body: bytes, name: str) -> bytes:
    """As it is, if it is JSON: what we serve always is."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        hint = "is this the address of a load-watcher agent?"
        raise AgentError("agent_failed", f"{name} answered with no JSON", hint=hint) from None
    return body
