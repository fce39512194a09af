"""Handlers for the load of nodes: GET /watcher, one node, and columns.

The default documents and single nodes are served on the event loop from bytes encoded by the tick. Other documents are
built in a thread, once for concurrent requests; columns are also cached, up to a size limit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import cast

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.api.data_errors import check_complete, empty_selection_error, row_of
from watcher.api.handlers.base import Handlers, SnapshotResponses, Variant
from watcher.core.koordinator.aggregates import KOORDLET, aggregates_document
from watcher.core.koordinator.report import NodeUsages
from watcher.core.publishing.compression import Encoding, compressed
from watcher.core.publishing.documents import EncodedDocument, Published, published_columns
from watcher.core.publishing.selection import Selection, Shape
from watcher.core.publishing.wire import AggregateColumn, Column
from watcher.platform.http.parameters import aggregate_of, hosts_of, query_values, shape_of
from watcher.platform.http.responses import (
    SMALL_BODY,
    body_response,
    encoding_for,
    etag_matches,
    etag_of,
    not_modified,
    plain_encoding_for,
)

_WATCHER = operations.WATCHER.query_names
_WATCHER_HOST = operations.WATCHER_HOST.query_names
_COLUMNS = operations.COLUMNS.query_names


class NodeHandlers(Handlers):
    """Handlers for the load of nodes."""

    async def watcher(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The load of all nodes, or of the nodes named by ?host=."""
        values = query_values(request.rel_url.raw_query_string, known=_WATCHER)
        current, age = self._current.responses()
        selection = current.selection(values)
        shape = shape_of(values)
        hosts = hosts_of(values)
        if hosts is not None:
            return await self._some(request, current, selection, shape, hosts, age=age)
        check_complete(current.published)
        key = (selection, shape, encoding_for(request))
        if selection.types is None and selection.operators is None:
            ready = current.published.ready_document(selection)
            if ready is not None and ready.is_ready(*key[1:]):
                return _default(request, current, ready, key, age=age)
        return await self._other(request, current, key, age=age)

    async def watcher_host(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The load of one node, named in the path."""
        values = query_values(request.rel_url.raw_query_string, known=_WATCHER_HOST)
        current, age = self._current.responses()
        return await self._some(request, current, current.selection(values), shape_of(values), captured, age=age)

    async def columns(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The load of all nodes as columns, for the client used by the scorers; with koordlet's usages on request."""
        values = query_values(request.rel_url.raw_query_string, known=_COLUMNS)
        current, age = self._current.responses()
        published = current.published
        check_complete(published)
        selection = current.selection(values)
        aggregate = aggregate_of(values, (KOORDLET,))
        encoding = encoding_for(request)
        shape = f"columns{aggregate}-{published.silent.tag}"
        tagged = partial(etag_of, published, selection, shape)
        etag = tagged(encoding)
        headers = current.headers(etag, encoding, age)
        if etag_matches(request, etag):
            return not_modified(headers)
        usages = await self._usages(current) if aggregate else None
        make = partial(columns_body, published, selection, usages)
        return body_response(
            await self._body_builder.cached_body(encoding, make, kept=current.body_cache, etag=tagged), headers
        )

    async def _usages(self, current: SnapshotResponses) -> NodeUsages:
        """The usages of the snapshot's nodes, computed once."""
        if current.usages is None:
            published = current.published
            make = partial(self._service.measure, published.snapshot)
            current.usages = await self._body_builder.build_once((published.tag, KOORDLET), make)
        return current.usages

    async def _other(
        self, request: web.Request, current: SnapshotResponses, key: tuple[Selection, Shape, Encoding], *, age: int
    ) -> web.Response:
        """A document that the tick did not encode, built in a thread if necessary."""
        selection, shape, encoding = key
        published = current.published
        ready = await self._document(published, selection)
        if ready.empty:
            raise empty_selection_error(selection)
        etag = etag_of(published, selection, shape, encoding)
        headers = current.headers(etag, encoding, age)
        if etag_matches(request, etag):
            return not_modified(headers)
        body = await self._body_builder.build_once((published.tag, key), partial(ready.body, shape, encoding))
        return body_response(body, headers)

    async def _some(
        self,
        request: web.Request,
        current: SnapshotResponses,
        selection: Selection,
        shape: Shape,
        hosts: Collection[str],
        *,
        age: int,
    ) -> web.Response:
        """The document restricted to the named nodes."""
        published = current.published
        rows = [row_of(published, host) for host in hosts]
        ready = published.ready_document(selection) or await self._document(published, selection)
        body = ready.subset(rows, shape)
        if len(body) == len(ready.heads[shape]) + len(ready.tails[shape]):
            raise empty_selection_error(selection, hosts)
        encoding = encoding_for(request) if len(body) > SMALL_BODY else plain_encoding_for(request)
        etag = etag_of(published, selection, shape, encoding, rows=rows)
        headers = current.headers(etag, encoding, age)
        if etag_matches(request, etag):
            return not_modified(headers)
        if encoding is not Encoding.IDENTITY:
            body = await self._body_builder.in_thread(partial(compressed, body, encoding))
        return body_response(body, headers)

    async def _document(self, published: Published, selection: Selection) -> EncodedDocument:
        ready = published.ready_document(selection)
        if ready is not None:
            return ready
        return await self._body_builder.build_once((published.tag, selection), partial(published.document, selection))


def _default(
    request: web.Request,
    current: SnapshotResponses,
    ready: EncodedDocument,
    key: tuple[Selection, Shape, Encoding],
    *,
    age: int,
) -> web.Response:
    """A default document, from bytes encoded by the tick."""
    variant = current.variants.get(key)
    if variant is None:
        if ready.empty:
            raise empty_selection_error(key[0])
        etag = etag_of(current.published, *key)
        variant = current.variants[key] = Variant(etag, current.headers(etag, key[2], age))
    headers = variant.aged(age)
    if etag_matches(request, variant.etag):
        return not_modified(headers)
    return body_response(ready.body(key[1], key[2]), headers)


def columns_body(published: Published, selection: Selection, usages: NodeUsages | None = None) -> bytes:
    """The columns as JSON, with `usages` if given, encoded one column at a time so that other threads can run between
    two columns."""
    document = published_columns(published, selection)
    if not any(value is not None for column in document.columns for value in column.values):
        raise empty_selection_error(selection)
    document.columns = cast(list[Column], _encoded(document.columns))
    if usages is not None:
        document.aggregates = aggregates_document(usages)
        document.aggregates.columns = cast(list[AggregateColumn], _encoded(document.aggregates.columns))
    return msgspec.json.encode(document)


def _encoded(columns: Sequence[msgspec.Struct]) -> list[msgspec.Raw]:
    return [msgspec.Raw(msgspec.json.encode(column)) for column in columns]
