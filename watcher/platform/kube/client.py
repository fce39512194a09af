"""Kubernetes API client with limits on request time, response size and the lifetime of credentials.

A watch is one HTTP response without an end, with one line per change. It can end at any time: by the server's own
limit, by a proxy's limit, or by a lost connection. Each watch is therefore requested for a limited time and is closed
if it is silent for longer; the caller must be able to continue (see `informer`).

The connection, with its certificates and certificate authority, is opened at the first request, and again after the API
has rejected the credentials, because the files may have been renewed since.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from watcher import __version__
from watcher.core.kubernetes.errors import (
    KubeError,
    KubeGone,
    KubeMalformed,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.objects import ACCESS_REVIEWS
from watcher.core.kubernetes.wire import ItemT, ObjectList, Resource, ResourceList, list_decoder
from watcher.core.messages import hide_secrets
from watcher.decoding.json_text import JsonDecoder
from watcher.platform.kube.connection_errors import connection_error
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.parameters import EVERYTHING, PatchKind, Selector
from watcher.platform.kube.refusals import error_of, read_status
from watcher.platform.kube.responses import Listing, WatchEvent, read_event, read_item, read_large_page, read_page
from watcher.platform.kube.responses import seconds_ahead as _seconds_ahead
from watcher.platform.memory import BUDGET
from watcher.platform.net.http_body import TOO_LARGE_HINT, AnswerTooLarge, answer_bound, read_body, read_start
from watcher.platform.net.session import client_session

log = logging.getLogger(__name__)

PAGE = 500
"""Objects per page: 5,000 nodes take ten pages, and decoding a page blocks the event loop for about 4 ms."""
MOST_PAGES = 20_000
"""Pages of one list; a list with more pages does not end."""
LARGE_BODY = 4 << 20
"""Bytes above which a response is decoded in a thread. metrics-server does not paginate: its response for 50,000 pods
is 21 MB, and decoding it in one call would block the event loop for 130 ms. A page of 500 objects is smaller than this
unless the objects are very large."""
READ_BUFFER = 2**21
"""Bytes. aiohttp's default refuses lines over 512 KiB; with this value lines may be 4 MiB. etcd stores objects of up to
1.5 MiB."""
UNPAGED_BODY = 16 << 20
"""Largest list in bytes that is read in one response. A larger one is read in pages, which limits its memory."""
SMALL_PAGE = 25
"""Objects per page after a page that was too large: an object has at most 1.5 MiB, usually less than 50 kB."""
UNPAGED_S = 60.0
"""Timeout in seconds of a list in one response; every pause within it is limited by the client's timeout."""
WATCH_S = 300
SILENCE_S = 15.0
"""Seconds of silence beyond its requested duration after which a watch counts as lost."""
KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""TCP keepalive in seconds and probes: a server whose machine has failed ends a silent watch after 20 s, and within 5 s
of its return, instead of after SILENCE_S."""

NEWEST = ""
"""For `at_least`: a list that contains all changes made before the request."""
ANY_VERSION = "0"
"""For `at_least`: any version that the server has in its watch cache; the cheapest list."""
DONE = (200, 201, 202)


@dataclass(frozen=True, slots=True)
class _KubeRequest:
    """A request. Authorization depends on `verb`, the resource, its `subresource`, and the `namespace` if the request
    is limited to one. `silence` is the longest pause within the response in seconds, `seconds` the longest duration of
    the response; default of both: the client's timeout."""

    resource: Resource[Any]
    verb: str
    path: str
    method: str = "GET"
    subresource: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    content_type: str = "application/json"
    silence: float | None = None
    seconds: float | None = None
    most_bytes: int | None = None
    namespace: str = ""


@dataclass(slots=True, eq=False)
class _ConnectionPool:
    """A connection pool opened with one reading of the credentials; `users` counts the requests in progress on it."""

    access: KubeAccess
    session: aiohttp.ClientSession
    users: int = 0


