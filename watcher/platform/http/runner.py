"""Runs the application so that malformed HTTP requests also get a JSON error.

A request that aiohttp's parser rejects never reaches a handler: the protocol answers it in plain text and logs a
traceback. `RequestHandler.handle_error` does both, so this runner creates connections whose `handle_error` answers in
JSON, closes the connection, and logs one line at debug level, because any client can send garbage at any rate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from watcher.platform.http.parameters import truncated
from watcher.platform.http.routing import ApiError, Router

log = logging.getLogger(__name__)

HANDLER_ARGS: Mapping[str, Any] = {"max_line_size": 65536, "max_field_size": 65536, "access_log": None}
"""Arguments of each connection: a long request line for many ?host= parameters, and no access log."""


class Runner(web.AppRunner):
    """An AppRunner whose connections answer malformed requests in JSON. Create it with `make_runner`."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return _Server(server.request_handler, request_factory=server.request_factory)


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _JsonErrorConnection(self, loop=asyncio.get_running_loop(), **HANDLER_ARGS)


class _JsonErrorConnection(RequestHandler):
    """A connection that answers malformed requests in JSON."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return a JSON error for a failure outside of the handlers."""
        if status >= 500:
            log.error("request from %s failed", request.remote, exc_info=exc)
            error = ApiError(status, "internal", "internal error in load-watcher", "see the log of load-watcher")
        else:
            log.debug("malformed HTTP request from %s: %s", request.remote, message)
            error = ApiError(status, "bad_request", "malformed HTTP request", _hint(exc, message))
        if request.writer.output_size > 0:
            raise ConnectionError("the response has already begun; cannot send an error")
        response = error.response()
        response.headers[hdrs.CONNECTION] = "close"
        response.force_close()
        return response


def _hint(exc: BaseException | None, message: str | None) -> str:
    if isinstance(exc, LineTooLong):
        return f"a line of the request is longer than {HANDLER_ARGS['max_line_size']} bytes"
    return truncated((message or "").strip().partition("\n")[0].rstrip(":"))


class _CatchAllResource(web.PlainResource):
    """Passes every request target to `Router`, including `*`, which no aiohttp path matches."""

    leads_to: web.AbstractRoute

    async def resolve(self, request: web.Request) -> tuple[web.UrlMappingMatchInfo, set[str]]:
        return web.UrlMappingMatchInfo({}, self.leads_to), set()


def application(router: Router) -> web.Application:
    """The aiohttp application whose requests are all handled by `router`."""
    app = web.Application()
    everything = _CatchAllResource("/")
    everything.leads_to = everything.add_route("*", router.dispatch)
    app.router.register_resource(everything)
    return app


def make_runner(app: web.Application) -> web.AppRunner:
    """The runner for an application. The caller sets it up, adds sites, and cleans it up."""
    return Runner(app)
