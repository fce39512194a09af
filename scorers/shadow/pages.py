"""Handler of GET /scheduler/shadow: the report of shadow mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from scorers.decisions import shadow_records
from scorers.decisions.recorder import DecisionRecorder
from scorers.shadow import report
from scorers.shadow.mode import ShadowMode
from watcher.core.decisions import MICROSECONDS, DecisionQuery, DecisionsUnavailable, StoredDecision
from watcher.platform.http.openapi import Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import BadParameter, query_values, time_of
from watcher.platform.http.responses import json_response
from watcher.platform.http.routing import Access, ApiError, Route

MOST_REPORTED = 20_000
"""Maximum number of bindings in a report, newest first; computing one takes half a second of a thread."""

_FROM = Parameter(
    "from", "include bindings from this time on: unix seconds, an RFC 3339 date, or -1h; default: all stored bindings"
)
_TO = Parameter("to", "include bindings up to this time; default: now")


class ShadowHandler:
    """`now` returns unix seconds, `window` the label of the window that the load is averaged over."""

    def __init__(
        self, mode: ShadowMode, recorder: DecisionRecorder, *, now: Callable[[], float], window: Callable[[], str]
    ) -> None:
        self._mode = mode
        self._recorder = recorder
        self._now = now
        self._window = window

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        answers = {
            200: ResponseSpec(
                "by profile, the placements it would have changed, with confidence intervals", dict[str, Any]
            ),
            400: failure("a time is invalid"),
            404: failure("shadow mode is off"),
            503: failure("decisions_unavailable: the store cannot answer"),
        }
        operation = Operation("how other profiles would have placed the bound pods", answers, (_FROM, _TO))
        return [Route("/scheduler/shadow", "scheduler_shadow", self.report, operation, access=Access.DETAIL)]

    async def report(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        values = query_values(request.rel_url.raw_query_string, known=(_FROM.name, _TO.name))
        now = self._now()
        start = time_of(values, _FROM.name, now=now, default=now - self._recorder.store.decision_retention_s)
        end = time_of(values, _TO.name, now=now, default=now) + 1  # times in requests are whole seconds
        if start >= end:
            raise BadParameter(f"from={start} is not before to={end - 1}", "set from to a time before to")
        if hint := self._mode.off_hint:
            raise ApiError(404, "not_found", "shadow mode is off", hint)
        await self._recorder.flush()
        query = DecisionQuery(
            kind="shadow", start=start * MICROSECONDS, end=end * MICROSECONDS, limit=MOST_REPORTED + 1
        )
        try:
            rows = await self._recorder.store.decisions(query)
        except DecisionsUnavailable as error:
            raise ApiError(503, "decisions_unavailable", str(error), error.hint) from error
        shown = {"requests_to_usage": self._mode.requests_to_usage(), "notices": self._mode.notices()}
        found = await asyncio.to_thread(_report, rows, self._mode.settings(), now=now)
        period = {"from": start, "to": end - 1, "source": self._mode.source, "window": self._window()}
        return json_response(period | found | shown)


def _report(rows: Sequence[StoredDecision], settings: Mapping[str, str], *, now: float) -> dict[str, Any]:
    """Compute the report; runs in a worker thread."""
    newest = rows[:MOST_REPORTED]
    read = [each for row in newest if (each := shadow_records.decode(row.payload)) is not None]
    times = [each.time for each in read]
    return {
        "first": min(times, default=None),
        "last": max(times, default=None),
        "truncated": len(rows) > MOST_REPORTED,
        "unreadable": len(newest) - len(read),
        **report.report(read, settings, now=now),
    }
