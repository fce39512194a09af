"""Handlers of the decision log: one decision, the list of decisions, and the report of shadow mode."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from scorers.cluster.pods import scheduled_at
from scorers.decisions import documents, shadow_report
from scorers.decisions.documents import (
    ASKED_AGAIN,
    BEST,
    BOUND,
    DELETED,
    OTHER,
    PENDING,
    REJECTED,
    UNKNOWN,
    PlacementSummary,
    outcome_state,
)
from scorers.decisions.recorder import DecisionRecorder, storable
from scorers.decisions.records import PlacementDecision, decode_binding, decode_decision, decode_outcome
from scorers.decisions.shadow import ShadowMode
from watcher.core.decisions import MICROSECONDS, DecisionQuery, DecisionsUnavailable, StoredDecision
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.times import time_text
from watcher.platform.http.bodies import large_response
from watcher.platform.http.openapi import MISSING, Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import (
    BadParameter,
    accepts_empty,
    moment_of,
    query_values,
    single_value,
    time_of,
    truncated,
    unknown_value,
)
from watcher.platform.http.responses import etag_matches, json_response, not_modified
from watcher.platform.http.routing import JSON, Access, ApiError, Route

OTHERS, MOST_OTHERS = 10, 100
"""Number of other decisions about the same pod in a response: default and maximum."""
LISTED, MOST_LISTED = 50, 200
"""Entries of the list in a response: default and maximum."""
MOST_READ = 2_000
"""Decisions that are read for one list; an outcome is found by reading, not by a query."""
MOST_KNOWN = 2_000
"""Summaries in memory, about 2 kB each."""
MOST_REPORTED = 20_000
"""Maximum number of bindings in a report, newest first; computing one takes half a second of a thread."""
OUTCOMES = (BEST, OTHER, BOUND, REJECTED, PENDING, ASKED_AGAIN, DELETED, UNKNOWN)

_POD = Parameter("pod", "NAMESPACE/NAME of a pod; NAME means namespace default")
_AT = Parameter(
    "at", "return the newest decision at or before this time: unix seconds, an RFC 3339 date, or -1h; default: now"
)
_OTHERS = Parameter(
    "limit",
    f"how many other decisions about the pod to list; default: {OTHERS}",
    {"type": "integer", "minimum": 0, "maximum": MOST_OTHERS},
)
_OF_DECISION = (_POD, _AT, _OTHERS, MISSING)

_SINCE = Parameter("since", "only decisions at or after this time: unix seconds, an RFC 3339 date, or -1h")
_BEFORE = Parameter("before", "only decisions before this time, as since; `time` of the last entry gives the next page")
_NAMESPACE = Parameter("namespace", "only pods of this namespace")
_PART = Parameter("pod", "only pods with this text in their name")
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
_OF_LIST = (_SINCE, _BEFORE, _NAMESPACE, _PART, _NODE, _OUTCOME, _LIMIT)

_FROM = Parameter(
    "from", "include bindings from this time on: unix seconds, an RFC 3339 date, or -1h; default: all stored bindings"
)
_TO = Parameter("to", "include bindings up to this time; default: now")


@dataclass(frozen=True, slots=True)
class _ListRequest:
    """The decisions that a request for the list selects."""

    query: DecisionQuery
    outcome: str
    limit: int
    is_past: bool  # later decisions are not read

    def selects(self, summary: PlacementSummary) -> bool:
        if self.outcome == BOUND:
            return summary.outcome in (BEST, OTHER, BOUND)
        return self.outcome in ("", summary.outcome)


class DecisionPages:
    """`now` returns unix seconds, `pod` the current pod NAMESPACE/NAME, and `window` the label of the window that the
    load is averaged over."""

    def __init__(
        self,
        recorder: DecisionRecorder,
        shadow: ShadowMode,
        *,
        now: Callable[[], float],
        pod: Callable[[str], Pod | None],
        window: Callable[[], str],
    ) -> None:
        self._recorder = recorder
        self._store = recorder.store
        self._shadow = shadow
        self._now = now
        self._pod = pod
        self._window = window
        self._summaries: OrderedDict[tuple[object, ...], PlacementSummary] = OrderedDict()

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        unavailable = failure("decisions_unavailable: the store cannot answer")
        of_decision = {
            200: ResponseSpec(
                "the decision, its reasons and outcome, and other decisions about the pod; with `missing=empty` and "
                "without a decision, `decision` is null, `reason` says why, and `now` is the node of the pod",
                dict[str, Any],
            ),
            400: failure("the pod is missing or the time is invalid"),
            404: failure("no such decision; `log` describes the contents of the log, `pod` the node of the pod"),
            503: unavailable,
        }
        of_list = {
            200: ResponseSpec("the decisions, newest first; `more` if there are older ones", dict[str, Any]),
            304: ResponseSpec("unchanged since the response with the ETag of If-None-Match", media_type=""),
            400: failure("a parameter is invalid"),
            404: failure("the decision log is off"),
            503: unavailable,
        }
        of_shadow = {
            200: ResponseSpec(
                "by profile, the placements it would have changed, with confidence intervals", dict[str, Any]
            ),
            400: failure("a time is invalid"),
            404: failure("shadow mode is off"),
            503: unavailable,
        }
        why = Operation("explain the placement of a pod", of_decision, _OF_DECISION)
        listed = Operation("list the placements of pods", of_list, _OF_LIST)
        report = Operation("how other profiles would have placed the bound pods", of_shadow, (_FROM, _TO))
        return [
            Route("/scheduler/decisions", "scheduler_decisions", self.why, why, access=Access.DETAIL),
            Route("/scheduler/placements", "scheduler_placements", self.placements, listed, access=Access.DETAIL),
            Route("/scheduler/shadow", "scheduler_shadow", self.shadow, report, access=Access.DETAIL),
        ]

    def _check_log(self, **extra: Any) -> None:
        """Raise 404 if decisions are not recorded."""
        if not self._recorder.is_on:
            hint = 'set store.decisions = "24h" and restart'
            raise ApiError(404, "not_found", 'the decision log is off: store.decisions is "0s"', hint, extra=extra)

    # --- one decision ------------------------------------------------------------------------------------------------

    async def why(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return the decision about a pod."""
        values = query_values(request.rel_url.raw_query_string, known=[each.name for each in _OF_DECISION])
        pod = _pod_of(values)
        at = time_of(values, _AT.name, now=self._now(), default=self._now()) if _AT.name in values else None
        limit, empty = _limit_of(values, OTHERS, least=0, most=MOST_OTHERS), accepts_empty(values)
        try:
            with _store_errors():
                return json_response(await self._decision(pod, at=at, limit=limit))
        except ApiError as error:
            if not empty or error.status != 404:
                raise
            return json_response(_empty_document(pod, error))

    async def _decision(self, pod: tuple[str, str], *, at: int | None, limit: int) -> dict[str, Any]:
        self._check_log(log=None, pod=self._current(pod))
        await self._recorder.flush()
        newest = DecisionQuery(kind="placement", pod=pod, limit=1)
        until = newest if at is None else replace(newest, end=(at + 1) * MICROSECONDS)  # requests have whole seconds
        found = await self._store.decisions(until)
        if not found:
            await self._refuse(pod, at=at)
        (row,) = found
        decision = _readable(row)
        listed = await self._store.decisions(replace(newest, limit=limit + 1))
        after = await self._store.decisions(replace(newest, start=row.time + 1, newest=False))
        became = outcome_state(row, next((each for each in after if each.uid == row.uid), None), self._pod)
        return {
            "pod": "/".join(pod),
            "decision": documents.decision_document(decision, became, now=self._now()),
            "others": [_brief(each, listed) for each in listed if each.time != row.time][:limit],
            "log": await self._log_status(),
        }

    async def _refuse(self, pod: tuple[str, str], *, at: int | None) -> NoReturn:
        """Raise 404 with a hint about the decisions in the log."""
        log_now = await self._log_status()
        first = DecisionQuery(kind="placement", pod=pod, limit=1, newest=False)
        later = [] if at is None else await self._store.decisions(first)
        message = f"no decision about pod {truncated('/'.join(pod))!r} found"
        hours = self._store.decision_retention_s / 3600
        hint = f"the log has {log_now['count']:,} decisions of the last {hours:g} h; another replica may have this one"
        if later:
            message, hint = (
                f"{message} at or before this time",
                f"its first decision is from {time_text(later[0].time // MICROSECONDS)}",
            )
        elif not log_now["count"]:
            hint = "the log is empty: check that kube-scheduler is configured to call this extender"
        raise ApiError(404, "not_found", message, hint, extra={"log": log_now, "pod": self._current(pod)})

    def _current(self, pod: tuple[str, str]) -> dict[str, Any] | None:
        """The node of the pod now (null: none) and since when (unix seconds, null if unknown); None for an unknown
        pod."""
        there = self._pod("/".join(pod))
        return None if there is None else {"node": there.spec.node_name or None, "since": scheduled_at(there)}

    async def _log_status(self) -> dict[str, Any]:
        held = await self._store.placements_held()
        first, last = (None if time is None else time / MICROSECONDS for time in (held.first, held.last))
        return {"kept_s": self._store.decision_retention_s, "count": held.count, "from": first, "to": last}

    # --- the list ----------------------------------------------------------------------------------------------------

    async def placements(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return the newest decisions that match the parameters."""
        values = query_values(request.rel_url.raw_query_string, known=[each.name for each in _OF_LIST])
        wanted = _list_request(values, now=self._now())
        self._check_log()
        with _store_errors():
            await self._recorder.flush()
            found, more = await self._matching(wanted)
        body = msgspec.json.encode({"placements": found, "more": more, "kept_s": self._store.decision_retention_s})
        etag = f'"{hashlib.blake2s(body, digest_size=12).hexdigest()}"'
        headers = CIMultiDict({hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-cache", hdrs.ETAG: etag})
        return not_modified(headers) if etag_matches(request, etag) else large_response(request, body, headers)

    async def _matching(self, wanted: _ListRequest) -> tuple[list[PlacementSummary], bool]:
        """Return the matching decisions, and whether older ones may match."""
        found: list[PlacementSummary] = []
        later: dict[str, StoredDecision] = {}  # by uid: the decision after the one that is read next
        query, read = wanted.query, 0
        while read < MOST_READ:
            rows = await self._store.decisions(query)
            for row in rows:
                read += 1
                summary = await self._summary(row, later.get(row.uid), wanted)
                later[row.uid] = row
                if summary is None or not wanted.selects(summary):
                    continue
                if len(found) == wanted.limit:
                    return found, True
                found.append(summary)
            if len(rows) < query.limit:
                return found, False
            query = replace(query, end=rows[-1].time)
        return found, True

    async def _summary(
        self, row: StoredDecision, later: StoredDecision | None, wanted: _ListRequest
    ) -> PlacementSummary | None:
        """Return the summary of a decision, None for one that cannot be read: it must not hide the others."""
        if not row.outcome and later is None and wanted.is_past:
            pod = (row.namespace, row.pod)
            after = DecisionQuery(kind="placement", pod=pod, start=row.time + 1, limit=LISTED, newest=False)
            later = next((each for each in await self._store.decisions(after) if each.uid == row.uid), None)
        try:
            state = outcome_state(row, later, self._pod)
            key = row.time, len(row.payload), row.outcome, state.kind, state.node, state.time
            summary = self._summaries.pop(key, None)
            if summary is None:
                decision = await asyncio.to_thread(decode_decision, row.payload)
                summary = documents.summary_of(row.time / MICROSECONDS, decision, state)
        except ValueError:
            return None
        self._summaries[key] = summary
        if len(self._summaries) > MOST_KNOWN:
            self._summaries.popitem(last=False)
        return summary

    # --- shadow mode -------------------------------------------------------------------------------------------------

    async def shadow(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return the report of shadow mode."""
        values = query_values(request.rel_url.raw_query_string, known=(_FROM.name, _TO.name))
        now = self._now()
        start = time_of(values, _FROM.name, now=now, default=now - self._store.decision_retention_s)
        end = time_of(values, _TO.name, now=now, default=now) + 1  # times in requests are whole seconds
        if start >= end:
            raise BadParameter(f"from={start} is not before to={end - 1}", "set from to a time before to")
        if hint := self._shadow.off_hint:
            raise ApiError(404, "not_found", "shadow mode is off", hint)
        await self._recorder.flush()
        query = DecisionQuery(
            kind="shadow", start=start * MICROSECONDS, end=end * MICROSECONDS, limit=MOST_REPORTED + 1
        )
        with _store_errors():
            rows = await self._store.decisions(query)
        shown = {"requests_to_usage": self._shadow.requests_to_usage(), "notices": self._shadow.notices()}
        found = await asyncio.to_thread(_report, rows, self._shadow.settings(), now=now)
        period = {"from": start, "to": end - 1, "source": self._shadow.source, "window": self._window()}
        return json_response(period | found | shown)


@contextmanager
def _store_errors() -> Iterator[None]:
    """Raise 503 if the store cannot be read."""
    try:
        yield
    except DecisionsUnavailable as error:
        raise ApiError(503, "decisions_unavailable", str(error), error.hint) from error


def _empty_document(pod: tuple[str, str], error: ApiError) -> dict[str, Any]:
    """The document without a decision: why, and the node of the pod as in the error."""
    reason = {"reason": error.message, "hint": error.hint, "now": error.extra["pod"], "log": error.extra["log"]}
    return {"pod": "/".join(pod), "decision": None, "others": [], **reason}


def _readable(row: StoredDecision) -> PlacementDecision:
    try:
        return decode_decision(row.payload)
    except ValueError as error:
        raise ApiError(503, "decisions_unavailable", str(error), "set at= to another time") from error


def _brief(row: StoredDecision, listed: Sequence[StoredDecision]) -> dict[str, Any]:
    """Summarize another decision about the same pod."""
    outcome = decode_outcome(row.outcome)
    again = any(each.uid == row.uid and each.time > row.time for each in listed)
    kind = outcome.kind if outcome is not None else ASKED_AGAIN if again else None
    return {"time": row.time / MICROSECONDS, "uid": row.uid, "outcome": kind, "node": row.node or None}


def _report(rows: Sequence[StoredDecision], settings: Mapping[str, str], *, now: float) -> dict[str, Any]:
    """Compute the report of shadow mode; runs in a worker thread."""
    newest = rows[:MOST_REPORTED]
    read = [each for row in newest if (each := decode_binding(row.payload)) is not None]
    times = [each.time for each in read]
    return {
        "first": min(times, default=None),
        "last": max(times, default=None),
        "truncated": len(rows) > MOST_REPORTED,
        "unreadable": len(newest) - len(read),
        **shadow_report.report(read, settings, now=now),
    }


# --- parameters ------------------------------------------------------------------------------------------------------


def _pod_of(values: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    given = single_value(values, _POD.name)
    namespace, _, name = (given or "").rpartition("/")
    if not given or not name or "/" in namespace:
        what = "parameter 'pod' is missing" if not given else f"{truncated(given)!r} is not a pod name"
        raise BadParameter(what, "?pod=NAMESPACE/NAME")
    return storable(namespace or "default"), storable(name)


def _list_request(values: Mapping[str, Sequence[str]], *, now: float) -> _ListRequest:
    outcome = single_value(values, _OUTCOME.name) or ""
    if outcome and outcome not in OUTCOMES:
        raise unknown_value("outcome", outcome, OUTCOMES)
    limit = _limit_of(values, LISTED, least=1, most=MOST_LISTED)
    since, before = (moment_of(values, each.name, now=now) for each in (_SINCE, _BEFORE))
    namespace, part, node = (storable(single_value(values, each.name) or "") for each in (_NAMESPACE, _PART, _NODE))
    query = DecisionQuery(
        kind="placement",
        namespace=namespace,
        part=part.lower(),
        node=node,
        start=0 if since is None else round(since * MICROSECONDS),
        limit=limit + 1,
    )
    if before is not None:
        query = replace(query, end=round(before * MICROSECONDS))
    return _ListRequest(query, outcome, limit, is_past=before is not None)


def _limit_of(values: Mapping[str, Sequence[str]], default: int, *, least: int, most: int) -> int:
    given = single_value(values, "limit")
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 3 and least <= int(given) <= most):
        what = f"limit={truncated(given)!r} is not a valid limit"
        raise BadParameter(what, f"a whole number from {least} to {most}")
    return int(given)
