"""Running the application so that even what is not HTTP gets our shape of error.

A request that aiohttp's parser refuses never reaches a handler: the protocol answers it itself, in plain text, and logs
a traceback for each. Both are decided in `RequestHandler.handle_error`, so the runner here makes connections whose
`handle_error` answers in JSON, closes, and logs a line at debug level: anyone can send garbage, as often as they like.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from aiohttp import hdrs, web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from watcher.platform.http.parameters import shown
from watcher.platform.http.routing import ApiError, Router

log = logging.getLogger(__name__)

HANDLER_ARGS: Mapping[str, Any] = {"max_line_size": 65536, "max_field_size": 65536, "access_log": None}
"""Of a connection: room for many ?host= in a line, and no log line per request."""


class Runner(web.AppRunner):
    """An AppRunner with connections of ours. Make it with `make_runner`."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        return _Server(server.request_handler, request_factory=server.request_factory)


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **HANDLER_ARGS)


class _Connection(RequestHandler):
    """One connection."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What went wrong outside of our handlers, in JSON."""
        if status >= 500:
            log.error("a request from %s failed", request.remote, exc_info=exc)
            error = ApiError(status, "internal", "the request failed inside load-watcher", "its log says why")
        else:
            log.debug("not HTTP from %s: %s", request.remote, message)
            error = ApiError(
                status, "bad_request", "this is not an HTTP request that can be understood", _hint(exc, message)
            )
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already; an error cannot follow it")
        response = error.response()
        response.headers[hdrs.CONNECTION] = "close"
        response.force_close()
        return response


def _hint(exc: BaseException | None, message: str | None) -> str:
    if isinstance(exc, LineTooLong):
        return f"a line of it is longer than {HANDLER_ARGS['max_line_size']} bytes"
    return shown((message or "").strip().partition("\n")[0].rstrip(":"))


class _Everything(web.PlainResource):
    """Whatever is asked for, the router of ours finds out what it is: also `*`, which no path of aiohttp's matches."""

    leads_to: web.AbstractRoute

    async def resolve(self, request: web.Request) -> tuple[web.UrlMappingMatchInfo, set[str]]:
        return web.UrlMappingMatchInfo({}, self.leads_to), set()


def application(router: Router) -> web.Application:
    """The application in which a router of ours answers every request."""
    app = web.Application()
    everything = _Everything("/")
    everything.leads_to = everything.add_route("*", router.dispatch)
    app.router.register_resource(everything)
    return app


def make_runner(app: web.Application) -> web.AppRunner:
    """The runner for an application of ours. The caller sets it up, gives it sites, and cleans it up."""
    return Runner(app)
