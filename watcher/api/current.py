"""What is served at this moment, and what all answers from it have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from math import isfinite

from aiohttp import hdrs
from multidict import CIMultiDict

from watcher.api.parameters import selection_of
from watcher.api.refusals import nothing_known, refuse_remnant, stale
from watcher.api.responses import Kept
from watcher.api.routing import JSON, ApiError
from watcher.api.service import Service
from watcher.model import default_window
from watcher.publish import Encoding, Published, Selection, Shape

KEPT_BYTES = 64 << 20  # of encoded columns


@dataclass(slots=True)
class Variant:
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


class Answering:
    """What all answers from one snapshot have in common."""

    def __init__(self, published: Published, *, cache_control: str) -> None:
        self.published = published
        self.default = Selection(default_window(published.snapshot.windows))
        self.kept = Kept(KEPT_BYTES)
        self.variants: dict[tuple[Selection, Shape, Encoding], Variant] = {}
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


class Current:
    """What `service` has published. `private`: answers are for whoever may read, and not for a cache of all."""

    def __init__(self, service: Service, *, private: bool) -> None:
        self.scope = "private, " if private else ""
        """How Cache-Control begins."""
        self._service = service
        self._answering: Answering | None = None

    def answering(self) -> tuple[Answering, int]:
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
            cache_control = f"{self.scope}max-age={int(service.interval)}, must-revalidate"
            self._answering = Answering(published, cache_control=cache_control)
        return self._answering, int(age)

    def ready(self) -> Answering:
        """What is published, if it is young enough and has its windows; raises ApiError if not."""
        current, _ = self.answering()
        missing = self._service.warming_up()
        if missing:
            raise ApiError(503, "warming_up", missing, "this passes by itself; /watcher answers with what there is")
        return current
