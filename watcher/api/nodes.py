"""The load of nodes: GET /watcher, one node of it, and the same as columns.

The default documents and single nodes are answered on the event loop from bytes that the tick made. Everything else is
made once per snapshot in a thread, and kept while it is few.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import cast

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.api.current import Answering, Current, Variant
from watcher.api.making import Making
from watcher.api.parameters import hosts_of, query_values, shape_of
from watcher.api.refusals import nothing_selected, refuse_remnant, row_of
from watcher.api.responses import (
    SMALL_BODY,
    encoding_for,
    etag_of,
    has_it,
    not_modified,
    plain_encoding_for,
    sent,
)
from watcher.model import Column
from watcher.publish import Document, Encoding, Published, Selection, Shape, columns, compressed

_WATCHER = operations.WATCHER.query_names
_WATCHER_HOST = operations.WATCHER_HOST.query_names
_COLUMNS = operations.COLUMNS.query_names


class NodeHandlers:
    """What answers for nodes."""

    def __init__(self, *, current: Current, making: Making) -> None:
        self._current = current
        self._making = making

    async def watcher(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """All nodes, or those named by ?host=."""
        values = query_values(request.rel_url.raw_query_string, known=_WATCHER)
        current, age = self._current.answering()
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
        current, age = self._current.answering()
        return await self._some(request, current, current.selection(values), shape_of(values), captured, age=age)

    async def columns(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The same numbers as columns, for the scorers' client."""
        values = query_values(request.rel_url.raw_query_string, known=_COLUMNS)
        current, age = self._current.answering()
        published = current.published
        refuse_remnant(published)
        selection = current.selection(values)
        encoding = encoding_for(request)
        etag = etag_of(published, selection, "columns", encoding)
        headers = current.headers(etag, encoding, age)
        if has_it(request, etag):
            return not_modified(headers)
        make, tagged = partial(columns_body, published, selection), partial(etag_of, published, selection, "columns")
        return sent(await self._making.coded(encoding, make, kept=current.kept, etag=tagged), headers)

    async def _other(
        self, request: web.Request, current: Answering, key: tuple[Selection, Shape, Encoding], *, age: int
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
        body = await self._making.once((published.tag, key), partial(ready.body, shape, encoding))
        return sent(body, headers)

    async def _some(
        self,
        request: web.Request,
        current: Answering,
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
            body = await self._making.in_thread(partial(compressed, body, encoding))
        return sent(body, headers)

    async def _document(self, published: Published, selection: Selection) -> Document:
        ready = published.ready_document(selection)
        if ready is not None:
            return ready
        return await self._making.once((published.tag, selection), partial(published.document, selection))


def _default(
    request: web.Request,
    current: Answering,
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
        variant = current.variants[key] = Variant(etag, current.headers(etag, key[2], age))
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
