"""Handler for the upper bounds of future load, encoded in a thread once per change of the forecasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2s

import msgspec
from aiohttp import web

from watcher.api import operations
from watcher.api.body_builder import BodyBuilder
from watcher.api.data_errors import no_metrics_error, unknown_host_error
from watcher.api.handlers.base import BODY_CACHE_BYTES, CurrentSnapshot, Handlers
from watcher.api.service import ServiceView
from watcher.core.forecast.document import disabled_document, forecasts_body, horizon_label
from watcher.core.forecast.fleet import ForecastTable
from watcher.platform.http.parameters import hosts_of, query_values, types_of, unknown_value
from watcher.platform.http.responses import BodyCache
from watcher.tick.forecasts import PublishedForecasts

ALL = "all"


class ForecastHandlers(Handlers):
    """Handler for the forecasts of all nodes or of the nodes named by ?host=."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        super().__init__(service, current=current, body_builder=body_builder)
        self._kept = BodyCache(BODY_CACHE_BYTES)
        self._of: Listed | None = None
        self._number = 0  # of different lists of nodes

    async def forecasts(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The forecasts. Served whatever the age of the newest sample: a bound is for hours."""
        values = query_values(request.rel_url.raw_query_string, known=operations.FORECASTS.query_names)
        types, hosts = types_of(values), hosts_of(values)
        refresher = self._service.refresher.forecasts
        if not refresher.enabled:
            body = msgspec.json.encode(disabled_document(int(self._service.now())))
            return await self._body_builder.build_response(request, lambda: body)
        published = refresher.published
        if published is None:
            raise no_metrics_error(self._service)
        table = published.table
        horizons = _horizons_of(values, table)
        listed = self._listed(published)
        nodes = listed.nodes if hosts is None else tuple(sorted(hosts))
        if unknown := [host for host in nodes if host not in listed.known]:
            raise unknown_host_error(unknown[0])
        asked = blake2s(repr((types, horizons, hosts and nodes)).encode(), digest_size=8).hexdigest()
        tag = f"{published.tag}-{self._number:x}-{asked}"
        write = partial(forecasts_body, table, nodes, types=types, horizons=horizons)
        return await self._body_builder.tagged_response(
            request, write, tag=tag, kept=self._kept, scope=self._current.scope
        )

    def _listed(self, forecasts: PublishedForecasts) -> Listed:
        """The nodes of the table and of the snapshot: those without maxima are listed, too."""
        published = self._service.published
        snapshot = () if published is None else published.snapshot.nodes
        if self._of is None or self._of.forecasts is not forecasts or self._of.snapshot is not snapshot:
            nodes = tuple(sorted({*forecasts.table.nodes, *snapshot}))
            changed = self._of is None or self._of.nodes != nodes
            self._number += changed
            self._of = Listed(forecasts, snapshot, nodes, frozenset(nodes))
        return self._of


@dataclass(frozen=True, slots=True)
class Listed:
    """The sorted nodes of all forecasts of one table and snapshot."""

    forecasts: PublishedForecasts
    snapshot: tuple[str, ...]
    nodes: tuple[str, ...]
    known: frozenset[str]


def _horizons_of(values: Mapping[str, Sequence[str]], table: ForecastTable) -> tuple[int, ...]:
    """The requested horizons in hours, ascending; the default one if none is requested."""
    known = {horizon_label(hours): hours for hours in table.config.horizons}
    given = values.get("horizon") or [horizon_label(table.config.horizon)]
    for label in given:
        if label not in known and label != ALL:
            raise unknown_value("horizon", label, [*known, ALL])
    return tuple(hours for label, hours in known.items() if ALL in given or label in given)
