"""Asking the Kubernetes API, with a bound on everything: on time, on size, and on how long old credentials are kept.

A watch is one HTTP answer that never ends, a line for each change. It ends all the same: by the server's own limit, by
a proxy's, by a cable. So a watch is asked for a limited time and is cut off if it is silent for longer than that, and
whoever watches must be able to go on (`informer`).

The connection, with its certificates and authority, is made when it is first needed, and again after the API has
refused it: by then the files may have been renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from watcher import __version__
from watcher.kube.credentials import Access
from watcher.kube.errors import (
    KubeError,
    KubeGone,
    KubeMalformed,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
    Status,
    error_of,
    read_status,
    shown,
)
from watcher.kube.shapes import ItemT, ObjectList, Resource, Versioned, WatchLine, list_decoder

log = logging.getLogger(__name__)

PAGE = 500
"""Objects of a page: 5,000 nodes come in ten, and decoding one holds the event loop for some 4 ms."""
MAX_BODY = 256 << 20
CHUNK = 1 << 16
READ_BUFFER = 2**21
"""aiohttp's default refuses lines over 512 KiB (testing.md §4.1); with this they may be 4 MiB, and etcd keeps 1.5."""
WATCH_S = 240
SILENCE_S = 15.0
"""How much longer than WATCH_S a watch may be silent before it counts as cut off."""

_LINE = msgspec.json.Decoder(WatchLine)
_VERSIONED = msgspec.json.Decoder(Versioned)


