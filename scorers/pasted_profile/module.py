"""The module of POST /scheduler/try, which every service has. The plug-ins are imported at the first request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import msgspec
from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.platform.http.bodies import large_response, read_body
from watcher.platform.http.openapi import Operation, ResponseSpec, failure
from watcher.platform.http.routing import JSON, Access, Route
from watcher.platform.modules import BuiltModule, ModuleHost

MOST_BODY = 256 << 10  # bytes of a pod, a KubeSchedulerConfiguration, and their JSON


class TrialRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Body of POST /scheduler/try. `pod` is a manifest and `profile` a KubeSchedulerConfiguration, or `plugins` as in
    [scheduler.NAME], both as YAML or JSON. `node` is the size of nodes with unknown capacity, for example {"cpu": "8",
    "memory": "32Gi"}. `limit` is the maximum number of nodes in the response."""

    pod: str
    profile: str
    node: dict[str, str] = {}
    limit: int = 100


class PastedProfileModule:
    """The module without a section in the settings."""

    section = ""

    def build(self, _table: Mapping[str, Any], serving: ModuleHost) -> BuiltModule:
        """Return the module with its only route; `_table` is empty."""
        answers = {
            200: ResponseSpec("as score, with `notes`, and `left_out`, the plug-ins that lack data", dict[str, Any]),
            400: failure("the pod, the profile or the size of the nodes is invalid"),
            413: failure("the body is too large"),
            503: failure("no load is available"),
        }
        text = (
            "Uses the windows of the watcher, and the capacity of nodes if the source knows it. "
            "One request at a time; at most 256 KiB."
        )
        operation = Operation("rank nodes by a pasted profile", answers, request=TrialRequest, description=text)
        route = Route(
            "/scheduler/try",
            "scheduler_try",
            _PastedProfileHandler(serving).score,
            operation,
            method="POST",
            access=Access.DETAIL,
        )
        return BuiltModule((route,))


class _PastedProfileHandler:
    def __init__(self, serving: ModuleHost) -> None:
        self._serving = serving
        self._scoring = asyncio.Lock()

    async def score(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """TrialRequest -> the ranking with explanations."""
        body = await read_body(request, MOST_BODY, hint="send one pod and one profile")
        async with self._scoring:
            scoring = await asyncio.to_thread(import_module, "scorers.pasted_profile.scoring")
            document = await scoring.score_pasted(bytes(body), self._serving)
        headers = CIMultiDict({hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"})
        return large_response(request, document, headers)
