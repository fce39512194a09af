"""The route of /openapi.json, which describes the routes of a process and itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.platform.http import openapi
from watcher.platform.http.responses import StaticBody, static_response
from watcher.platform.http.routing import JSON, Route


def description_route(
    routes: Iterable[Route], *, version: str, protected: bool, closed: Mapping[str, Sequence[str]] | None = None
) -> Route:
    """Describe `routes`; the other arguments are those of `openapi.document`."""
    everything = [*routes, _route(b"")]
    described = openapi.document(everything, version=version, protected=protected, closed=closed)
    return _route(msgspec.json.encode(described))


def _route(body: bytes) -> Route:
    return Route("/openapi.json", "openapi", partial(_constant, body=StaticBody.of(body, JSON)), operations.OPENAPI)


async def _constant(request: web.Request, captured: Sequence[str], *, body: StaticBody) -> web.Response:
    """Return a body that does not change while the process runs."""
    return static_response(request, body)