class KubeClient:
    """Client of the Kubernetes API that `access()` returns. `access` is called when a connection is opened and may
    raise KubeError. `timeout` (seconds) limits each request from the connection to the last byte, except for
    watches."""

    def __init__(self, access: Callable[[], KubeAccess], *, timeout: float = 10.0) -> None:
        self.ahead_s = 0.0  # seconds by which this machine's clock is ahead of the server's, by the last response
        self._find_access = access
        self._timeout = timeout
        self._current: _ConnectionPool | None = None
        self._open: set[_ConnectionPool] = set()
        self._server = ""
        self._private: Sequence[str] = ()
        self._large: set[Resource[Any]] = set()
        self._decoders: dict[type[Any], JsonDecoder[ObjectList[Any]]] = {}

    async def close(self) -> None:
        """Close all connections; requests in progress fail."""
        self._current = None
        for connection in tuple(self._open):
            await self._end(connection)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def list(
        self,
        resource: Resource[ItemT],
        *,
        selector: Selector = EVERYTHING,
        page: int = PAGE,
        at_least: str = NEWEST,
    ) -> Listing[ItemT]:
        """Return all selected objects of a resource, at least as new as the resource version `at_least`, NEWEST or
        ANY_VERSION.

        A list with a given version comes from the server's watch cache, in one response. The newest list, and a list
        that is larger than UNPAGED_BODY, is read in pages; if it expires between two pages, it is requested again
        without paging, which cannot expire. Raises KubeGone or KubeUnreachable (cause ResourceVersionTooLarge) if the
        server does not have the version, and other KubeErrors.
        """
        parameters = selector.parameters()
        if at_least != NEWEST and resource not in self._large:
            match = {} if at_least == ANY_VERSION else {"resourceVersionMatch": "NotOlderThan"}
            try:
                cached = {**parameters, "resourceVersion": at_least, **match}
                return await self._list(resource, cached, selector.namespace, whole=True)
            except _ResponseTooLarge:
                log.debug("the list of %s is too large for one response; reading pages", resource.full_name)
                self._large.add(resource)
        try:
            return await self._list(resource, {**parameters, "limit": str(page)}, selector.namespace)
        except KubeGone:
            log.debug("the list of %s expired between two pages", resource.full_name)
            return await self._list(resource, parameters, selector.namespace)
        except _ResponseTooLarge:
            if page <= SMALL_PAGE:
                raise
            log.debug("a page of %d %s is too large; reading pages of %d", page, resource.full_name, SMALL_PAGE)
            return await self.list(resource, selector=selector, page=SMALL_PAGE)

    async def _list(
        self, resource: Resource[ItemT], parameters: Mapping[str, str], namespace: str, *, whole: bool = False
    ) -> Listing[ItemT]:
        items: list[ItemT] = []
        unread: dict[str, str] = {}
        try:
            more = ""
            for _ in range(MOST_PAGES):
                following = {"continue": more} if more else {}
                page, problems = await self._page(resource, {**parameters, **following}, namespace, whole=whole)
                items += page.items or ()
                unread |= problems
                more = page.metadata.more
                if not more:
                    BUDGET.accept(f"list of {resource.full_name}")
                    return Listing(tuple(items), page.metadata.resource_version, unread)
                if BUDGET.is_full():
                    break
        except BaseException:
            items.clear()  # the error refers to this frame, and may be kept for long
            raise
        count = len(items)
        del page
        items.clear()
        reason = (
            f"the list of {resource.full_name} has more than {count:,} objects, which do not fit into the memory limit"
        )
        BUDGET.refuse(f"list of {resource.full_name}", reason)
        raise KubeMalformed(reason, hint="Check the API server, or raise the memory limit of this process.")

    async def _page(
        self, resource: Resource[ItemT], parameters: Mapping[str, str], namespace: str = "", *, whole: bool = False
    ) -> tuple[ObjectList[ItemT], Mapping[str, str]]:
        async with self._translated(resource):
            call = _KubeRequest(
                resource,
                "list",
                resource.path_in(namespace),
                namespace=namespace,
                parameters=parameters,
                seconds=UNPAGED_S if whole else None,
                most_bytes=UNPAGED_BODY if whole else None,
            )
            body = await self._ask(call)
            if len(body) > LARGE_BODY:
                return await asyncio.to_thread(read_large_page, body, resource=resource)
            decoder = self._decoders.setdefault(resource.item, list_decoder(resource.item))
            return read_page(body, decoder, resource=resource)

    async def count(self, resource: Resource[Any]) -> int:
        """Return the number of objects of a resource, read from the metadata of a one-object page. Raises KubeError."""
        page, unread = await self._page(resource, {"limit": "1"})
        return len(page.items or ()) + len(unread) + (page.metadata.remaining or 0)

    async def get(self, resource: Resource[ItemT], key: str, *, cached: bool = False) -> ItemT:
        """Return one object by its `key_of`. With `cached`, the API server may answer from its cache, which spares etcd
        and can be out of date. Raises KubeNotFound if it does not exist, and other KubeErrors."""
        parameters = {"resourceVersion": "0"} if cached else {}
        call = _KubeRequest(resource, "get", resource.path_of(key), parameters=parameters)
        async with self._translated(resource):
            return read_item(await self._ask(call), resource=resource)

    async def served(self, resource: Resource[Any]) -> frozenset[str]:
        """Return the plural names in the group and version of `resource`. Raises KubeNotFound if there are none."""
        listed = Resource(resource.group, resource.version, resource.plural, ResourceList)
        async with self._translated(resource):
            body = await self._ask(_KubeRequest(listed, "get", resource.path.rpartition("/")[0]))
            return frozenset(each.name for each in read_item(body, resource=listed).resources)

    async def watch(
        self, resource: Resource[ItemT], *, since: str, selector: Selector = EVERYTHING, seconds: int = WATCH_S
    ) -> AsyncGenerator[WatchEvent[ItemT], None]:
        """Yield changes after the resource version `since`, for about `seconds`; ends when the server ends the watch.

        An object that no longer matches the selector is reported as DELETED. Raises KubeGone if the server no longer
        has that version, KubeUnreachable if the connection is lost, and other KubeErrors.
        """
        parameters = {
            **selector.parameters(),
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        decoder = JsonDecoder(resource.item)
        path, silence = resource.path_in(selector.namespace), seconds + SILENCE_S
        call = _KubeRequest(
            resource, "watch", path, namespace=selector.namespace, parameters=parameters, silence=silence
        )
        async with (
            self._translated(resource),
            self._connected() as connection,
            self._sent(call, connection, await connection.access.headers()) as response,
        ):
            yield WatchEvent("OPENED", since)
            while line := await response.content.readline():
                if not line.endswith(b"\n"):
                    raise KubeUnreachable(f"the watch of {resource.full_name} ended in the middle of a line")
                yield read_event(line, decoder, resource=resource)

    async def is_allowed(
        self, verb: str, resource: Resource[Any], *, subresource: str = "", namespace: str = "", name: str = ""
    ) -> bool:
        """Return whether this account may `verb` all objects of a resource, the objects of a namespace, or the object
        of that name in the namespace. The check (a SelfSubjectAccessReview) requires no permission. Raises
        KubeError."""
        attributes = {
            "verb": verb,
            "group": resource.group,
            "version": resource.version,
            "resource": resource.plural,
            "subresource": subresource,
            **({"namespace": namespace} if namespace else {}),
            **({"name": name} if name else {}),
        }
        question = {
            "apiVersion": ACCESS_REVIEWS.group_version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        call = _KubeRequest(ACCESS_REVIEWS, "create", ACCESS_REVIEWS.path, "POST", body=question)
        async with self._translated(ACCESS_REVIEWS):
            return read_item(await self._ask(call), resource=ACCESS_REVIEWS).status.allowed

    # --- writing ------------------------------------------------------------------------------------------------------

    async def patch(
        self,
        resource: Resource[ItemT],
        key: str,
        change: object,
        *,
        kind: PatchKind,
        subresource: str = "",
        manager: str = "",
    ) -> ItemT:
        """Change one object, or its `subresource` ("status"), and return the changed object. The managed fields name
        `manager` as the writer.

        A metadata.resourceVersion in the change makes it conditional: KubeConflict if the object has another version by
        then. Raises KubeNotFound if the object does not exist, and other KubeErrors.
        """
        path = resource.path_of(key, subresource)
        written = {"fieldManager": manager} if manager else {}
        call = _KubeRequest(resource, "patch", path, "PATCH", subresource, written, change, kind.value)
        async with self._translated(resource):
            return read_item(await self._ask(call), resource=resource)

    async def create(self, resource: Resource[Any], content: object, *, namespace: str = "", manager: str = "") -> None:
        """Create an object with the name from its metadata, written by `manager`. The server ignores its status if
        status is a subresource. Raises KubeConflict if an object of that name exists, and other KubeErrors."""
        written = {"fieldManager": manager} if manager else {}
        call = _KubeRequest(resource, "create", resource.path_in(namespace), "POST", parameters=written, body=content)
        async with self._translated(resource):
            await self._ask(call)

    async def create_subresource(self, resource: Resource[Any], key: str, content: object, *, subresource: str) -> None:
        """Post to a subresource of an object, such as "binding" or "eviction". Raises KubeError."""
        call = _KubeRequest(resource, "create", resource.path_of(key, subresource), "POST", subresource, body=content)
        async with self._translated(resource):
            await self._ask(call)

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _ask(self, call: _KubeRequest) -> bytes:
        """Send a request and return the whole response body, within `timeout`."""
        async with self._connected() as connection:
            headers = await connection.access.headers()
            seconds = self._timeout if call.seconds is None else max(self._timeout, call.seconds)
            async with asyncio.timeout(seconds), self._sent(call, connection, headers) as response:
                return await _read_body(response, most_bytes=call.most_bytes)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_ConnectionPool]:
        """The current connection, kept open at least until the context exits."""
        connection = self._connect()
        connection.users += 1
        try:
            yield connection
        finally:
            connection.users -= 1
            if connection is not self._current and not connection.users:
                await self._end(connection)

    @contextlib.asynccontextmanager
    async def _sent(
        self, call: _KubeRequest, connection: _ConnectionPool, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful response whose body is not yet read. Raises the KubeError that corresponds to a failure
        status."""
        access = connection.access
        self._private = [each.removeprefix("Bearer ") for each in headers.values()]
        # The total limits a watch that sends a line byte by byte; other requests have a deadline of their own.
        timeout = aiohttp.ClientTimeout(
            total=call.silence, sock_connect=self._timeout, sock_read=call.silence or self._timeout
        )
        response = None
        try:
            async with asyncio.timeout(self._timeout):
                response = await connection.session.request(
                    call.method,
                    access.server + call.path,
                    params=call.parameters,
                    data=None if call.body is None else msgspec.json.encode(call.body),
                    headers={**headers, **({} if call.body is None else {"Content-Type": call.content_type})},
                    timeout=timeout,
                    allow_redirects=False,  # a redirect would send the token to another server
                    server_hostname=access.tls_server_name if access.tls else None,
                )
                self.ahead_s = _seconds_ahead(response.headers.get("Date"), now=time.time())
                if response.status not in DONE:
                    raise await _read_failure(response, call, private=self._private)
            yield response
        finally:
            if response is not None:
                _abort_response(response)

    async def _end(self, connection: _ConnectionPool) -> None:
        self._open.discard(connection)
        await connection.session.close()

    def _connect(self) -> _ConnectionPool:
        if self._current is None:
            access = self._find_access()
            session = client_session(
                tls=access.tls,
                connector={"socket_factory": _keepalive_socket},
                headers={"User-Agent": f"load-watcher/{__version__}", "Accept": "application/json"},
                read_bufsize=READ_BUFFER,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            if access.server != self._server:
                log.info("using the Kubernetes API at %s, configured by %s", access.server, access.origin)
            self._current, self._server = _ConnectionPool(access, session), access.server
            self._open.add(self._current)
        return self._current

    @contextlib.asynccontextmanager
    async def _translated(self, resource: Resource[Any]) -> AsyncIterator[None]:
        """Turn every failure inside the context into a KubeError whose message begins with the server's address. After
        a failure of the credentials, the next request opens a new connection with the credentials then available;
        requests in progress may finish on the old one."""
        try:
            yield
        except (KubeError, aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            host = urlsplit(self._server).hostname or "" if self._server else None
            message = (
                error if isinstance(error, KubeError) else connection_error(error, what=resource.full_name, host=host)
            )
            if isinstance(message, KubeUnauthorized) or (isinstance(message, KubeRefused) and message.status is None):
                retired, self._current = self._current, None
                if retired is not None and not retired.users:
                    await self._end(retired)
            raise (message.with_server(self._server, private=self._private) if self._server else message) from error


def _abort_response(response: aiohttp.ClientResponse) -> None:
    """Abandon the unread part of a response without TLS's closing handshake, which an unreachable peer would never
    answer."""
    transport = None if response.connection is None else response.connection.transport
    response.close()
    if transport is not None:
        transport.abort()


async def _read_failure(response: aiohttp.ClientResponse, call: _KubeRequest, *, private: Iterable[str]) -> KubeError:
    """The error that corresponds to a failure response, from the beginning of its body. Removes the secrets in
    `private`, because some proxies include the request in their error pages."""
    start = (await read_start(response)).decode("utf-8", "surrogateescape")
    # before the body is truncated: a truncated secret would not match
    body = hide_secrets(start, private).encode("utf-8", "surrogateescape")
    return error_of(
        response.status,
        read_status(body),
        verb=call.verb,
        resource=call.resource,
        subresource=call.subresource,
        namespace=call.namespace,
        retry_after=response.headers.get("Retry-After"),
    )


class _ResponseTooLarge(KubeMalformed):
    """The response is larger than the limit of the request."""


async def _read_body(response: aiohttp.ClientResponse, *, most_bytes: int | None) -> bytes:
    try:
        return await read_body(response, answer_bound(most_bytes))
    except AnswerTooLarge as error:
        raise _ResponseTooLarge(str(error), hint=TOO_LARGE_HINT) from error


def _keepalive_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket of `socket.getaddrinfo`'s result that detects a peer whose machine has failed."""
    family, kind, protocol, _, _ = address
    connected = socket.socket(family, kind, protocol)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        if hasattr(socket, option):  # macOS has other names
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return connected
