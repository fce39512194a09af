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
import errno
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

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
    shown,
)
from watcher.core.kubernetes.objects import ACCESS_REVIEWS
from watcher.core.kubernetes.wire import ItemT, ObjectList, Resource, list_decoder
from watcher.platform.kube.credentials import Access
from watcher.platform.kube.refusals import error_of, read_status
from watcher.platform.kube.responses import Event, Listing, read_event, read_item, read_large_page, read_page
from watcher.platform.net.http_body import read_at_most

log = logging.getLogger(__name__)

PAGE = 500
"""Objects of a page: 5,000 nodes come in ten, and decoding one holds the event loop for some 4 ms."""
LARGE_BODY = 4 << 20
"""metrics-server knows no pages: it answers for 50,000 pods with 21 MB, which decoded in one call hold the event loop
for 130 ms. A page of 500 of anything is smaller than this, but for very large objects."""
MAX_BODY = 256 << 20
CHUNK = 1 << 16
READ_BUFFER = 2**21
"""aiohttp's default refuses lines over 512 KiB (testing.md §4.1); with this they may be 4 MiB, and etcd keeps 1.5."""
WATCH_S = 240
SILENCE_S = 15.0
"""How much longer than WATCH_S a watch may be silent before it counts as cut off."""

DONE = (200, 201, 202)


@dataclass(frozen=True, slots=True)
class Selector:
    """Which objects of a resource: all, or those that the server's `fields` ("spec.nodeName=node-1") and `labels`
    ("app=web,tier!=test") select. What the server knows of fields depends on the resource; it refuses others. Those of
    one `namespace` are asked for there, where a Role is enough."""

    fields: str = ""
    labels: str = ""
    namespace: str = ""

    def parameters(self) -> dict[str, str]:
        """As the API takes them."""
        given = {"fieldSelector": self.fields, "labelSelector": self.labels}
        return {name: value for name, value in given.items() if value}


EVERYTHING = Selector()


