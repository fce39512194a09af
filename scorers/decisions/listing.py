"""Handler of GET /scheduler/placements: the list of recorded decisions, newest first."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from scorers.decisions import records
from scorers.decisions.decision_document import ASKED_AGAIN, BOUND, DELETED, PENDING, UNKNOWN
from scorers.decisions.outcome_states import outcome_state
from scorers.decisions.recorder import DecisionRecorder, storable
from scorers.decisions.summaries import BEST, OTHER, REJECTED, PlacementSummary, summary_of
from watcher.core.decisions import MICROSECONDS, DecisionQuery, DecisionsUnavailable, StoredDecision
from watcher.core.kubernetes.objects import Pod
from watcher.platform.http.bodies import large_response
from watcher.platform.http.openapi import Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import (
    BadParameter,
    moment_of,
    query_values,
    single_value,
    truncated,
    unknown_value,
)
from watcher.platform.http.responses import etag_matches, not_modified
from watcher.platform.http.routing import JSON, Access, ApiError, Route

LISTED, MOST_LISTED = 50, 200
"""Entries of a response: default and maximum."""
MOST_READ = 2_000
"""Decisions that are read for one response; an outcome is found by reading, not by a query."""
MOST_KNOWN = 2_000
"""Summaries in memory, about 2 kB each."""
OUTCOMES = (BEST, OTHER, BOUND, REJECTED, PENDING, ASKED_AGAIN, DELETED, UNKNOWN)

_SINCE = Parameter("since", "only decisions at or after this time: unix seconds, an RFC 3339 date, or -1h")
_BEFORE = Parameter("before", "only decisions before this time, as since; `time` of the last entry gives the next page")
_NAMESPACE = Parameter("namespace", "only pods of this namespace")
_POD = Parameter("pod", "only pods with this text in their name")
_NODE = Parameter("node", "only pods that were bound to this node")
_OUTCOME = Parameter(
    "outcome",
    "only decisions with this outcome: best, bound to a node with the highest score; other, bound to another node; "
    "bound, bound at all; rejected, no node passed the filters; pending; asked_again; deleted; unknown",
    {"type": "string", "enum": list(OUTCOMES)},
)
_LIMIT = Parameter(
    "limit",
    f"maximum number of entries; default: {LISTED}",
    {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
)
_PARAMETERS = (_SINCE, _BEFORE, _NAMESPACE, _POD, _NODE, _OUTCOME, _LIMIT)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The decisions that a request asks for."""

    query: DecisionQuery
    outcome: str
    limit: int
    is_past: bool  # later decisions are not read

    def takes(self, summary: PlacementSummary) -> bool:
        if self.outcome == BOUND:
            return summary.outcome in (BEST, OTHER, BOUND)
        return self.outcome in ("", summary.outcome)


class PlacementsHandler:
    """`now` returns unix seconds; `pod` returns the current pod NAMESPACE/NAME."""

    def __init__(
        self, recorder: DecisionRecorder, *, now: Callable[[], float], pod: Callable[[str], Pod | None]
    ) -> None:
        self._recorder = recorder
        self._now = now
        self._pod = pod
        self._known: OrderedDict[tuple[object, ...], PlacementSummary] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        answers = {
            200: ResponseSpec("the decisions, newest first; `more` if there are older ones", dict[str, Any]),
            304: ResponseSpec("unchanged since the response with the ETag of If-None-Match", media_type=""),
            400: failure("a parameter is invalid"),
            404: failure("the decision log is off"),
            503: failure("decisions_unavailable: the store cannot answer"),
        }
        operation = Operation("list the placements of pods", answers, _PARAMETERS)
        return [
            Route("/scheduler/placements", "scheduler_placements", self.placements, operation, access=Access.DETAIL)
        ]

    async def placements(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return the newest decisions that match the parameters."""
        values = query_values(request.rel_url.raw_query_string, known=[each.name for each in _PARAMETERS])
        wanted = _wanted(values, now=self._now())
        if not self._recorder.is_on:
            hint = 'set store.decisions = "24h" and restart'
            raise ApiError(404, "not_found", 'the decision log is off: store.decisions is "0s"', hint)
        try:
            await self._recorder.flush()
            found, more = await self._matching(wanted)
        except DecisionsUnavailable as error:
            raise ApiError(503, "decisions_unavailable", str(error), error.hint) from error
        document = {
            "placements": [each.document() for each in found],
            "more": more,
            "kept_s": self._recorder.store.decision_retention_s,
        }
        body = msgspec.json.encode(document)
        etag = f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"'
        headers = CIMultiDict({hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-cache", hdrs.ETAG: etag})
        return not_modified(headers) if etag_matches(request, etag) else large_response(request, body, headers)

    async def _matching(self, wanted: _Wanted) -> tuple[list[PlacementSummary], bool]:
        """Return the matching decisions, and whether older ones may match."""
        found: list[PlacementSummary] = []
        later: dict[str, StoredDecision] = {}  # by uid: the decision after the one that is read next
        query, read = wanted.query, 0
        while read < MOST_READ:
            rows = await self._recorder.store.decisions(query)
            for row in rows:
                read += 1
                summary = await self._summary(row, later.get(row.uid), wanted)
                later[row.uid] = row
                if summary is None or not wanted.takes(summary):
                    continue
                if len(found) == wanted.limit:
                    return found, True
                found.append(summary)
            if len(rows) < query.limit:
                return found, False
            query = replace(query, end=rows[-1].time)
        return found, True

    async def _summary(
        self, row: StoredDecision, later: StoredDecision | None, wanted: _Wanted
    ) -> PlacementSummary | None:
        """Return the summary of a decision, None for one that cannot be read: it must not hide the others."""
        if not row.outcome and later is None and wanted.is_past:
            pod = (row.namespace, row.pod)
            after = DecisionQuery(kind="placement", pod=pod, start=row.time + 1, limit=LISTED, newest=False)
            later = next((each for each in await self._recorder.store.decisions(after) if each.uid == row.uid), None)
        try:
            state = outcome_state(row, later, self._pod)
            node = "" if state.outcome is None else state.outcome.node
            key = row.time, len(row.payload), row.outcome, state.kind, node, state.time
            summary = self._known.pop(key, None)
            if summary is None:
                decision = await asyncio.to_thread(records.decode, row.payload)
                summary = summary_of(row.time / MICROSECONDS, decision, state)
        except ValueError:
            return None
        self._known[key] = summary
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return summary


def _wanted(values: Mapping[str, Sequence[str]], *, now: float) -> _Wanted:
    one = partial(single_value, values)
    outcome = one(_OUTCOME.name) or ""
    if outcome and outcome not in OUTCOMES:
        raise unknown_value("outcome", outcome, OUTCOMES)
    limit = _limit_of(one(_LIMIT.name))
    since, before = (moment_of(values, each.name, now=now) for each in (_SINCE, _BEFORE))
    query = DecisionQuery(
        kind="placement",
        namespace=storable(one(_NAMESPACE.name) or ""),
        part=storable(one(_POD.name) or "").lower(),
        node=storable(one(_NODE.name) or ""),
        start=0 if since is None else round(since * MICROSECONDS),
        limit=limit + 1,
    )
    if before is not None:
        query = replace(query, end=round(before * MICROSECONDS))
    return _Wanted(query, outcome, limit, is_past=before is not None)


def _limit_of(given: str | None) -> int:
    if given is None:
        return LISTED
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and 1 <= int(given) <= MOST_LISTED):
        raise BadParameter(
            f"limit={truncated(given)!r} is not a valid limit", f"a whole number from 1 to {MOST_LISTED}"
        )
    return int(given)
