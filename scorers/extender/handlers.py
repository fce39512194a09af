"""The kube-scheduler extender: profiles answer filter, prioritize, and bind, and explain their scores.

kube-scheduler sends one HTTP request per pod and waits for the response. Therefore no request handler waits for I/O:
the table is in memory, the load is the client's last copy, and a request is one pass of each plug-in over the nodes in
it.

An extender has no Reserve hook, and kube-scheduler starts on the next pod before it binds the previous one. To keep two
pods in quick succession from seeing the same empty node, prioritize reserves the pod on the best node (`reserve =
"prioritize"`) until the pod is bound, until the next request about it, or for five seconds. kube-scheduler does not
call prioritize if a single node is feasible (`schedulePod` in schedule_one.go); it calls filter with a nominated node
alone. If a single node passes, filter therefore reserves the pod there. See reservations.py.

Special cases: a node that the table does not know scores 0, and passes every filter that cannot judge it by its load;
if the table knows fewer than half of the nodes, all score 0. An empty node list returns an empty list. Invalid
quantities of the pod are an error: `Error` in the filter result, status 400 for the other requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice, repeat
from time import perf_counter
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
from aiohttp import hdrs, web
from multidict import CIMultiDict

from scorers.cluster.pods import PodInfo, pod_info
from scorers.cluster.table import ClusterTable
from scorers.decisions.log import DecisionLog, RankedResponse
from scorers.decisions.shadow import ShadowMode
from scorers.extender.manifest import POD_TEMPLATE_PATHS, read_pasted_pod
from scorers.extender.reservations import FindPod, Reservations, is_waiting
from scorers.extender.score_documents import measured, ranked_nodes
from scorers.extender.telemetry import SchedulerTelemetry
from scorers.plugin_api import wire
from scorers.plugin_api.arguments import schema_of
from scorers.plugin_api.framework import EstimatingPlugin
from scorers.plugin_api.wire import integer_scores, plain
from scorers.profiles.default_filters import default_verdicts, unchecked
from scorers.profiles.ranking import ProfileRunner
from scorers.profiles.registry import UnknownPlugin, extension_points, factory_of, known_names
from watcher.arrays import I64
from watcher.core.kubernetes.objects import Pod
from watcher.decoding.text import whole_number
from watcher.platform.http.bodies import large_response, read_body
from watcher.platform.http.openapi import MISSING, Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import accepts_empty, query_values, single_value
from watcher.platform.http.responses import json_response
from watcher.platform.http.routing import JSON, YAML, Access, ApiError, Handler, Route, has_certificate
from watcher.platform.http.sites import host_name, is_address
from watcher.platform.net.loopback import is_loopback

log = logging.getLogger(__name__)

JSON_HEADERS = {hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"}

T = TypeVar("T")

AT_ONCE = 50  # nodes processed before other tasks run; some milliseconds
MOST_MANIFEST = 64 << 10  # bytes; hand-written manifests are smaller
EXAMPLE_POD = (
    '{"kind": "Pod", "metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "resources": '
    '{"requests": {"cpu": "1", "memory": "1Gi"}}}]}}'
)
DEFAULT_LIMIT = 100  # nodes
MAX_LIMIT = 10_000
MOST_BODY = 48 << 20  # 5,000 whole nodes are 33 MB; nodeCacheCapable makes that 100 kB
MOST_BINDING = 16 << 10
MOST_EXPLAINED = 5_000  # nodes; about 4 kB of JSON each
SMALLER = "set nodeCacheCapable: true in the configuration of kube-scheduler"

Bind = Callable[[wire.ExtenderBindingArgs], Awaitable[Pod | None]]
"""Binds a pod through the Kubernetes API and returns it if it is known. Raises the error of the API on failure."""

_PROFILE = Parameter("profile", "a profile of [scheduler.NAME]", place="path")
_NODE = Parameter("node", "name of a node", place="path")
_LIMIT = Parameter(
    "limit",
    "maximum number of nodes in the response, best first",
    {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
)
_NODES = Parameter("node", "rank only the nodes with these names", repeatable=True)
_UNKNOWN_PROFILE = failure("no such profile")
_MALFORMED = failure("the body is not a valid ExtenderArgs object")
_BUSY = failure("other large requests need the memory; see Retry-After")


class Extender:
    """The request handlers over one table. `now` returns unix seconds; `bind` is None without a Kubernetes API,
    `decisions` if decisions are not recorded, and `shadow` without shadow mode. `unmet` returns the problems of a
    profile with data that the watcher does not offer. `find_pod` returns the pod of a request as the API has it, None
    for a pod that the API has not reported; by default, pods are not read from an API and are taken as given."""

    def __init__(
        self,
        table: ClusterTable,
        profiles: Mapping[str, ProfileRunner],
        *,
        now: Callable[[], float],
        bind: Bind | None = None,
        decisions: DecisionLog | None = None,
        shadow: ShadowMode | None = None,
        unmet: Callable[[str], Sequence[str]] | None = None,
        find_pod: FindPod = lambda pod: pod,
    ) -> None:
        self.table = table
        self.profiles = profiles
        self.reservations = Reservations(table, now=now, find_pod=find_pod)
        self.telemetry = SchedulerTelemetry(table, profiles, self.reservations)
        self._now = now
        self._bind = bind
        self._decisions = decisions
        self._shadow = shadow
        self._decoding = asyncio.Lock()
        self._explaining = asyncio.Lock()
        self._unmet = unmet

    def routes(self) -> list[Route]:
        """Return the routes for the watcher's application."""
        wrong = {400: _MALFORMED, 404: _UNKNOWN_PROFILE, 413: failure("the body is too large"), 503: _BUSY}
        filtered = ResponseSpec("the nodes that pass the filters", wire.ExtenderFilterResult)
        ranked = ResponseSpec("the score of each node", list[wire.HostPriority])
        bound = ResponseSpec("whether the pod was bound", wire.ExtenderBindingResult)
        why = ResponseSpec("every plug-in's inputs, steps and scores", dict[str, Any])
        nodes = {200: ResponseSpec("known state of the nodes", dict[str, Any]), 404: _UNKNOWN_PROFILE}
        of_node = Operation("a node", nodes, (_PROFILE, _NODE, MISSING))
        plugins = {200: ResponseSpec("plug-ins with their arguments, and the profiles", dict[str, Any])}
        asked = partial(Operation, parameters=(_PROFILE,), request=wire.ExtenderArgs)
        binding = Operation("bind a pod", {200: bound, **wrong}, (_PROFILE,), request=wire.ExtenderBindingArgs)
        post = partial(Route, method="POST", access=Access.SCHEDULER)
        look = partial(Route, access=Access.DETAIL)
        at = "/scheduler/{profile}"
        rejecting, scoring = asked("reject nodes for a pod", {200: filtered, **wrong}), "score nodes for a pod"
        explaining = asked("explain the score of each node", {200: why, **wrong})
        return [
            post(f"{at}/filter", "scheduler_filter", self._timed("filter", self.filter), rejecting),
            post(
                f"{at}/prioritize",
                "scheduler_prioritize",
                self._timed("prioritize", self.prioritize),
                asked(scoring, {200: ranked, **wrong}),
            ),
            post(f"{at}/bind", "scheduler_bind", self._timed("bind", self.bind), binding),
            look(f"{at}/explain", "scheduler_explain", self.explain, explaining, method="POST"),
            look(f"{at}/score", "scheduler_score", self.score, self._scoring(), method="POST", body_types=(JSON, YAML)),
            look(f"{at}/nodes", "scheduler_nodes", self.nodes, Operation("all nodes", nodes, (_PROFILE,))),
            look(f"{at}/nodes/{{node}}", "scheduler_node", self.nodes, of_node),
            Route("/scheduler/plugins", "scheduler_plugins", self.plugins, Operation("plug-ins and profiles", plugins)),
        ]

    def _scoring(self) -> Operation:
        answers = {
            200: ResponseSpec("as explain, plus `of`, the number of ranked nodes", dict[str, Any]),
            400: failure("the body is not a pod manifest"),
            404: _UNKNOWN_PROFILE,
            413: failure("the manifest is too large"),
        }
        text = "The body is a Pod or a workload such as a Deployment, as YAML or JSON: at most 64 KiB, without aliases."
        return Operation("rank nodes for a manifest and explain the scores", answers, (_PROFILE, _LIMIT, _NODES), text)

    def _timed(self, verb: str, handler: Handler) -> Handler:
        """Wrap a handler to record response times per profile; the router's metrics have no profile label."""

        async def handle(request: web.Request, captured: Sequence[str]) -> web.StreamResponse:
            begun = perf_counter()
            try:
                return await handler(request, captured)
            finally:
                if (name := captured[0]) in self.profiles:  # unknown names would be unbounded label values
                    self.telemetry.answered(name, verb, perf_counter() - begun)

        return handle

    # --- requests of kube-scheduler ----------------------------------------------------------------------------------

    async def filter(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """ExtenderArgs -> ExtenderFilterResult, with the reason for each rejected node; reserve the pod if a single
        node passes and reserving is configured."""
        args, names = await self._args(request)
        profile = self._profile(captured[0])
        try:
            info = pod_info(_pod_of(args))
        except ValueError as error:
            return json_response(wire.ExtenderFilterResult(error=f"invalid resources of the pod: {error}"))
        self.reservations.begin(info.pod)
        there, rows, _ = self._rows(names)
        self.telemetry.unknown(captured[0], len(names) - len(there))
        self._record_candidates(info, rows, verb="filter")
        filtered = profile.filter(info, rows, now=self._now())
        if len(there) < len(names):
            others, load = self.table.load_of_unknown(names)
            if others:
                filtered = profile.filter_others(info, filtered, load, now=self._now())
                there = [*there, *others]
        failures = filtered.failures(there)
        reserved = ""
        if profile.settings.reserve == "prioritize":
            reserved = self.reservations.reserve_on_only_node(info.pod, names, failures)
        if self._decisions is not None:
            self._decisions.filtered(captured[0], info, there, filtered, asked=len(names), reserved=reserved)
        answer = msgspec.json.encode(wire.filter_result(args, names, failures, filtered.unresolvable(there)))
        return large_response(request, answer, CIMultiDict(JSON_HEADERS))

    async def prioritize(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """ExtenderArgs -> HostPriorityList, and reserve the pod on the best node if configured."""
        args, names = await self._args(request)
        profile = self._profile(captured[0])
        info = _info(args)
        self.reservations.begin(info.pod)
        there, rows, known = self._rows(names)
        self.telemetry.unknown(captured[0], len(names) - len(there))
        self._record_candidates(info, rows, verb="prioritize")
        now = self._now()
        ranked = profile.rank(info, rows, now=now)
        whole = integer_scores(ranked.values, profile.most)
        scores, reserved = np.zeros(len(names), dtype=np.int64), ""
        if tells := 2 * len(known) >= len(names):  # otherwise the few known nodes would get all pods
            scores[known] = whole
            best = profile.likely_node(info, rows, there, whole) if profile.settings.reserve == "prioritize" else None
            if best is not None:
                reserved = self.reservations.reserve(info.pod, there[best])
        if self._decisions is not None:
            answer = RankedResponse(there, rows, ranked, asked=len(names), scores_sent=tells, reserved=reserved)
            self._decisions.ranked(profile, info, answer)
        return json_response(list(map(wire.HostPriority, names, scores.tolist())))

    async def bind(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """ExtenderBindingArgs -> ExtenderBindingResult. Errors are reported in the result, as kube-scheduler
        expects."""
        profile = self._profile(captured[0])
        if not profile.settings.bind or self._bind is None:
            return json_response(wire.ExtenderBindingResult(f"bind is off in profile {profile.settings.name}"))
        if not _may_bind(request):
            return json_response(
                wire.ExtenderBindingResult("bind requires a verified client certificate or a request from loopback")
            )
        try:
            args = wire.read_binding(await read_body(request, MOST_BINDING, hint="send ExtenderBindingArgs"))
        except ValueError as error:
            return json_response(wire.ExtenderBindingResult(f"invalid ExtenderBindingArgs: {error}"))
        try:
            pod = await self._bind(args)
        except Exception as error:  # kube-scheduler retries after any error
            log.warning("pod %s/%s was not bound to %s: %s", args.namespace, args.name, args.node, error)
            return json_response(wire.ExtenderBindingResult(str(error) or type(error).__name__))
        if self._decisions is not None:
            self._decisions.bound(args.uid, args.node)
        if pod is not None and profile.settings.reserve != "off":
            self.reservations.bound(pod, args.node)
        return json_response(wire.ExtenderBindingResult())

    # --- requests of users -------------------------------------------------------------------------------------------

    async def explain(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """ExtenderArgs -> every input, step, and score of each plug-in for each node, with the reason as text, best
        node first. Does not reserve; the pod's own reservation does not count, as in a repeated request. Without nodes
        in the request, all known nodes are explained; at most MOST_EXPLAINED."""
        args, names = await self._args(request)
        profile = self._profile(captured[0])
        if args.node_names is None and args.nodes is None:
            names = self._all_known()
        return await self._explanation(request, profile, _info(args), names, most=MOST_EXPLAINED)

    async def score(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """As explain, for a hand-written manifest and all or some nodes; returns the best `limit` nodes."""
        values = query_values(request.rel_url.raw_query_string, known=(_LIMIT.name, _NODES.name))
        limit = _limit_of(single_value(values, _LIMIT.name))
        info = await _pasted(request)
        profile = self._profile(captured[0])
        names = values.get(_NODES.name) or self._all_known()
        return await self._explanation(request, profile, info, names, most=limit)

    def _all_known(self) -> list[str]:
        return sorted(name for name, row in self.table.row.items() if self.table.known[row])

    async def _explanation(
        self, request: web.Request, profile: ProfileRunner, info: PodInfo, names: Sequence[str], *, most: int
    ) -> web.Response:
        """Explain the ranking of these nodes; return only the best `most`. One explanation at a time, each node encoded
        at once, because an explanation as Python objects takes several times the memory of its text."""
        async with self._explaining:
            there, rows, _ = self._rows(list(dict.fromkeys(names)))
            now = self._now()
            self.table.expire(now)
            without_itself = partial(self.table.without_reservation, info.key)
            with without_itself():
                ranked, filtered = profile.rank(info, rows, now=now), profile.filter(info, rows, now=now)
                defaults = default_verdicts(info, self.table, rows)
            message = self._explained(profile, info, there, names, now=now)
            ordered = ranked_nodes(self.table.load, there, rows, ranked, (defaults, filtered), now=now)
            nodes = (msgspec.Raw(msgspec.json.encode(node)) for node in islice(ordered, most))
            if lacks := self._unmet(profile.settings.name) if self._unmet else ():
                message["lacks"] = list(lacks)
            message["of"] = len(there)
            message["nodes"] = await _collect_in_chunks(nodes, within=without_itself)
        return large_response(request, msgspec.json.encode(message), CIMultiDict(JSON_HEADERS))

    async def nodes(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Return the table's data of all nodes or one node."""
        self._profile(captured[0])
        known = [MISSING.name] if captured[1:] else []
        empty = accepts_empty(query_values(request.rel_url.raw_query_string, known=known))
        names = captured[1:] or sorted(self.table.row)
        for name in names:
            if name not in self.table.row and not empty:
                raise ApiError(404, "not_found", f"unknown node {name!r}", "kubectl get nodes lists them")
        reserved: dict[str, list[str]] = {}
        for key, node in self.table.reserved.items():
            reserved.setdefault(node, []).append(key)
        there = (name for name in names if name in self.table.row)
        message = await _collect_in_chunks(
            (name, self._node(name, reserved.get(name, []), captured[0])) for name in there
        )
        return json_response({"nodes": dict(message)})

    async def plugins(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Return the available plug-ins with arguments and defaults, and the profiles."""
        described: list[dict[str, Any]] = []
        for name in known_names():
            try:
                factory = factory_of(name)
            except UnknownPlugin as error:  # a broken third-party package must not hide the other plug-ins
                described.append({"name": name, "error": str(error)})
                continue
            defaults = {} if _has_required(factory.arguments) else msgspec.to_builtins(factory.arguments())
            described.append(
                {
                    "name": name,
                    "extensionPoints": extension_points(factory),
                    "arguments": schema_of(factory.arguments),
                    "defaults": defaults,
                }
            )
        hint = "" if self._shadow is None else self._shadow.off_hint
        shadow = {"on": self._shadow is not None and not hint, "hint": hint}
        return json_response({"plugins": described, "profiles": sorted(self.profiles), "shadow": shadow})

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _profile(self, name: str) -> ProfileRunner:
        """Return a profile. Call this after the body is read: a reload may have replaced the profiles meanwhile."""
        profile = self.profiles.get(name)
        if profile is None:
            there = ", ".join(sorted(self.profiles)) or "none"
            raise ApiError(404, "not_found", f"no such profile: {name!r}", f"profiles are: {there}")
        return profile

    async def _args(self, request: web.Request) -> tuple[wire.ExtenderArgs, list[str]]:
        body = await read_body(request, MOST_BODY, hint=SMALLER)
        try:
            if len(body) <= wire.LARGE_BODY:
                return wire.read_args(body)
            async with self._decoding:  # one at a time, to limit the memory
                return await asyncio.to_thread(wire.read_args, body)
        except wire.TooMuch as error:
            raise ApiError(413, "too_large", f"invalid ExtenderArgs: {error}", SMALLER) from None
        except ValueError as error:
            _refuse(
                f"invalid ExtenderArgs: {error}",
                hint="send an object of kube-scheduler's extender/v1 with Pod and either Nodes or NodeNames",
            )

    def _record_candidates(self, info: PodInfo, rows: I64, *, verb: str) -> None:
        """Record the nodes of a request for shadow mode, unless the pod does not wait for a node in the API."""
        if self._shadow is None:
            return
        known = self.reservations.find_pod(info.pod)
        if known is None or is_waiting(known):
            self._shadow.record_request(info.key, rows, verb=verb, is_reported=known is not None)

    def _rows(self, names: Sequence[str]) -> tuple[Sequence[str], I64, I64]:
        """Return names and rows of the nodes that the table knows, and their positions in the request."""
        rows = np.fromiter(map(self.table.row.get, names, repeat(-1)), dtype=np.int64, count=len(names))
        known = np.flatnonzero(np.append(self.table.known, False)[rows])  # -1 (unknown) selects the appended False
        if len(known) == len(names):
            return names, rows, known
        return [names[i] for i in known.tolist()], rows[known], known

    def _explained(
        self,
        profile: ProfileRunner,
        info: PodInfo,
        known: Sequence[str],
        names: Sequence[str],
        *,
        now: float,
    ) -> dict[str, Any]:
        """Return the response without its nodes."""
        columns = self.table.load.columns
        return {
            "profile": profile.settings.name,
            "pod": {
                "key": info.key,
                "requests": dict(info.requests),
                "limits": dict(info.limits),
                "unchecked": unchecked(info.pod),
            },
            "time": now,
            "load": None
            if columns is None
            else {"source": columns.source, "window_end": columns.window_end, "age_s": now - columns.window_end},
            "unknown": sorted(set(names) - set(known)),
        }

    def _node(self, name: str, reserved: Sequence[str], profile: str) -> dict[str, Any]:
        table, row = self.table, self.table.row[name]
        load = table.load
        made = self.profiles[profile].plugins if profile in self.profiles else ()  # a reload may have removed it
        return {
            "known": bool(table.known[row]),
            "sampled": plain(load.sampled()[row]),
            **measured(load.columns, int(load.where[row]), now=self._now()),
            "capacity": table.capacity.of(row),
            "allocatable": table.allocatable.of(row),
            "requested": table.requested.of(row),
            "limits": table.limited.of(row),
            "pods": int(table.pods[row]),
            "recent": [{"pod": key, "assigned": at} for key, _, at in table.recent.of(row)],
            "reserved": reserved,
            "estimates": {each.name: each.estimates(row) for _, each in made if isinstance(each, EstimatingPlugin)},
        }


def _pod_of(args: wire.ExtenderArgs) -> Pod:
    assert args.pod is not None  # read_args rejects bodies without a pod
    return args.pod


def _info(args: wire.ExtenderArgs) -> PodInfo:
    try:
        return pod_info(_pod_of(args))
    except ValueError as error:
        _refuse(f"invalid resources of the pod: {error}", hint='use quantities such as "500m", "2" or "4Gi"')


async def _pasted(request: web.Request) -> PodInfo:
    """Return the pod of the manifest in the body. Raises ApiError."""
    text = await read_body(request, MOST_MANIFEST, hint="send a single manifest")
    return await asyncio.to_thread(pasted_info, bytes(text))


def pasted_info(text: bytes) -> PodInfo:
    """Return the pod of a pasted manifest. Raises ApiError."""
    try:
        args, _ = wire.read_args(msgspec.json.encode({"Pod": read_pasted_pod(text)}))
        return pod_info(_pod_of(args))
    except (ValueError, TypeError) as error:  # TypeError: YAML values without JSON equivalent, such as dates as keys
        hint = f"send one of {', '.join(POD_TEMPLATE_PATHS)} as YAML or JSON, for example {EXAMPLE_POD}"
        raise ApiError(400, "bad_request", f"the body is not a pod manifest: {error}", hint) from None


def _limit_of(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    limit = whole_number(text)
    if limit is None or not 1 <= limit <= MAX_LIMIT:
        raise ApiError(400, "bad_request", "limit must be a number of nodes", f"1 to {MAX_LIMIT}")
    return limit


def _refuse(message: str, *, hint: str) -> NoReturn:
    raise ApiError(400, "bad_request", message, hint)


async def _collect_in_chunks(
    items: Iterator[T], *, within: Callable[[], AbstractContextManager[None]] = nullcontext
) -> list[T]:
    """Collect all items in chunks, each `within` a context, and yield to other tasks between chunks."""
    found: list[T] = []
    while True:
        with within():
            some = list(islice(items, AT_ONCE))
        found += some
        if len(some) < AT_ONCE:
            return found
        await asyncio.sleep(0)


def _may_bind(request: web.Request) -> bool:
    """Return whether the client may bind: kube-scheduler cannot send a token, so a verified client certificate or a
    request from loopback is required. A host name in the Host header of the latter may be that of a web page, which the
    browser of a user on this machine has opened."""
    if has_certificate(request):
        return True
    host = host_name(request.host)
    return is_loopback(request.remote or "") and (host == "localhost" or is_address(host))


def _has_required(kind: type[msgspec.Struct]) -> bool:
    fields: Iterable[Any] = msgspec.structs.fields(kind)
    return any(field.required for field in fields)
