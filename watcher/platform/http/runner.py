"""Runs an application with limited connections (connections.py).

All servers of load-watcher use this runner: the service, the extender, the agent and the QoS Resource Manager.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from yarl import URL

from watcher.platform.http.connections import (
    Connection,
    ConnectionLimits,
    ConnectionPool,
    as_http_1,
    is_out_of_descriptors,
    limits_of_process,
)
from watcher.platform.http.routing import ApiError, Router
from watcher.platform.net.listening import any_address_socket, is_any_ipv6


class Runner(web.AppRunner):
    """An AppRunner whose connections are limited, and answer malformed requests in JSON. The caller sets it up, starts
    listening, and cleans it up."""

    def __init__(self, app: web.Application, *, limits: ConnectionLimits | None = None, **options: Any) -> None:
        super().__init__(app, **options)
        self.limits = limits_of_process() if limits is None else limits

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return _Server(server, ConnectionPool(self.limits))

    async def listen(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections with the backlog of the limits; on `::`, of IPv6 and IPv4. Raises OSError."""
        backlog = self.limits.backlog
        if is_any_ipv6(host):
            await web.SockSite(self, any_address_socket(port), ssl_context=tls, backlog=backlog).start()
        else:
            await web.TCPSite(self, host, port, ssl_context=tls, backlog=backlog).start()


class _Server(web.Server):
    """Creates connections of one pool."""

    def __init__(self, server: web.Server, pool: ConnectionPool) -> None:
        super().__init__(server.request_handler, request_factory=self._request)
        self._pool = pool
        self._make = server.request_factory
        self._loop.set_exception_handler(self._on_exception)

    def __call__(self) -> RequestHandler:
        return self._pool.accept(self)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        assert isinstance(protocol, Connection)
        protocol.begin_request(payload)
        if message.method == hdrs.METH_CONNECT:  # its target has no path, so aiohttp would answer instead of `Router`
            message = message._replace(url=URL("/"))
        return self._make(as_http_1(message), payload, protocol, writer, task)

    async def shutdown(self, timeout: float | None = None) -> None:
        self._pool.close()
        await super().shutdown(timeout)

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Report missing descriptors once per minute; asyncio logs a traceback for each attempt to accept."""
        error = context.get("exception")
        if is_out_of_descriptors(error) and "socket" in context:
            self._pool.out_of_descriptors(error)
        else:
            loop.default_exception_handler(context)


class _CatchAllResource(web.PlainResource):
    """Passes every request target to `Router`, including `*`, which no aiohttp path matches."""

    leads_to: web.AbstractRoute

    async def resolve(self, request: web.Request) -> tuple[web.UrlMappingMatchInfo, set[str]]:
        return web.UrlMappingMatchInfo({}, self.leads_to), set()


async def _expect(request: web.Request) -> web.StreamResponse | None:
    """Answer the Expect header; with None, the request continues."""
    if request.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        return ApiError(417, "bad_request", "the Expect header has an unknown value", "omit it").response()
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the response has not begun
    return None


def application(router: Router) -> web.Application:
    """The aiohttp application whose requests are all handled by `router`."""
    app = web.Application()
    everything = _CatchAllResource("/")
    everything.leads_to = everything.add_route("*", router.dispatch, expect_handler=_expect)
    app.router.register_resource(everything)
    return app
