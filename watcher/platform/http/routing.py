"""Maps requests to handlers, and all failures to one JSON error format.

aiohttp's own router answers an unknown path, a wrong method and a bad request in plain text, redirects `//watcher`
(Go clients follow the redirect, others do not), and builds a chain of middlewares for every request. Here one table of
routes is used to match requests and to generate the OpenAPI document; other packages add routes to it.

A handler returns a response or raises `ApiError`. Any other exception is logged with its traceback, and the client gets
an error without details.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from time import perf_counter
from typing import Any, NoReturn, Protocol

import msgspec
from aiohttp import hdrs, web

from watcher.core.messages import nearest
from watcher.core.publishing.wire import ErrorDetail, ErrorDocument
from watcher.platform.http.openapi import Operation
from watcher.platform.http.parameters import BadParameter, path_segment, truncated
from watcher.platform.http.sites import LocalHosts, foreign_origin

log = logging.getLogger(__name__)

READ_METHODS = ("GET", "HEAD")
JSON = "application/json"
YAML = "application/yaml"
IDENTITY = "identity"
UNMATCHED = "unmatched"  # the route label of requests that match no route
_CODES = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 413: "too_large"}

Handler = Callable[[web.Request, Sequence[str]], Awaitable[web.StreamResponse]]
"""Called with the request and the values of the path's `{parameters}`, in order."""


class Access(Enum):
    """The credentials that a route requires."""

    OPEN = "open"  # none: probes cannot send a token
    SCHEDULER = "scheduler"  # with scheduler_clients: a verified client certificate with one of these names
    DETAIL = "detail"  # once a token is configured: the token or a verified client certificate
    READ = "read"  # with protect_reads: the token or a verified client certificate
    WRITE = "write"  # always the token: the route changes state


@dataclass(frozen=True, slots=True)
class Route:
    """One path and its handler. `path` may contain `{parameters}`, each a whole segment; a literal path takes
    precedence over one with parameters. `name` is the label on /metrics. GET also serves HEAD. `body_types` are the
    accepted media types of the body of all other methods; no form of HTML can send them."""

    path: str
    name: str
    handler: Handler
    operation: Operation
    method: str = "GET"
    access: Access = Access.READ
    body_types: tuple[str, ...] = (JSON,)

    @property
    def methods(self) -> tuple[str, ...]:
        return READ_METHODS if self.method == "GET" else (self.method,)