class PatchKind(StrEnum):
    """How a patch is to be understood: by what it is called on the wire."""

    JSON = "application/json-patch+json"
    """A list of operations (RFC 6902)."""
    MERGE = "application/merge-patch+json"
    """What is to be put in the place of what is there, lists as a whole (RFC 7396)."""
    STRATEGIC = "application/strategic-merge-patch+json"
    """The same, but that lists which have a key (conditions: their type) are merged by it. Not for custom resources."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A request: who may send it is decided by `verb`, the resource, its `subresource`, and the `namespace` if it is
    about one alone. `silence` is how long its answer may pause, by default as long as it may take."""

    resource: Resource[Any]
    verb: str
    path: str
    method: str = "GET"
    subresource: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    content_type: str = "application/json"
    silence: float | None = None
    namespace: str = ""


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
        self._private: Sequence[str] = ()
        self._decoders: dict[type[Any], msgspec.json.Decoder[ObjectList[Any]]] = {}

    async def close(self) -> None:
        """Hang up everything."""
        self._current = None
        for connection in tuple(self._open):
            await self._end(connection)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def list(
        self, resource: Resource[ItemT], *, selector: Selector = EVERYTHING, page: int = PAGE
    ) -> Listing[ItemT]:
        """All objects of a resource that are selected, in pages. A list that expires between two pages is asked for
        again, then whole, since that cannot expire. Raises KubeError."""
        try:
            return await self._list(resource, {**selector.parameters(), "limit": str(page)}, selector.namespace)
        except KubeGone:
            log.debug("the list of %s expired between two pages", resource.full_name)
            return await self._list(resource, selector.parameters(), selector.namespace)

    async def _list(self, resource: Resource[ItemT], parameters: Mapping[str, str], namespace: str) -> Listing[ItemT]:
        items: list[ItemT] = []
        unread: dict[str, str] = {}
        more = ""
        while True:
            following = {"continue": more} if more else {}
            page, problems = await self._page(resource, {**parameters, **following}, namespace)
            items += page.items or ()
            unread |= problems
            more = page.metadata.more
            if not more:
                return Listing(tuple(items), page.metadata.resource_version, unread)

    async def _page(
        self, resource: Resource[ItemT], parameters: Mapping[str, str], namespace: str = ""
    ) -> tuple[ObjectList[ItemT], Mapping[str, str]]:
        async with self._translated(resource):
            path = resource.path_in(namespace)
            body = await self._ask(_Call(resource, "list", path, namespace=namespace, parameters=parameters))
            if len(body) > LARGE_BODY:
                return await asyncio.to_thread(read_large_page, body, resource=resource)
            decoder = self._decoders.setdefault(resource.item, list_decoder(resource.item))
            return read_page(body, decoder, resource=resource)

    async def count(self, resource: Resource[Any]) -> int:
        """How many objects of a resource there are, which one of them tells. Raises KubeError."""
        page, unread = await self._page(resource, {"limit": "1"})
        return len(page.items or ()) + len(unread) + (page.metadata.remaining or 0)

    async def get(self, resource: Resource[ItemT], key: str) -> ItemT:
        """One object, by its `key_of`. Raises KubeNotFound if there is none, and other KubeErrors."""
        call = _Call(resource, "get", resource.path_of(key))
        async with self._translated(resource):
            return read_item(await self._ask(call), resource=resource)

    async def watch(
        self, resource: Resource[ItemT], *, since: str, selector: Selector = EVERYTHING, seconds: int = WATCH_S
    ) -> AsyncGenerator[Event[ItemT], None]:
        """Changes after the version `since`, for about `seconds`; ends when the server ends it.

        An object that is not selected any more is DELETED here. Raises KubeGone when the server no longer knows that
        version, KubeUnreachable when the connection is lost in between, and other KubeErrors.
        """
        parameters = {
            **selector.parameters(),
            "watch": "1",
            "resourceVersion": since,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        decoder = msgspec.json.Decoder(resource.item)
        path, silence = resource.path_in(selector.namespace), seconds + SILENCE_S
        call = _Call(resource, "watch", path, namespace=selector.namespace, parameters=parameters, silence=silence)
        async with (
            self._translated(resource),
            self._connected() as connection,
            self._sent(call, connection, await connection.access.headers()) as response,
        ):
            yield Event("OPENED", since)
            while line := await response.content.readline():
                if not line.endswith(b"\n"):
                    raise KubeUnreachable(f"the watch of {resource.full_name} broke off within a line")
                yield read_event(line, decoder, resource=resource)

    async def may(
        self, verb: str, resource: Resource[Any], *, subresource: str = "", namespace: str = "", name: str = ""
    ) -> bool:
        """Whether this account may `verb` all objects of a resource, or those of a namespace, or the one of that name
        in it. Asking that (a SelfSubjectAccessReview) takes no
        right of its own. Raises KubeError."""
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
        call = _Call(ACCESS_REVIEWS, "create", ACCESS_REVIEWS.path, "POST", body=question)
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
        """Change one object, or what belongs to its `subresource` ("status"), and return what it is then. Its managed
        fields will say that `manager` wrote what is changed.

        A metadata.resourceVersion in the change makes it conditional: KubeConflict if that is not the object's version
        any more. Raises KubeNotFound if there is no such object, and other KubeErrors.
        """
        path = resource.path_of(key, subresource)
        written = {"fieldManager": manager} if manager else {}
        call = _Call(resource, "patch", path, "PATCH", subresource, written, change, kind.value)
        async with self._translated(resource):
            return read_item(await self._ask(call), resource=resource)

    async def add(self, resource: Resource[Any], content: object, *, namespace: str = "", manager: str = "") -> None:
        """Make an object, with the name that its metadata has, written by `manager`. Its status, where that is a
        subresource, stays empty. Raises KubeConflict if there is one of that name, and other KubeErrors."""
        written = {"fieldManager": manager} if manager else {}
        call = _Call(resource, "create", resource.path_in(namespace), "POST", parameters=written, body=content)
        async with self._translated(resource):
            await self._ask(call)

    async def create(self, resource: Resource[Any], key: str, content: object, *, subresource: str) -> None:
        """Post to a subresource of an object: "binding", "eviction". Raises KubeError."""
        call = _Call(resource, "create", resource.path_of(key, subresource), "POST", subresource, body=content)
        async with self._translated(resource):
            await self._ask(call)

    # --- the connection ----------------------------------------------------------------------------------------------

    async def _ask(self, call: _Call) -> bytes:
        """The whole body of an answer, within `timeout`."""
        async with self._connected() as connection:
            headers = await connection.access.headers()
            async with asyncio.timeout(self._timeout), self._sent(call, connection, headers) as response:
                return await _read_body(response)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connection]:
        """The connection as it is now, which stays at least until the end of this."""
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
        self, call: _Call, connection: _Connection, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that is none of failure, its body not yet read. Raises the error that any other one means."""
        access = connection.access
        self._private = [each.removeprefix("Bearer ") for each in headers.values()]
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=call.silence or self._timeout)
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
                    allow_redirects=False,  # it would carry the token to wherever it leads
                    server_hostname=access.tls_server_name if access.tls else None,
                )
                if response.status not in DONE:
                    raise await _read_failure(response, call, private=self._private)
            yield response
        finally:
            if response is not None:
                _hang_up(response)

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
            if isinstance(told, KubeUnauthorized) or (isinstance(told, KubeRefused) and told.status is None):
                retired, self._current = self._current, None
                if retired is not None and not retired.users:
                    await self._end(retired)
            raise (told.told_by(self._server, private=self._private) if self._server else told) from error


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Give up what is not read of an answer, without TLS's goodbye: the other side may not be there to answer it."""
    transport = None if response.connection is None else response.connection.transport
    response.close()
    if transport is not None:
        transport.abort()


async def _read_failure(response: aiohttp.ClientResponse, call: _Call, *, private: Iterable[str]) -> KubeError:
    """What an answer of failure means, of which the beginning is enough. Without what is `private` in it, for
    some pages before an API show the request."""
    body = b""
    while len(body) < CHUNK and (chunk := await response.content.read(CHUNK)):
        body += chunk
    for secret in private:  # before it is cut, for a half of one would not be found
        body = body.replace(secret.encode(), b"***")
    return error_of(
        response.status,
        read_status(body),
        verb=call.verb,
        resource=call.resource,
        subresource=call.subresource,
        namespace=call.namespace,
        retry_after=response.headers.get("Retry-After"),
    )


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = await read_at_most(response.content, MAX_BODY)
    if body is None:
        raise KubeMalformed(f"its answer is larger than {MAX_BODY >> 20} MiB")
    return body


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
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        # asyncio has the address in place of the system's words, and aiohttp "ssl:default" even where there is no TLS
        said = os.strerror(error.errno)
    if isinstance(error, (aiohttp.ClientResponseError, HttpProcessingError, ValueError)):
        return KubeMalformed(f"its answer for {what} is no HTTP: {said}")
    return KubeUnreachable(f"the connection failed while asking for {what}: {said}")
