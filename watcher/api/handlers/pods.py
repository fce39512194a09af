"""Handler for pod usage: selection of pods, ETags and headers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from email.utils import formatdate
from functools import partial

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.api import operations
from watcher.api.body_builder import BodyBuilder
from watcher.api.data_errors import stale_error, unknown_host_error
from watcher.api.handlers.base import BODY_CACHE_BYTES, CurrentSnapshot, Handlers
from watcher.api.service import ServiceView
from watcher.core.pods.published import PublishedPods
from watcher.core.publishing.compression import Encoding, compressed
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.http.parameters import accepts_empty, minutes_of, query_values, truncated
from watcher.platform.http.responses import (
    BodyCache,
    body_response,
    encoding_for,
    etag_matches,
    not_modified,
    with_content_coding,
)
from watcher.platform.http.routing import JSON, ApiError

_PODS = operations.PODS.query_names


class PodHandlers(Handlers):
    """Handler for the usage of pods."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        super().__init__(service, current=current, body_builder=body_builder)
        self._kept = ("", BodyCache(BODY_CACHE_BYTES))  # tag of the published pods, cache of their encoded bodies

    async def pods(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The usage of all pods, or of the selected ones, as columns."""
        values = query_values(request.rel_url.raw_query_string, known=_PODS)
        wanted = minutes_of(values)
        service = self._service
        why, pods = service.request_pods(), service.pods
        if pods is None or not pods.table.pods:
            raise no_pods(service, why)
        age = pods.age(service.monotonic())
        if age > service.max_staleness:
            raise stale_error(service, age)
        encoding = encoding_for(request)
        minutes = min(wanted, len(pods.table.recent_cores))
        selected = {name: given for name, given in values.items() if name != "minutes"}
        tagged = partial(etag_of_pods, pods, {**selected, **({"minutes": [str(minutes)]} if minutes else {})})
        etag = tagged(encoding)
        headers = pod_headers(pods, etag, encoding, scope=self._current.scope, age=int(age))
        if etag_matches(request, etag):
            return not_modified(headers)
        if selected:
            make = partial(selected_pods, service, pods, selected, minutes=minutes, empty=accepts_empty(values))
            text = await self._body_builder.in_thread(make)
            body = await self._body_builder.in_thread(partial(compressed, text, encoding))
        else:
            write = partial(pods.body, minutes=minutes)
            body = await self._body_builder.cached_body(encoding, write, kept=self._kept_of(pods), etag=tagged)
        return body_response(body, headers)

    def _kept_of(self, pods: PublishedPods) -> BodyCache:
        if self._kept[0] != pods.tag:
            self._kept = (pods.tag, BodyCache(BODY_CACHE_BYTES))
        return self._kept[1]


def etag_of_pods(pods: PublishedPods, values: Mapping[str, Sequence[str]], encoding: Encoding) -> str:
    """The ETag of a document of pods. It is unique per body and constant while `pods` is published."""
    selected = sorted((name, *sorted(set(given))) for name, given in values.items())
    which = hashlib.blake2s(msgspec.json.encode(selected), digest_size=8).hexdigest() if selected else ""
    return f'"{pods.tag}-{which}-{encoding}"'


def pod_headers(pods: PublishedPods, etag: str, encoding: Encoding, *, scope: str, age: int) -> CIMultiDict[str]:
    """Headers of a document of pods. `age` is the age of the newest reading in seconds; `scope` is the prefix of
    Cache-Control."""
    headers = {
        hdrs.CONTENT_TYPE: JSON,
        hdrs.VARY: hdrs.ACCEPT_ENCODING,
        hdrs.CACHE_CONTROL: f"{scope}max-age={int(pods.cadence_s)}, must-revalidate",
        hdrs.LAST_MODIFIED: formatdate(pods.timestamp, usegmt=True),
        hdrs.ETAG: etag,
        hdrs.AGE: str(age),
    }
    return with_content_coding(headers, encoding)


def selected_pods(
    service: ServiceView, pods: PublishedPods, values: Mapping[str, Sequence[str]], *, minutes: int, empty: bool
) -> bytes:
    """The JSON document of the pods on the selected nodes and in the selected namespaces. If no pod matches, raises
    ApiError, or returns a document without pods with `empty`."""
    nodes, namespaces = _names(values, "host"), _names(values, "namespace")
    rows = pods.rows(nodes, namespaces)
    if len(rows):
        return pods.body(rows, nodes=nodes, minutes=minutes)
    error = _no_match(service, pods, nodes)
    if empty:
        return pods.body(rows, nodes=nodes, minutes=minutes, reason=error.message)
    raise error


def _no_match(service: ServiceView, pods: PublishedPods, nodes: Collection[str] | None) -> ApiError:
    for node in sorted(nodes or ()):
        if node not in pods.nodes and (service.published is None or node not in service.published.row):
            return unknown_host_error(node)
        if cause := pods.coverage.unknown.get(node):
            return ApiError(404, "no_pods", f"the usage of pods on node {truncated(node)!r} is unknown", cause)
    return ApiError(
        404,
        "no_pods",
        "no pods found on the requested nodes and in the requested namespaces",
        "GET /api/v1/pods lists all names; names are case-sensitive",
    )


def _names(values: Mapping[str, Sequence[str]], parameter: str) -> Collection[str] | None:
    """The names given for a parameter; None for all. An empty name also means all."""
    given = values.get(parameter, ())
    return frozenset(given) if given and "" not in given else None


def no_pods(service: ServiceView, why: str) -> ApiError:
    """The error for missing pod usage: because of `why`, or because pods have not been collected yet."""
    if why:
        return ApiError(404, "no_pods", "no pod usage available", why)
    return ApiError(
        404,
        "no_pods",
        "no pod usage available yet",
        "pod usage is collected at the next refresh; retry then",
        headers={hdrs.RETRY_AFTER: str(max(1, int(service.settings[RefreshSettings].interval)))},
    )
