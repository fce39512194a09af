"""The HTTP API: what each path answers (contract, section 5).

Thousands of schedulers ask for the same few documents, and what they get decides where pods go. So an answer is either
true or an error: nothing known is 404 and not an empty list, too old is 503 and not the last thing we knew, a remnant
of a fleet is 503 and not a short list. The Go plug-ins keep their last copy on an error; an empty 200 would make every
node look idle to them.

The default documents and single nodes are answered on the event loop from bytes that the tick made. Everything else is
made once per snapshot in a thread, however many ask for it at that moment, and kept while it is few.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from math import isfinite
from typing import Any, TypeVar, cast

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.api import dashboard, openapi, operations
from watcher.api.negotiation import choose
from watcher.api.node_metrics import Reported
from watcher.api.operations import MSGPACK, AliveDocument, HealthDocument, ProviderState, ReadyDocument, SnapshotState
from watcher.api.parameters import (
    check_range,
    hosts_of,
    operators_of,
    query_values,
    selection_of,
    shape_of,
    single,
    step_of,
    time_of,
    types_of,
    unknown,
    window_of,
)
from watcher.api.pods import etag_of_pods, no_pods, pod_headers, selected_pods
from watcher.api.refusals import (
    nothing_known,
    nothing_selected,
    refuse_encodings,
    refuse_remnant,
    row_of,
    stale,
    unknown_host,
)
from watcher.api.responses import (
    SMALL_BODY,
    Constant,
    Kept,
    accepted,
    coded,
    compressed,
    constant,
    encoding_for,
    etag_of,
    has_it,
    json_response,
    not_modified,
    plain_encoding_for,
    sent,
)
from watcher.api.routing import JSON, Access, ApiError, Handler, Protection, Route, Router
from watcher.api.runner import application
from watcher.api.series import history_body
from watcher.api.service import HistoryUnavailable, Service
from watcher.collect_policy import CollectPolicies
from watcher.instruments import CONTENT_TYPE as EXPOSITION
from watcher.model import METRICS, Column, default_window
from watcher.node_metrics import NodeMetricReport, make_report, node_statuses
from watcher.pods import PublishedPods
from watcher.publish import Document, Encoding, Published, Selection, Shape, columns
from watcher.telemetry import Telemetry

WORKERS = 2  # threads that encode what is not ready; the tick and the provider have their own
KEPT_BYTES = 64 << 20  # of encoded columns
DEFAULT_STEP_S = 60
HOUR_S = 3600
SCHEDULER = "/scheduler/plugins"
AGENTS = "/api/v1/agents"
_WATCHER = operations.WATCHER.query_names
_WATCHER_HOST = operations.WATCHER_HOST.query_names
_COLUMNS = operations.COLUMNS.query_names
_HISTORY = operations.HISTORY.query_names
_PODS = operations.PODS.query_names
Made = TypeVar("Made")


@dataclass(slots=True)
class _Variant:
    """A default document in one shape and coding: its ETag, and its headers as of the second `age`."""

    etag: str
    headers: CIMultiDict[str]
    age: int = -1

    def aged(self, age: int) -> CIMultiDict[str]:
        """The headers with Age, which is the same for all requests within a second."""
        if age != self.age:
            self.headers[hdrs.AGE] = str(age)
            self.age = age
        return self.headers


class _Answering:
    """What all answers from one snapshot have in common."""

    def __init__(self, published: Published, *, cache_control: str) -> None:
        self.published = published
        self.default = Selection(default_window(published.snapshot.windows))
        self.variants: dict[tuple[Selection, Shape, Encoding], _Variant] = {}
        self._headers = CIMultiDict(
            {
                hdrs.CONTENT_TYPE: JSON,
                hdrs.VARY: hdrs.ACCEPT_ENCODING,
                hdrs.CACHE_CONTROL: cache_control,
                hdrs.LAST_MODIFIED: formatdate(published.snapshot.timestamp, usegmt=True),
            }
        )

    def headers(self, etag: str, encoding: Encoding, age: int) -> CIMultiDict[str]:
        """Headers of a document. `Age` counts from the newest sample, so caches on the way agree with us."""
        headers = self._headers.copy()
        headers[hdrs.ETAG] = etag
        headers[hdrs.AGE] = str(age)
        if encoding is not Encoding.IDENTITY:
            headers[hdrs.CONTENT_ENCODING] = encoding.value
        return headers

    def selection(self, values: Mapping[str, Sequence[str]]) -> Selection:
        """What the parameters select."""
        return selection_of(values, self.published.snapshot.windows) if values else self.default


def make_app(
    service: Service,
    *,
    settings: Protection,
    telemetry: Telemetry,
    version: str,
    routes: Iterable[Route] = (),
) -> web.Application:
    """The application that serves `service`, and the `routes` that other packages add."""
    workers = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="api")
    api = Api(service, telemetry=telemetry, workers=workers, private=settings.protect_reads)
    table = [dashboard.page_route(), *api.routes(), *routes]
    api.paths = frozenset(route.path for route in table)
    protected = settings.protect_reads
    described = openapi.document([*table, _describing(api.overview)], version=version, protected=protected)
    body = Constant.of(msgspec.json.encode(described), JSON)
    table.append(_describing(partial(api.constant, body=body)))
    router = Router([*table, *dashboard.file_routes()], protection=settings, meter=telemetry)
    app = application(router)

    @asynccontextmanager
    async def end_workers(app: web.Application) -> AsyncIterator[None]:
        yield
        workers.shutdown(wait=False, cancel_futures=True)

    app.cleanup_ctx.append(end_workers)
    return app


class Api:
    """The handlers. Each takes a request and the texts of its path's parameters."""

    def __init__(self, service: Service, *, telemetry: Telemetry, workers: ThreadPoolExecutor, private: bool) -> None:
        self._service = service
        self._telemetry = telemetry
        self._workers = workers
        self._scope = "private, " if private else ""
        self._running: dict[object, asyncio.Task[Any]] = {}
        self._kept = Kept(KEPT_BYTES)
        self._answering: _Answering | None = None
        self._pods_kept = ("", Kept(KEPT_BYTES))  # bodies of what is published under that tag
        self._reported: Reported | None = None
        self._reports = 0
        self.paths: frozenset[str] = frozenset()
        """All that are served, those of others too."""

    # --- the load of nodes -------------------------------------------------------------------------------------------

    async def watcher(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """All nodes, or those named by ?host=."""
        values = query_values(request.rel_url.raw_query_string, known=_WATCHER)
        current, age = self._current()
        selection = current.selection(values)
        shape = shape_of(values)
        hosts = hosts_of(values)
        if hosts is not None:
            return await self._some(request, current, selection, shape, hosts, age=age)
        refuse_remnant(current.published)
        key = (selection, shape, encoding_for(request))
        if selection.types is None and selection.operators is None:
            ready = current.published.ready_document(selection)
            if ready is not None and ready.at_hand(*key[1:]):
                return _default(request, current, ready, key, age=age)
        return await self._other(request, current, key, age=age)

    async def watcher_host(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """One node, by its name in the path."""
        values = query_values(request.rel_url.raw_query_string, known=_WATCHER_HOST)
        current, age = self._current()
        return await self._some(request, current, current.selection(values), shape_of(values), captured, age=age)

    def _current(self) -> tuple[_Answering, int]:
        """What is published and its age in seconds. Raises where there is nothing, or where it is too old."""
        service = self._service
        published = service.published
        if published is None:
            raise nothing_known(service)
        age = published.age(service.monotonic())
        if age > service.max_staleness and isfinite(age):
            raise stale(service, age)
        if not published.snapshot.nodes:
            refuse_remnant(published)
            raise nothing_known(service)
        if self._answering is None or self._answering.published is not published:
            # Fresh while its newest sample is younger than an interval: by then the next tick has replaced it.
            cache_control = f"{self._scope}max-age={int(service.interval)}, must-revalidate"
            self._kept = Kept(KEPT_BYTES)
            self._answering = _Answering(published, cache_control=cache_control)
        return self._answering, int(age)

    async def _other(
        self, request: web.Request, current: _Answering, key: tuple[Selection, Shape, Encoding], *, age: int
    ) -> web.Response:
        """Any document but the default ones, made in a thread if it is not there yet."""
        selection, shape, encoding = key
        published = current.published
        ready = await self._document(published, selection)
        if ready.empty:
            raise nothing_selected(selection)
        etag = etag_of(published, selection, shape, encoding)
        headers = current.headers(etag, encoding, age)
        if has_it(request, etag):
            return not_modified(headers)
        body = await self._once((published.tag, key), partial(ready.body, shape, encoding))
        return sent(body, headers)

    async def _some(
        self,
        request: web.Request,
        current: _Answering,
        selection: Selection,
        shape: Shape,
        hosts: Collection[str],
        *,
        age: int,
    ) -> web.Response:
        """The document with the nodes of these names only."""
        published = current.published
        rows = [row_of(published, host) for host in hosts]
        ready = published.ready_document(selection) or await self._document(published, selection)
        body = ready.of_nodes(rows, shape)
        if len(body) == len(ready.heads[shape]) + len(ready.tails[shape]):
            raise nothing_selected(selection, hosts)
        encoding = encoding_for(request) if len(body) > SMALL_BODY else plain_encoding_for(request)
        etag = etag_of(published, selection, shape, encoding, rows=rows)
        headers = current.headers(etag, encoding, age)
        if has_it(request, etag):
            return not_modified(headers)
        if encoding is not Encoding.IDENTITY:
            body = await self._in_thread(partial(compressed, body, encoding))
        return sent(body, headers)

    async def columns(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The same numbers as columns, for the scorers' client."""
        values = query_values(request.rel_url.raw_query_string, known=_COLUMNS)
        current, age = self._current()
        published = current.published
        refuse_remnant(published)
        selection = current.selection(values)
        encoding = encoding_for(request)
        etag = etag_of(published, selection, "columns", encoding)
        headers = current.headers(etag, encoding, age)
        if has_it(request, etag):
            return not_modified(headers)
        body = self._kept.get(etag)
        if body is None:
            body = await self._columns(published, selection, encoding)
        return sent(body, headers)

    async def _columns(self, published: Published, selection: Selection, encoding: Encoding) -> bytes:
        """The columns in a content coding; the plain ones are made and kept first."""
        key = etag_of(published, selection, "columns", encoding)
        if encoding is Encoding.IDENTITY:
            body = await self._once(key, partial(columns_body, published, selection))
        else:
            plain = etag_of(published, selection, "columns", Encoding.IDENTITY)
            text = self._kept.get(plain) or await self._columns(published, selection, Encoding.IDENTITY)
            body = await self._once(key, partial(compressed, text, encoding))
        self._kept.put(key, body)
        return body

    # --- pods --------------------------------------------------------------------------------------------------------

    async def pods(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """What each pod uses."""
        values = query_values(request.rel_url.raw_query_string, known=_PODS)
        service = self._service
        why, pods = service.want_pods(), service.pods
        if pods is None or not pods.table.pods:
            raise no_pods(service, why)
        age = pods.age(service.monotonic())
        if age > service.max_staleness:
            raise stale(service, age)
        encoding = encoding_for(request)
        etag = etag_of_pods(pods, values, encoding)
        headers = pod_headers(pods, etag, encoding, scope=self._scope, age=int(age))
        if has_it(request, etag):
            return not_modified(headers)
        if values:
            text = await self._in_thread(partial(selected_pods, service, pods, values))
            body = await self._in_thread(partial(compressed, text, encoding))
        else:
            body = await self._all_pods(pods, encoding)
        return sent(body, headers)

    async def _all_pods(self, pods: PublishedPods, encoding: Encoding) -> bytes:
        """All pods in a content coding; the plain body is made and kept first."""
        if self._pods_kept[0] != pods.tag:
            self._pods_kept = (pods.tag, Kept(KEPT_BYTES))
        kept = self._pods_kept[1]
        key = etag_of_pods(pods, {}, encoding)
        body = kept.get(key)
        if body is None:
            if encoding is Encoding.IDENTITY:
                body = await self._once(key, pods.body)
            else:
                text = await self._all_pods(pods, Encoding.IDENTITY)
                body = await self._once(key, partial(compressed, text, encoding))
            kept.put(key, body)
        return body

    # --- Koordinator -------------------------------------------------------------------------------------------------

    async def node_metrics(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The NodeMetrics of all nodes."""
        query_values(request.rel_url.raw_query_string, known=())
        current, _ = self._current()
        refuse_remnant(current.published)
        reported = await self._report(current.published)
        reported.check()
        encoding = encoding_for(request)
        etag = reported.etag(None, encoding)
        headers = reported.headers(etag, encoding, scope=self._scope, monotonic=self._service.monotonic())
        if has_it(request, etag):
            return not_modified(headers)
        return sent(await self._all_node_metrics(reported, encoding), headers)

    async def node_metric(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The NodeMetric of one node."""
        query_values(request.rel_url.raw_query_string, known=())
        current, _ = self._current()
        (host,) = captured
        row_of(current.published, host)
        reported = await self._report(current.published)
        body = reported.one(host)
        encoding = encoding_for(request) if len(body) > SMALL_BODY else plain_encoding_for(request)
        etag = reported.etag(host, encoding)
        headers = reported.headers(etag, encoding, scope=self._scope, monotonic=self._service.monotonic())
        if has_it(request, etag):
            return not_modified(headers)
        if encoding is not Encoding.IDENTITY:
            body = await self._in_thread(partial(compressed, body, encoding))
        return sent(body, headers)

    async def _report(self, published: Published) -> Reported:
        """The report as it stands; made now if there is none yet, if some node's is due, or if it is too old to be
        served."""
        reported, policies = self._reported, self._service.collect_policies
        if reported is not None and reported.policies is policies and not self._is_stale(reported):
            if reported.stands(published):
                return reported
            before = reported.report
        else:
            before = None
        which = (published.tag, "nodemetrics", id(policies))
        make = partial(self._make_report, published, policies, before)
        self._reported = reported = await self._shared(which, make)
        return reported

    def _is_stale(self, reported: Reported) -> bool:
        return reported.published.age(self._service.monotonic()) > self._service.max_staleness

    async def _make_report(
        self, published: Published, policies: CollectPolicies, before: NodeMetricReport | None
    ) -> Reported:
        service = self._service
        service.want_pods()
        pods = service.pods
        if pods is not None and pods.age(service.monotonic()) > service.max_staleness:
            pods = None
        capacities, snapshot = await service.capacities(), published.snapshot

        def make() -> NodeMetricReport:
            mine = policies.of_all(snapshot.nodes, service.node_labels)
            statuses = node_statuses(
                snapshot, capacities=capacities, pods=pods, policies=mine, classes=service.pod_classes()
            )
            return make_report(statuses, before=before, max_age=service.max_staleness)

        report = await self._in_thread(make)
        self._reports += 1
        return Reported(policies, published, report, f"{published.tag}-nodemetrics-{self._reports:x}")

    async def _all_node_metrics(self, reported: Reported, encoding: Encoding) -> bytes:
        """All NodeMetrics in a content coding; the plain body is made and kept first."""
        key = reported.etag(None, encoding)
        body = reported.kept.get(key)
        if body is None:
            if encoding is Encoding.IDENTITY:
                body = await self._once(key, reported.report.body)
            else:
                text = await self._all_node_metrics(reported, Encoding.IDENTITY)
                body = await self._once(key, partial(compressed, text, encoding))
            reported.kept.put(key, body)
        return body

    # --- what was, and what was found --------------------------------------------------------------------------------

    async def history(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Stored windows of one node as series."""
        service = self._service
        values = query_values(request.rel_url.raw_query_string, known=_HISTORY)
        shape = single(values, "shape") or "series"
        if shape not in ("series", "rows"):
            raise unknown("shape", shape, ["series", "rows"])
        host = single(values, "host")
        if not host:
            raise ApiError(400, "bad_request", "parameter 'host' is missing", "name one node: ?host=NAME")
        types = types_of(values)
        now = service.now()
        end = time_of(values, "to", now=now, default=now)
        start = time_of(values, "from", now=now, default=end - HOUR_S)
        step = step_of(values, default=DEFAULT_STEP_S)
        check_range(start, end, step)
        try:
            stored = await service.history(
                host=host,
                metrics=None if types is None else [metric.name for metric in METRICS if metric.type in types],
                operators=operators_of(values),
                window=window_of(values, service.windows).label,
                start=start,
                end=end,
            )
        except HistoryUnavailable as error:
            raise ApiError(503, "history_unavailable", str(error), error.hint) from error
        if not stored and not self._knows(host):
            raise unknown_host(host)
        write = partial(history_body, stored, host=host, start=start, end=end, step=step, as_rows=shape == "rows")
        return await self._encoded(request, write)

    async def findings(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """What the review of samples found, and what is asked of the source."""
        query_values(request.rel_url.raw_query_string, known=())
        found = self._service.findings_document()
        return await self._encoded(request, partial(msgspec.json.encode, found))

    async def samples(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """What a replica that starts needs of one that is ready."""
        query_values(request.rel_url.raw_query_string, known=())
        current = self._check_ready()
        body = await self._shared((current.published.tag, "samples"), self._service.samples)
        if body is None:
            raise nothing_known(self._service)
        return sent(body, CIMultiDict({hdrs.CONTENT_TYPE: MSGPACK, hdrs.CACHE_CONTROL: "no-store"}))

    def _knows(self, host: str) -> bool:
        published = self._service.published
        return published is not None and (host in published.row or host in published.snapshot.lost)

    # --- health ------------------------------------------------------------------------------------------------------

    async def healthz(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Alive: this answers, and ticks begin when they should, whatever the provider does."""
        wrong = self._service.alive()
        if wrong:
            raise ApiError(503, "not_alive", wrong, "the log says what the tick waits for; a restart is due")
        return json_response(AliveDocument("alive"))

    async def readyz(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Ready: there is a window young enough to serve."""
        state = _ready_state(self._service)
        try:
            self._check_ready()
        except ApiError as error:
            raise ApiError(503, error.code, error.message, error.hint, extra=msgspec.to_builtins(state)) from None
        state.status = "ready"
        return json_response(state)

    def _check_ready(self) -> _Answering:
        """What is published, if it is young enough and has its windows; raises ApiError if not."""
        current, _ = self._current()
        missing = self._service.warming_up()
        if missing:
            raise ApiError(503, "warming_up", missing, "this passes by itself; /watcher answers with what there is")
        return current

    async def provider_health(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Whether the provider answered at the last tick."""
        health = self._service.provider_health
        if health.partial:
            return json_response(HealthDocument("partial", health.since, health.reason))
        if health.ok:
            return json_response(HealthDocument("ok", health.since))
        if health.ok is None:
            raise ApiError(503, "provider_not_asked", health.reason or "the provider has not been asked yet")
        raise ApiError(
            503,
            "provider_down",
            health.reason,
            "the last windows are served until they are stale; load-watcher doctor says more",
            extra={"since": health.since},
        )

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def metrics(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Node windows and the service's own health for Prometheus."""
        encoding = choose(accepted(request), (Encoding.IDENTITY, Encoding.GZIP)) or refuse_encodings()
        body = await self._in_thread(partial(self._telemetry.exposition, encoding=encoding))
        headers = {hdrs.CONTENT_TYPE: EXPOSITION, hdrs.VARY: hdrs.ACCEPT_ENCODING, hdrs.CACHE_CONTROL: "no-store"}
        return sent(body, coded(headers, encoding))

    async def overview(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The state of the service, whatever it is."""
        query_values(request.rel_url.raw_query_string, known=())
        state, problem = _ready_state(self._service), None
        try:
            refuse_remnant(self._check_ready().published)
            state.status = "ready"
        except ApiError as error:
            problem = error.detail
        there = {"scheduler": SCHEDULER in self.paths, "agents": AGENTS in self.paths}
        return json_response(dashboard.overview(self._service, state, problem, **there))

    async def constant(self, request: web.Request, captured: Sequence[str], *, body: Constant) -> web.Response:
        """A body that does not change."""
        return constant(request, body)

    def routes(self) -> list[Route]:
        """All paths of the watcher but /openapi.json, which describes them."""
        return [
            Route("/watcher", "watcher", self.watcher, operations.WATCHER),
            Route("/watcher/health", "provider_health", self.provider_health, operations.PROVIDER_HEALTH),
            Route("/watcher/{host}", "watcher_host", self.watcher_host, operations.WATCHER_HOST),
            Route("/api/v1/columns", "columns", self.columns, operations.COLUMNS),
            Route("/api/v1/pods", "pods", self.pods, operations.PODS),
            Route("/api/v1/nodemetrics", "node_metrics", self.node_metrics, operations.NODE_METRICS),
            Route("/api/v1/nodemetrics/{host}", "node_metric", self.node_metric, operations.NODE_METRIC),
            Route("/api/v1/history", "history", self.history, operations.HISTORY),
            Route("/api/v1/findings", "findings", self.findings, operations.FINDINGS),
            Route("/api/v1/overview", "overview", self.overview, operations.OVERVIEW),
            Route("/api/v1/samples", "samples", self.samples, operations.SAMPLES),
            Route("/healthz", "healthz", self.healthz, operations.HEALTHZ, access=Access.OPEN),
            Route("/readyz", "readyz", self.readyz, operations.READYZ, access=Access.OPEN),
            Route("/metrics", "metrics", self.metrics, operations.METRICS),
        ]

    # --- making and sending ------------------------------------------------------------------------------------------

    async def _document(self, published: Published, selection: Selection) -> Document:
        ready = published.ready_document(selection)
        if ready is not None:
            return ready
        return await self._once((published.tag, selection), partial(published.document, selection))

    async def _in_thread(self, make: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._workers, make)

    async def _once(self, key: object, make: Callable[[], Made]) -> Made:
        """What `make` returns, called in a thread; who asks for the same key meanwhile gets the same."""
        return await self._shared(key, partial(self._in_thread, make))

    async def _shared(self, key: object, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        """The same for a coroutine function. A client that goes away does not take the work from the others."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(make(), name="api: make a body")
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return cast(Made, await asyncio.shield(task))

    def _forget(self, key: object, done: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # looked at here, because everyone who waited for it may be gone

    async def _encoded(self, request: web.Request, write: Callable[[], bytes]) -> web.Response:
        """A body that is made for this request alone."""
        body = await self._in_thread(write)
        encoding = plain_encoding_for(request) if len(body) <= SMALL_BODY else encoding_for(request)
        if encoding is not Encoding.IDENTITY:
            body = await self._in_thread(partial(compressed, body, encoding))
        headers = {hdrs.CONTENT_TYPE: JSON, hdrs.VARY: hdrs.ACCEPT_ENCODING, hdrs.CACHE_CONTROL: "no-cache"}
        return sent(body, coded(headers, encoding))


def _default(
    request: web.Request,
    current: _Answering,
    ready: Document,
    key: tuple[Selection, Shape, Encoding],
    *,
    age: int,
) -> web.Response:
    """A default document, from bytes that the tick made."""
    variant = current.variants.get(key)
    if variant is None:
        if ready.empty:
            raise nothing_selected(key[0])
        etag = etag_of(current.published, *key)
        variant = current.variants[key] = _Variant(etag, current.headers(etag, key[2], age))
    headers = variant.aged(age)
    if has_it(request, variant.etag):
        return not_modified(headers)
    return sent(ready.body(key[1], key[2]), headers)


def columns_body(published: Published, selection: Selection) -> bytes:
    """The columns as JSON, encoded one at a time: an encoder does not let others run until it is done."""
    document = columns(published.snapshot, selection)
    if not any(value is not None for column in document.columns for value in column.values):
        raise nothing_selected(selection)
    document.columns = cast(list[Column], [msgspec.Raw(msgspec.json.encode(column)) for column in document.columns])
    return msgspec.json.encode(document)


def _ready_state(service: Service) -> ReadyDocument:
    health = service.provider_health
    return ReadyDocument(
        status="not ready",
        provider=ProviderState(health.ok, health.reason, health.since),
        windows=[window.label for window in service.windows],
        interval_s=service.interval,
        max_staleness_s=service.max_staleness,
        snapshot=_snapshot_state(service),
        detail=service.ready_detail(),
    )


def _snapshot_state(service: Service) -> SnapshotState | None:
    published = service.published
    if published is None or not published.snapshot.nodes:
        return None
    snapshot = published.snapshot
    return SnapshotState(
        source=snapshot.source,
        timestamp=int(snapshot.timestamp),
        window_end=int(snapshot.end),
        age_s=round(published.age(service.monotonic()), 3),
        nodes=len(snapshot.nodes),
        lost=len(snapshot.lost),
        quarantined=len(snapshot.quarantined),
    )


def _describing(handler: Handler) -> Route:
    return Route("/openapi.json", "openapi", handler, operations.OPENAPI)
