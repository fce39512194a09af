"""The HTTP pages of the agent: health, metrics, explanation, audit entries, pods."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import msgspec
from aiohttp import web

from agent.audit.database import AuditError
from agent.audit.log import AuditOutcome, Filter
from agent.model import PODS, StageKind
from agent.service.dependencies import AgentRuntime
from agent.service.node_server import json_response, metrics_response
from watcher.platform.http.openapi import Operation, Parameter, ResponseSpec
from watcher.platform.http.parameters import BadParameter, moment_of, truncated
from watcher.platform.http.routing import Access, ApiError, Route
from watcher.platform.telemetry.instruments import Instruments

log = logging.getLogger(__name__)


ALIVE_INTERVALS = 3.0
LARGEST_LIMIT = 1000
_LIMITS = {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT}
_LIMIT = Parameter("limit", f"maximum number of entries, from 1 to {LARGEST_LIMIT} (default 100)", _LIMITS)
_KINDS = (*get_args(StageKind), "scheduling")
_FILTERS = (
    Parameter("since", "earliest time: unix seconds, an RFC 3339 date, or an age (-10m)"),
    Parameter("until", "latest time: unix seconds, an RFC 3339 date, or an age (-10m)"),
    Parameter("kind", "kind of entry", {"type": "string", "enum": list(_KINDS)}),
    Parameter("outcome", "outcome of the entry", {"type": "string", "enum": [each.value for each in AuditOutcome]}),
    Parameter("namespace", "namespace of the pod"),
    Parameter("pod", "pod as NAMESPACE/NAME"),
    Parameter("before_id", "only entries with a lower id, for the next page", {"type": "integer"}),
    _LIMIT,
)


class AgentPages:
    """The HTTP routes of the agent."""

    def __init__(self, made: AgentRuntime, telemetry: Instruments) -> None:
        self._made = made
        self._telemetry = telemetry

    def public(self) -> list[Route]:
        """Routes that need no token: health check and metrics."""
        ok = Operation("whether the agent's cycles succeed", {200: ResponseSpec("cycles succeed", dict[str, Any])})
        metrics = Operation("metrics of the agent", {200: ResponseSpec("metrics in the Prometheus text format", str)})
        return [
            Route("/healthz", "healthz", self.health, ok, access=Access.OPEN),
            Route("/metrics", "metrics", self.metrics, metrics, access=Access.OPEN),
        ]

    def all(self) -> list[Route]:
        """All routes, including routes with pod data."""
        explain = Operation("explanation of the last cycle", {200: ResponseSpec("the explanation", dict[str, Any])})
        pods = Operation(
            "usage of each pod of the node", {200: ResponseSpec("the pods of the last cycle", dict[str, Any])}
        )
        audit = Operation("audit entries, newest first", {200: ResponseSpec("the entries", dict[str, Any])}, _FILTERS)
        return [
            *self.public(),
            Route("/explain", "explain", self.explain, explain, access=Access.DETAIL),
            Route("/audit", "audit", self.audit, audit, access=Access.DETAIL),
            Route("/pods", "pods", self.pods, pods, access=Access.DETAIL),
        ]

    async def health(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """200 while cycles succeed; 503 if none succeeded for three intervals."""
        agent = self._made.agent
        if agent.age > ALIVE_INTERVALS * agent.interval:
            raise ApiError(503, "stuck", f"no cycle succeeded for {agent.age:.0f} s", "see the agent's log")
        return json_response({"status": "ok", "cycle": agent.last.number, "age_s": round(agent.age, 3)})

    async def metrics(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Metrics in the Prometheus text format."""
        audit = self._made.audit
        try:
            self._made.metrics.totals = await asyncio.to_thread(audit.totals)
            self._made.metrics.held = len(await asyncio.to_thread(audit.originals_by_key))
        except AuditError as error:
            log.debug("reading the audit totals for /metrics failed, previous values reported: %s", error)
        return await metrics_response(self._telemetry)

    async def explain(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The explanation of the last cycle."""
        return json_response(self._made.agent.explanation())

    async def pods(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The pods of the last cycle with their usage (cores, bytes), for a load-watcher without another source of pod
        usage (docs/reference/pods.md)."""
        agent = self._made.agent
        state = agent.last.state
        if (missing := state.missing.get(PODS)) is not None or not agent.last.number:
            raise ApiError(503, "no_pods", missing or "no cycle has run yet", "see the agent's log")
        used = [
            {"namespace": pod.namespace, "name": pod.name, "cores": pod.cpu, "bytes": pod.memory}
            for pod in sorted(state.pods, key=lambda pod: pod.key)
        ]
        node = agent.surroundings.node
        return json_response({"node": node, "time": state.time, "span_s": agent.interval, "pods": used})

    async def audit(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The audit entries that match the query, newest first."""
        wanted = _filter(request.query, now=time.time())
        try:
            deeds = await asyncio.to_thread(self._made.audit.entries, wanted)
        except AuditError as error:
            raise ApiError(503, "no_audit", str(error), error.hint) from None
        return json_response({"deeds": [deed.as_json() for deed in deeds]})


def _filter(query: Mapping[str, str], *, now: float) -> Filter:
    """Parse the query of GET /audit; `now` in unix seconds. Raises BadParameter."""
    known = {parameter.name for parameter in _FILTERS}
    if unknown := sorted(set(query) - known):
        hint = f"valid parameters: {', '.join(sorted(known))}"
        raise BadParameter(f"unknown parameter {truncated(unknown[0])!r}", hint)
    for name, values in (("kind", _KINDS), ("outcome", tuple(AuditOutcome))):
        if name in query and query[name] not in values:
            raise BadParameter(f"unknown {name} {truncated(query[name])!r}", f"valid values: {', '.join(values)}")
    if "pod" in query and query["pod"].count("/") != 1:
        raise BadParameter(f"{truncated(query['pod'])!r} is not a pod", "use ?pod=NAMESPACE/NAME")
    times = {name: moment_of({name: [query[name]]}, name, now=now) for name in ("since", "until") if name in query}
    try:
        return msgspec.convert({**query, **times}, Filter, strict=False)
    except msgspec.ValidationError as error:
        raise BadParameter(f"invalid filter: {error}", "limit and before_id must be whole numbers") from None
