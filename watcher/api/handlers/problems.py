"""Handler for the problems of the fleet, computed on request from published data, once for concurrent requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2s

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.api.body_builder import BodyBuilder, etag_of
from watcher.api.data_errors import check_complete
from watcher.api.handlers.base import BODY_CACHE_BYTES, CurrentSnapshot, Handlers
from watcher.api.service import ServiceView
from watcher.core.problems.fleet_problems import ProblemInputs, problems_document
from watcher.core.publishing.wire import ErrorDetail
from watcher.core.windows.settings import RefreshSettings
from watcher.platform.http.parameters import query_values
from watcher.platform.http.responses import BodyCache, encoding_for
from watcher.platform.http.routing import ApiError
from watcher.sources.settings import ProviderSettings

RENEWED_EVERY_S = 15
"""Durations in the sentences are recomputed this often between two ticks."""
HOST_PROVIDER = "host"


class ProblemHandlers(Handlers):
    """Handler for the problems of nodes, source and service."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        super().__init__(service, current=current, body_builder=body_builder)
        self._kept = BodyCache(BODY_CACHE_BYTES)
        self._state = ""

    async def problems(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The problems, the most severe first. Served in every state of the service."""
        query_values(request.rel_url.raw_query_string, known=operations.PROBLEMS.query_names)
        given = self._inputs()
        state = self._tag(given)
        if state != self._state:
            self._state, self._kept = state, BodyCache(BODY_CACHE_BYTES)
        if self._kept.get(etag_of(state, encoding_for(request))) is None:
            given = replace(given, capacities=await self._service.capacities())
        return await self._body_builder.tagged_response(
            request, partial(_body, given), tag=state, kept=self._kept, scope=self._current.scope
        )

    def _inputs(self) -> ProblemInputs:
        """Everything but the capacities, which are computed only for a new document."""
        service = self._service
        published, pods, refresher = service.published, service.pods, service.refresher
        given = ProblemInputs(
            now=service.now(),
            interval_s=service.settings[RefreshSettings].interval,
            health=refresher.provider_health,
            error=self._error(),
            findings=refresher.findings_document().findings,
            pods=None if pods is None else pods.table,
            host=service.settings[ProviderSettings].name == HOST_PROVIDER,
            of_modules=service.problems_of_modules(),
        )
        if published is None:
            return given
        return replace(given, snapshot=published.snapshot, silent=published.silent.document, hot=published.hot)

    def _error(self) -> ErrorDetail | None:
        try:
            check_complete(self._current.ready().published)
        except ApiError as error:
            return error.detail
        return None

    def _tag(self, given: ProblemInputs) -> str:
        """A text that changes with the document, except that durations in it may be RENEWED_EVERY_S seconds old."""
        service = self._service
        published, pods = service.published, service.pods
        parts = (
            "" if published is None else f"{published.tag}.{published.silent.tag}",
            "" if pods is None else pods.tag,
            given.health,
            given.error,
            len(given.findings),
            given.of_modules,
            given.now // RENEWED_EVERY_S,
        )
        return blake2s(repr(parts).encode(), digest_size=8).hexdigest()


def _body(given: ProblemInputs) -> bytes:
    return msgspec.json.encode(problems_document(given))
