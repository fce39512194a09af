"""Handler of GET /scheduler/decisions: the explanation of a recorded decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from aiohttp import web

from scorers.cluster.pods import scheduled_at
from scorers.decisions import records
from scorers.decisions.decision_document import ASKED_AGAIN, decision_document
from scorers.decisions.outcome_states import outcome_state
from scorers.decisions.recorder import DecisionRecorder, storable
from scorers.decisions.records import PlacementDecision
from watcher.core.decisions import MICROSECONDS, DecisionQuery, DecisionsUnavailable, StoredDecision
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.times import time_text
from watcher.platform.http.openapi import MISSING, Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import (
    BadParameter,
    accepts_empty,
    query_values,
    single_value,
    time_of,
    truncated,
)
from watcher.platform.http.responses import json_response
from watcher.platform.http.routing import Access, ApiError, Route

LISTED, MOST_LISTED = 10, 100
"""Number of other decisions about the same pod in a response: default and maximum."""

_POD = Parameter("pod", "NAMESPACE/NAME of a pod; NAME means namespace default")
_AT = Parameter(
    "at", "return the newest decision at or before this time: unix seconds, an RFC 3339 date, or -1h; default: now"
)
_LIMIT = Parameter(
    "limit",
    f"how many other decisions about the pod to list; default: {LISTED}",
    {"type": "integer", "minimum": 0, "maximum": MOST_LISTED},
)
_PARAMETERS = (_POD, _AT, _LIMIT, MISSING)


class DecisionsHandler:
    """`now` returns unix seconds; `pod` returns the current pod NAMESPACE/NAME."""

    def __init__(
        self,
        recorder: DecisionRecorder,
        *,
        now: Callable[[], float],
        pod: Callable[[str], Pod | None],
    ) -> None:
        self._recorder = recorder
        self._store = recorder.store
        self._now = now
        self._pod = pod

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        answers = {
            200: ResponseSpec(
                "the decision, its reasons and outcome, and other decisions about the pod; with `missing=empty` and "
                "without a decision, `decision` is null, `reason` says why, and `now` is the node of the pod",
                dict[str, Any],
            ),
            400: failure("the pod is missing or the time is invalid"),
            404: failure("no such decision; `log` describes the contents of the log, `pod` the node of the pod"),
            503: failure("decisions_unavailable: the store cannot answer"),
        }
        operation = Operation("explain the placement of a pod", answers, _PARAMETERS)
        return [Route("/scheduler/decisions", "scheduler_decisions", self.why, operation, access=Access.DETAIL)]

    async def why(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Return the decision about a pod."""
        values = query_values(request.rel_url.raw_query_string, known=[each.name for each in _PARAMETERS])
        namespace, name = _pod_of(values)
        at = time_of(values, _AT.name, now=self._now(), default=self._now()) if _AT.name in values else None
        limit, empty = _limit_of(values), accepts_empty(values)
        try:
            return json_response(await self._answer((namespace, name), at=at, limit=limit))
        except DecisionsUnavailable as error:
            raise ApiError(503, "decisions_unavailable", str(error), error.hint) from error
        except ApiError as error:
            if not empty or error.status != 404:
                raise
            return json_response(_empty_document((namespace, name), error))

    async def _answer(self, pod: tuple[str, str], *, at: int | None, limit: int) -> dict[str, Any]:
        if not self._recorder.is_on:
            hint = 'set store.decisions = "24h" and restart'
            extra = {"log": None, "pod": self._current(pod)}
            raise ApiError(404, "not_found", 'the decision log is off: store.decisions is "0s"', hint, extra=extra)
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
            "decision": decision_document(decision, became, now=self._now()),
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


def _empty_document(pod: tuple[str, str], error: ApiError) -> dict[str, Any]:
    """The document without a decision: why, and the node of the pod as in the error."""
    reason = {"reason": error.message, "hint": error.hint, "now": error.extra["pod"], "log": error.extra["log"]}
    return {"pod": "/".join(pod), "decision": None, "others": [], **reason}


def _readable(row: StoredDecision) -> PlacementDecision:
    try:
        return records.decode(row.payload)
    except ValueError as error:
        raise ApiError(503, "decisions_unavailable", str(error), "set at= to another time") from error


def _brief(row: StoredDecision, listed: Sequence[StoredDecision]) -> dict[str, Any]:
    """Summarize another decision about the same pod."""
    outcome = records.decode_outcome(row.outcome)
    again = any(each.uid == row.uid and each.time > row.time for each in listed)
    kind = outcome.kind if outcome is not None else ASKED_AGAIN if again else None
    return {"time": row.time / MICROSECONDS, "uid": row.uid, "outcome": kind, "node": row.node or None}


def _pod_of(values: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    given = single_value(values, _POD.name)
    namespace, _, name = (given or "").rpartition("/")
    if not given or not name or "/" in namespace:
        what = "parameter 'pod' is missing" if not given else f"{truncated(given)!r} is not a pod name"
        raise BadParameter(what, "?pod=NAMESPACE/NAME")
    return storable(namespace or "default"), storable(name)


def _limit_of(values: Mapping[str, Sequence[str]]) -> int:
    given = single_value(values, _LIMIT.name)
    if given is None:
        return LISTED
    if not given.isascii() or not given.isdigit() or len(given) > 3 or int(given) > MOST_LISTED:
        raise BadParameter(
            f"limit={truncated(given)!r} is not a valid limit", f"a whole number from 0 to {MOST_LISTED}"
        )
    return int(given)
