"""What all handlers of the API share: the published snapshot, and the state of the responses from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from math import isfinite

from aiohttp import hdrs
from multidict import CIMultiDict

from watcher.api.body_builder import BodyBuilder
from watcher.api.data_errors import check_complete, no_metrics_error, stale_error
from watcher.api.service import ServiceView
from watcher.core.koordinator.report import NodeUsages
from watcher.core.publishing.compression import Encoding
from watcher.core.publishing.documents import Published
from watcher.core.publishing.selection import Selection, Shape
from watcher.core.windows.settings import RefreshSettings
from watcher.model import default_window
from watcher.platform.http.parameters import selection_of
from watcher.platform.http.responses import (
    BodyCache,
)
from watcher.platform.http.routing import JSON, ApiError

BODY_CACHE_BYTES = 64 << 20  # limit of a cache of encoded bodies


@dataclass(slots=True)
class Variant:
    """A default document in one shape and coding: its ETag, and its headers with `age` in seconds."""

    etag: str
    headers: CIMultiDict[str]
    age: int = -1

    def aged(self, age: int) -> CIMultiDict[str]:
        """The headers with Age in seconds. They are updated in place at most once per second."""
        if age != self.age:
            self.headers[hdrs.AGE] = str(age)
            self.age = age
        return self.headers


class SnapshotResponses:
    """State shared by all responses from one snapshot: headers, default selection, cached bodies."""

    def __init__(self, published: Published, *, cache_control: str) -> None:
        self.published = published
        self.default = Selection(default_window(published.snapshot.windows))
        self.body_cache = BodyCache(BODY_CACHE_BYTES)
        self.variants: dict[tuple[Selection, Shape, Encoding], Variant] = {}
        self.usages: NodeUsages | None = None  # computed on the first request
        self._headers = CIMultiDict(
            {
                hdrs.CONTENT_TYPE: JSON,
                hdrs.VARY: hdrs.ACCEPT_ENCODING,
                hdrs.CACHE_CONTROL: cache_control,
                hdrs.LAST_MODIFIED: formatdate(published.snapshot.timestamp, usegmt=True),
            }
        )

    def headers(self, etag: str, encoding: Encoding, age: int) -> CIMultiDict[str]:
        """Headers of a document. `age` is in seconds since the newest sample, so that caches compute the same age."""
        headers = self._headers.copy()
        headers[hdrs.ETAG] = etag
        headers[hdrs.AGE] = str(age)
        if encoding is not Encoding.IDENTITY:
            headers[hdrs.CONTENT_ENCODING] = encoding.value
        return headers

    def selection(self, values: Mapping[str, Sequence[str]]) -> Selection:
        """The selection made by the query parameters; the default selection without parameters."""
        if not values:
            return self.default
        snapshot = self.published.snapshot
        horizons = () if snapshot.forecasts is None else snapshot.forecasts.horizons
        return selection_of(values, snapshot.windows, horizons)


class CurrentSnapshot:
    """Access to the documents that `service` publishes. `private` marks responses as not cacheable by shared caches."""

    def __init__(self, service: ServiceView, *, private: bool) -> None:
        self.scope = "private, " if private else ""
        """Prefix of the Cache-Control header."""
        self._service = service
        self._answering: SnapshotResponses | None = None

    def responses(self) -> tuple[SnapshotResponses, int]:
        """The published snapshot and its age in seconds. Raises ApiError if there is none or it is too old."""
        service = self._service
        published = service.published
        if published is None:
            raise no_metrics_error(service)
        age = published.age(service.monotonic())
        if age > service.max_staleness and isfinite(age):
            raise stale_error(service, age)
        if not published.snapshot.nodes:
            check_complete(published)
            raise no_metrics_error(service)
        if self._answering is None or self._answering.published is not published:
            # Fresh for one interval: by then the next tick has replaced the snapshot.
            cache_control = f"{self.scope}max-age={int(service.settings[RefreshSettings].interval)}, must-revalidate"
            self._answering = SnapshotResponses(published, cache_control=cache_control)
        return self._answering, int(age)

    def ready(self) -> SnapshotResponses:
        """The published snapshot. Raises ApiError if there is none, it is too old, or windows are still warming up."""
        current, _ = self.responses()
        missing = self._service.refresher.not_ready_reason()
        if missing:
            raise ApiError(503, "warming_up", missing, "wait for the windows to fill; /watcher serves available data")
        return current


class Handlers:
    """Handlers of a group of paths, with the published snapshot and the builder of bodies."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        self._service = service
        self._current = current
        self._body_builder = body_builder