@dataclass(frozen=True, slots=True)
class Listing(Generic[ItemT]):
    """All objects of a resource, true at `version`, from where a watch can go on."""

    items: tuple[ItemT, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Event(Generic[ItemT]):
    """A change: `type` is ADDED, MODIFIED or DELETED. Without an `item` there is OPENED, which comes first and says
    that the server agreed to watch, and BOOKMARK, which says how far the watch has come."""

    type: str
    item: ItemT | None
    version: str


@dataclass(slots=True, eq=False)
class _Connection:
    """A pool of connections made with one reading of the credentials; `users` counts the requests that are on it."""

    access: Access
    session: aiohttp.ClientSession
    users: int = 0


class KubeClient:
    """The Kubernetes API as `access()` reaches it; `access` is called when a connection is made, and may raise
    KubeError. `timeout` bounds each request, from the connection to the last byte, but for watches."""

    def __init__(self, access: Callable[[], Access], *, timeout: float = 10.0) -> None:
        self._find_access = access
        self._timeout = timeout
        self._current: _Connection | None = None
        self._open: set[_Connection] = set()
        self._server = ""
        self._decoders: dict[type[Any], msgspec.json.Decoder[ObjectList[Any]]] = {}

    async def close(self) -> None:
        """Hang up everything."""
        self._current = None
        for connection in tuple(self._open):
            await self._end(connection)

    async def list(self, resource: Resource[ItemT], *, page: int = PAGE) -> Listing[ItemT]:
        """All objects of a resource, in pages. A list that expires between two pages is asked for again, then whole,
        since that cannot expire. Raises KubeError."""
        try:
            return await self._list(resource, {"limit": str(page)})
        except KubeGone:
            log.debug("the list of %s expired between two pages", resource.full_name)
            return await self._list(resource, {})

    async def _list(self, resource: Resource[ItemT], parameters: Mapping[str, str]) -> Listing[ItemT]:
        items: list[ItemT] = []
        more = ""
        while True:
            page = await self._page(resource, {**parameters, **({"continue": more} if more else {})})
            items += page.items or ()
            more = page.metadata.more
            if not more:
                return Listing(tuple(items), page.metadata.resource_version)

    async def _page(self, resource: Resource[ItemT], parameters: Mapping[str, str]) -> ObjectList[ItemT]:
        async with self._translated(resource):
            async with asyncio.timeout(self._timeout), self._asked(resource, parameters, verb="list") as response:
                body = await _read_body(response)
            decoder = self._decoders.setdefault(resource.item, list_decoder(resource.item))
            return _read_page(body, decoder, resource=resource)

    async def watch(
        self, resource: Resource[ItemT], *, since: str, seconds: int = WATCH_S
    ) -> AsyncGenerator[Event[ItemT], None]:
        """Changes after the version `since`, for about `seconds`; ends when the server ends it.

        Raises KubeGone when the server no longer knows that version, KubeUnreachable when the connection is lost in
        between, and other KubeErrors.
        """
        parameters = {
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        decoder = msgspec.json.Decoder(resource.item)
        async with (
            self._translated(resource),
            self._asked(resource, parameters, verb="watch", silence=seconds + SILENCE_S) as response,
        ):
            yield Event("OPENED", None, since)
            while line := await response.content.readline():
                if not line.endswith(b"\n"):
                    raise KubeUnreachable(f"the watch of {resource.full_name} broke off within a line")
                yield _read_event(line, decoder, resource=resource)

    # --- the connection ----------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _asked(
        self, resource: Resource[Any], parameters: Mapping[str, str], *, verb: str, silence: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer with status 200, its body not yet read. Raises the error that any other one means."""
        connection = self._connect()
        access = connection.access
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=silence or self._timeout)
        connection.users += 1
        response = None
        try:
            async with asyncio.timeout(self._timeout):
                response = await connection.session.get(
                    access.server + resource.path,
                    params=parameters,
                    headers=access.headers(),
                    timeout=timeout,
                    allow_redirects=False,  # it would carry the token to wherever it leads
                    server_hostname=access.tls_server_name if access.tls else None,
                )
                if response.status != 200:
                    status = read_status(await response.content.read(CHUNK))
                    raise error_of(response.status, status, verb=verb, resource=resource)
            yield response
        finally:
            if response is not None:
                response.close()
            connection.users -= 1
            if connection is not self._current and not connection.users:
                await self._end(connection)

    async def _end(self, connection: _Connection) -> None:
        self._open.discard(connection)
        await connection.session.close()

    def _connect(self) -> _Connection:
        if self._current is None:
            access = self._find_access()
            connector = aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True)
            session = aiohttp.ClientSession(
                connector=connector,
                headers={"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"},
                read_bufsize=READ_BUFFER,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            if access.server != self._server:
                log.info("using the Kubernetes API at %s as %s says", access.server, access.origin)
            self._current, self._server = _Connection(access, session), access.server
            self._open.add(self._current)
        return self._current

    @contextlib.asynccontextmanager
    async def _translated(self, resource: Resource[Any]) -> AsyncIterator[None]:
        """Whatever fails inside is a KubeError, with the server's address before its message. After what is wrong with
        our credentials the next request connects anew, with those there are then; others under way may end."""
        try:
            yield
        except (KubeError, aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            told = error if isinstance(error, KubeError) else _translate(error, what=resource.full_name)
            where = f"{self._server}: " if self._server else ""
            if isinstance(told, KubeUnauthorized) or (isinstance(told, KubeRefused) and told.status is None):
                retired, self._current = self._current, None
                if retired is not None and not retired.users:
                    await self._end(retired)
            raise type(told)(f"{where}{told}", hint=told.hint, status=told.status) from error


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_BODY:
            raise KubeMalformed(f"its answer is larger than {MAX_BODY >> 20} MiB")
    return b"".join(chunks)


# --- reading answers -------------------------------------------------------------------------------------------------


def _read_page(
    body: bytes, decoder: msgspec.json.Decoder[ObjectList[ItemT]], *, resource: Resource[ItemT]
) -> ObjectList[ItemT]:
    try:
        page = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_kubernetes(body, what=f"a list of {resource.full_name}", problem=str(error)) from error
    if not page.kind.endswith("List"):
        raise KubeMalformed(f"it answered with a {shown(page.kind)}, not with a list of {resource.full_name}")
    return page


def _read_event(line: bytes, decoder: msgspec.json.Decoder[ItemT], *, resource: Resource[Any]) -> Event[ItemT]:
    """A line of a watch. Raises the KubeError that an ERROR event means."""
    try:
        read = _LINE.decode(line)
        if read.type == "ERROR":
            status = msgspec.json.decode(read.object, type=Status)
            raise error_of(status.code, read_status(bytes(read.object)), verb="watch", resource=resource)
        version = _VERSIONED.decode(read.object).metadata.resource_version
        item = None if read.type == "BOOKMARK" else decoder.decode(read.object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_kubernetes(line, what=f"an event of {resource.full_name}", problem=str(error)) from error
    return Event(read.type, item, version)


def _not_kubernetes(body: bytes, *, what: str, problem: str) -> KubeMalformed:
    start = shown(body[:1024].decode(errors="replace"))
    hint = "Is the server's address that of a Kubernetes API, or of something before it?"
    if not body.strip():
        return KubeMalformed(f"it answered with nothing, not with {what}", hint=hint)
    if body.lstrip()[:1] == b"<":
        return KubeMalformed(f"it answered with a web page, not with {what}: {start}", hint=hint)
    return KubeMalformed(f"its answer is not {what} ({shown(problem)}): {start}", hint=hint)


def _translate(error: Exception, *, what: str) -> KubeError:
    """What a failure below HTTP means for the operator."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return KubeRefused(
            f"its certificate is not trusted: {shown(str(error.certificate_error))}",
            hint="The authority in the kubeconfig or the service account is not the one that signed it.",
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return KubeRefused(f"TLS failed: {shown(str(error.os_error))}", hint="Does it speak TLS on this port?")
    if isinstance(error, TimeoutError):
        return KubeUnreachable(f"it does not answer for {what} in time")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return KubeUnreachable("its name cannot be resolved")
    said = shown(str(error)) or type(error).__name__
    if isinstance(error, (aiohttp.ClientResponseError, HttpProcessingError, ValueError)):
        return KubeMalformed(f"its answer for {what} is no HTTP: {said}")
    return KubeUnreachable(f"the connection failed while asking for {what}: {said}")
