"""Builds response bodies on request in threads; concurrent requests for the same body share one build."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.core.publishing.compression import Encoding, compressed
from watcher.platform.http.responses import (
    SMALL_BODY,
    BodyCache,
    body_response,
    encoding_for,
    etag_matches,
    not_modified,
    plain_encoding_for,
    with_content_coding,
)
from watcher.platform.http.routing import JSON

WORKERS = 2  # threads that encode bodies on request; the tick and the provider use other threads
Made = TypeVar("Made")


def etag_of(tag: str, encoding: Encoding) -> str:
    """The ETag of the content `tag` in an encoding."""
    return f'"{tag}-{encoding}"'


class BodyBuilder:
    """Builds response bodies outside the event loop's thread."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="api")
        self._running: dict[object, asyncio.Task[Any]] = {}

    def close(self) -> None:
        """Shut the executor down and cancel the work that has not started."""
        self._workers.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, make: Callable[[], Made]) -> Made:
        """Call `make` in an executor thread and return its result."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, make)

    async def build_once(self, key: object, make: Callable[[], Made]) -> Made:
        """Like `in_thread`, but concurrent calls with the same key share one call of `make`."""
        return await self.shared(key, partial(self.in_thread, make))

    async def shared(self, key: object, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        """Like `build_once`, for a coroutine function. If one client disconnects, the build continues for the
        others."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.create_task(make(), name="api: make a body")
            self._running[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        return cast(Made, await asyncio.shield(task))

    def _forget(self, key: object, done: asyncio.Task[Any]) -> None:
        del self._running[key]
        if not done.cancelled():
            done.exception()  # retrieved here because all clients waiting for it may have disconnected

    async def cached_body(
        self, encoding: Encoding, make: Callable[[], bytes], *, kept: BodyCache, etag: Callable[[Encoding], str]
    ) -> bytes:
        """Return the body that `make` builds, compressed with `encoding`. The cache `kept` (key: ETag) stores the
        compressed and the plain body."""
        key = etag(encoding)
        body = kept.get(key)
        if body is None:
            if encoding is Encoding.IDENTITY:
                body = await self.build_once(key, make)
            else:
                plain = await self.cached_body(Encoding.IDENTITY, make, kept=kept, etag=etag)
                body = await self.build_once(key, partial(compressed, plain, encoding))
            kept.put(key, body)
        return body

    async def tagged_response(
        self, request: web.Request, make: Callable[[], bytes], *, tag: str, kept: BodyCache, scope: str
    ) -> web.Response:
        """Response with the body that `make` builds, or 304. `tag` identifies the content and becomes the ETag with the
        encoding; `kept` as in `cached_body`; `scope` is the prefix of the cache control (`CurrentSnapshot.scope`)."""
        encoding = encoding_for(request)
        etag = partial(etag_of, tag)
        headers = CIMultiDict(
            {
                hdrs.CONTENT_TYPE: JSON,
                hdrs.VARY: hdrs.ACCEPT_ENCODING,
                hdrs.CACHE_CONTROL: f"{scope}no-cache",
                hdrs.ETAG: etag(encoding),
            }
        )
        headers = with_content_coding(headers, encoding)
        if etag_matches(request, etag(encoding)):
            return not_modified(headers)
        return body_response(await self.cached_body(encoding, make, kept=kept, etag=etag), headers)

    async def build_response(self, request: web.Request, write: Callable[[], bytes]) -> web.Response:
        """Response with a body built for this request only, compressed if it is large enough."""
        body = await self.in_thread(write)
        encoding = plain_encoding_for(request) if len(body) <= SMALL_BODY else encoding_for(request)
        if encoding is not Encoding.IDENTITY:
            body = await self.in_thread(partial(compressed, body, encoding))
        headers = {hdrs.CONTENT_TYPE: JSON, hdrs.VARY: hdrs.ACCEPT_ENCODING, hdrs.CACHE_CONTROL: "no-cache"}
        return body_response(body, with_content_coding(headers, encoding))