class ApiError(Exception):
    """An error response: HTTP status, error code, message, and a hint how to fix it. The members of `extra` (JSON types
    only) are added to the body next to "error"."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})

    @property
    def detail(self) -> ErrorDetail:
        """The "error" object of the body."""
        return ErrorDetail(self.code, self.message, self.hint)

    def response(self) -> web.Response:
        """The HTTP response. Errors must not be cached, because the next tick may resolve them."""
        document: object = ErrorDocument(self.detail)
        if self.extra:
            document = {**msgspec.to_builtins(document), **self.extra}
        headers = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store", **self.headers}
        return web.Response(status=self.status, body=msgspec.json.encode(document), headers=headers)


class AccessSettings(Protocol):
    """The settings for access control. `token` is the bearer token, None if none is configured. `scheduler_clients` are
    the names of the client certificates for routes with Access.SCHEDULER, empty if these are open."""

    @property
    def token(self) -> str | None: ...

    @property
    def scheduler_clients(self) -> Collection[str]: ...

    @property
    def protect_reads(self) -> bool: ...


class Meter(Protocol):
    """Interface of the request counter; durations are in seconds."""

    def count_request(self, *, route: str, status: int, seconds: float) -> None: ...


@dataclass(slots=True)
class _PathRoutes:
    """The routes of one path by method, and the segments of the path."""

    template: tuple[str, ...]
    name: str  # route label for requests with an unsupported method
    routes: dict[str, Route] = field(default_factory=dict)

    @property
    def allow(self) -> str:
        return ", ".join(sorted(self.routes))


class Router:
    """The table of routes, and the aiohttp handler that dispatches to them. `hosts` are the accepted Host headers, None
    for all."""

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        protection: AccessSettings,
        meter: Meter,
        hosts: LocalHosts | None = None,
    ) -> None:
        if protection.protect_reads and not protection.token:
            raise ValueError("protect_reads needs a token: set server.token_file")
        self.routes = tuple(routes)
        self._protection = protection
        self._meter = meter
        self._hosts = hosts
        self._exact: dict[str, _PathRoutes] = {}
        self._by_head: dict[str, _PathRoutes] = {}  # only the last segment is a parameter; key: the path before it
        self._patterns: dict[int, list[_PathRoutes]] = {}  # all other paths with parameters, by number of segments
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._node_of(route)
        for method in route.methods:
            if method in node.routes:
                raise ValueError(f"two routes for {method} {route.path}: {node.routes[method].name} and {route.name}")
            node.routes[method] = route

    def _node_of(self, route: Route) -> _PathRoutes:
        template = tuple(route.path.split("/"))
        fresh = _PathRoutes(template, route.name)
        head, _, last = route.path.rpartition("/")
        if "{" not in route.path:
            return self._exact.setdefault(route.path, fresh)
        if "{" not in head and last[0] == "{":
            return self._by_head.setdefault(head, fresh)
        nodes = self._patterns.setdefault(len(template), [])
        same = [node for node in nodes if node.template == template]
        if not same:
            nodes.append(fresh)
        return same[0] if same else fresh

    async def dispatch(self, request: web.Request) -> web.StreamResponse:
        """Check access, call the handler and count the request. Exceptions become error responses."""
        began = perf_counter()
        name = UNMATCHED
        try:
            headers = request.headers
            if self._hosts is not None and not self._hosts.accept(headers.get(hdrs.HOST)):
                _refuse_host(headers.get(hdrs.HOST, ""))
            if hdrs.CONTENT_ENCODING in headers and headers[hdrs.CONTENT_ENCODING].lower() != IDENTITY:
                _refuse_coding(headers[hdrs.CONTENT_ENCODING])
            node, captured = self._match(request.rel_url.raw_path)
            route = node.routes.get(request.method)
            name = node.name
            if route is None:
                _refuse_method(request.method, node.allow)
            name = route.name
            if route.method not in READ_METHODS:
                _check_site(headers)
                _check_type(headers.get(hdrs.CONTENT_TYPE, ""), route.body_types)
            if route.access is Access.SCHEDULER:
                _check_certificate(request, self._protection.scheduler_clients)
            elif route.access is not Access.OPEN:
                self._check_token(request, route.access)
            response = await route.handler(request, captured)
        except Exception as error:
            response = error_response(error, route=name)
        self._meter.count_request(route=name, status=response.status, seconds=perf_counter() - began)
        return response

    def _match(self, path: str) -> tuple[_PathRoutes, Sequence[str]]:
        """The node of a path and the values of its parameters. Duplicate and trailing slashes are ignored."""
        node = self._exact.get(path)
        if node is not None:
            return node, ()
        head, _, last = path.rpartition("/")
        node = self._by_head.get(head)
        if node is not None and last:
            return node, (path_segment(last),)
        segments = path.split("/")
        for node in self._patterns.get(len(segments), ()):
            captured = _captured(node.template, segments)
            if captured is not None:
                return node, captured
        if "//" in path or (path.endswith("/") and path != "/"):
            return self._match("/" + "/".join(segment for segment in segments if segment))
        self._refuse_path(path)

    def _refuse_path(self, path: str) -> NoReturn:
        known = sorted({route.path for route in self.routes})
        near = nearest(path, known)
        hint = f"did you mean {near}? /openapi.json lists all paths" if near else "/openapi.json lists all paths"
        raise ApiError(404, "not_found", f"unknown path {truncated(path)!r}", hint)

    def _check_token(self, request: web.Request, access: Access) -> None:
        if access is Access.READ and not self._protection.protect_reads:
            return
        if access is Access.DETAIL and not self._protection.token:
            return
        if access is not Access.WRITE and has_certificate(request):
            return
        if not self._protection.token:
            raise ApiError(
                403, "forbidden", "requests that change state need a token, but none is set", "set server.token_file"
            )
        if not has_token(request, self._protection.token):
            raise ApiError(
                401,
                "unauthorized",
                "a valid bearer token is required",
                "send Authorization: Bearer TOKEN with the token from server.token_file",
                headers={hdrs.WWW_AUTHENTICATE: 'Bearer realm="load-watcher"'},
            )


def has_token(request: web.Request, token: str) -> bool:
    """Whether the client sent the bearer token."""
    scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    # compared even if the scheme is wrong, so that all rejections take the same time
    equal = hmac.compare_digest(given.strip().encode("utf-8", "surrogateescape"), token.encode())
    return equal and scheme.lower() == "bearer"


def may_read(protection: AccessSettings, request: web.Request) -> bool:
    """Whether the client may read the documents of the routes with Access.READ."""
    if not protection.protect_reads or has_certificate(request):
        return True
    return bool(protection.token) and has_token(request, protection.token or "")


def has_certificate(request: web.Request) -> bool:
    """Whether the client sent a verified TLS certificate; the handshake fails for an invalid one."""
    return bool(_certificate(request))


def _certificate(request: web.Request) -> Mapping[str, Any]:
    """The verified TLS certificate of the client as `ssl` decodes it, empty without one."""
    found = None if request.transport is None else request.transport.get_extra_info("peercert")
    return found or {}


def _check_certificate(request: web.Request, accepted: Collection[str]) -> None:
    if not accepted:
        return
    names = certificate_names(_certificate(request))
    if names.isdisjoint(accepted):
        given = f"this one is for {truncated(', '.join(sorted(names)))}" if names else "none was sent"
        raise ApiError(
            403,
            "certificate_required",
            f"a client certificate with a name of server.scheduler_clients is required; {given}",
            "set certFile and keyFile in the tlsConfig of the extender (KubeSchedulerConfiguration)",
        )


def certificate_names(certificate: Mapping[str, Any]) -> frozenset[str]:
    """The common name of the subject and the DNS names of a certificate, as SSLSocket.getpeercert returns it."""
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    common = (value for key, value in subject if key == "commonName")
    return frozenset([*common, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")])


def _captured(template: Sequence[str], segments: Sequence[str]) -> list[str] | None:
    """The values of the template's parameters, None if the segments do not match the template."""
    captured: list[str] = []
    for expected, segment in zip(template, segments, strict=True):
        if expected[:1] == "{":
            if not segment:
                return None
            captured.append(path_segment(segment))
        elif expected != segment:
            return None
    return captured


def _refuse_host(host: str) -> NoReturn:
    raise ApiError(
        421,
        "wrong_host",
        f"this service is not {truncated(host)!r}",
        "use an IP address or localhost; server.hosts of load-watcher serve adds names",
    )


def _refuse_coding(coding: str) -> NoReturn:
    raise ApiError(
        415,
        "unsupported_encoding",
        f"requests with Content-Encoding {truncated(coding)!r} are not accepted",
        "send the body without a content coding",
        headers={hdrs.ACCEPT_ENCODING: IDENTITY},
    )


def _check_site(headers: Mapping[str, str]) -> None:
    if origin := foreign_origin(headers):
        raise ApiError(
            403,
            "cross_site",
            f"requests of pages of another site are not accepted: {truncated(origin)!r}",
            "use the dashboard of this service, or a program that is not a browser",
        )


def _check_type(given: str, accepted: Sequence[str]) -> None:
    if given.partition(";")[0].strip().lower() in accepted:
        return
    message = f"bodies of type {truncated(given)!r} are not accepted here" if given else "the Content-Type is missing"
    hint = f"send the header Content-Type: {f', or {hdrs.CONTENT_TYPE}: '.join(accepted)}"
    raise ApiError(415, "unsupported_type", message, hint, headers={hdrs.ACCEPT: ", ".join(accepted)})


def _refuse_method(method: str, allow: str) -> NoReturn:
    raise ApiError(
        405,
        "method_not_allowed",
        f"method {truncated(method)!r} is not allowed here",
        f"use {allow}",
        headers={hdrs.ALLOW: allow},
    )


def error_response(error: Exception, *, route: str) -> web.Response:
    """The error response for an exception. An unexpected exception is logged with its traceback, and the client gets no
    details."""
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, BadParameter):
        return ApiError(400, "bad_request", str(error), error.hint).response()
    if isinstance(error, web.HTTPException):
        return ApiError(error.status, _CODES.get(error.status, "http_error"), error.reason or "").response()
    log.error("request failed in %s", route, exc_info=error)
    return ApiError(500, "internal", "internal error in load-watcher", "see the log of load-watcher").response()
