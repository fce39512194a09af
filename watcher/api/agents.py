"""The pages of agents and QoS Resource Managers, for the dashboard: to be looked at, nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import hdrs, web

from watcher.agents.pages import PAGES, AgentError, AgentPages
from watcher.platform.http.openapi import Answer, Operation, Parameter, failure
from watcher.platform.http.parameters import query_values, shown
from watcher.platform.http.responses import json_response
from watcher.platform.http.routing import JSON, Access, ApiError, Route

PATH = "/api/v1/agents"


class AgentEntry(msgspec.Struct):
    """One that may be asked, with the names of its pages. `node` is null where nobody tells of it: the Kubernetes API
    does of pods, a name's addresses have none."""

    name: str
    kind: str
    node: str | None
    pages: list[str]


class AgentTrouble(msgspec.Struct):
    """Why some of a kind, or all of them, are not among those that may be asked: `of` is the name or the selection."""

    kind: str
    of: str
    message: str
    hint: str


class AgentsDocument(msgspec.Struct):
    """Body of /api/v1/agents, by kind, node and name."""

    agents: list[AgentEntry]
    troubles: list[AgentTrouble]


class AgentRoutes:
    """The routes."""

    def __init__(self, agents: AgentPages) -> None:
        self._agents = agents

    def routes(self) -> list[Route]:
        """Pages tell of pods, as explain does, and need what it needs."""
        listed = Operation("agents and QoS Resource Managers", {200: Answer("those there are", AgentsDocument)})
        passed = Operation(
            "a page of one of them",
            {
                200: Answer("as it answers", dict[str, Any]),
                404: failure("there is none of that name, or no such page"),
                502: failure("agent_unreachable, agent_refused, agent_failed: it does not give the page"),
            },
            (
                Parameter("name", "address and port, as /api/v1/agents has it", place="path"),
                Parameter("page", "plan or audit; state or decisions of a QoS Resource Manager", place="path"),
            ),
        )
        return [
            Route(PATH, "agents", self.listed, listed),
            Route(f"{PATH}/{{name}}/{{page}}", "agent_page", self.page, passed, access=Access.DETAIL),
        ]

    async def listed(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """Who may be asked, and for what."""
        query_values(request.rel_url.raw_query_string, known=())
        known = await self._agents.known()
        entries = [
            AgentEntry(each.name, kind.value, each.node or None, list(PAGES[kind]))
            for kind, found in known.items()
            for each in sorted(found.places, key=lambda place: (place.node, place.name))
        ]
        troubles = [
            AgentTrouble(kind.value, each.where, each.message, each.hint)
            for kind, found in known.items()
            for each in found.troubles
        ]
        return json_response(AgentsDocument(entries, troubles))

    async def page(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """A page, as it comes."""
        query_values(request.rel_url.raw_query_string, known=())
        name, page = captured
        try:
            body = await self._agents.page(name, page)
        except AgentError as error:
            raise ApiError(502, error.code, str(error), error.hint) from error
        except LookupError:
            raise await self._nobody(name, page) from None
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"})

    async def _nobody(self, name: str, page: str) -> ApiError:
        known = await self._agents.known()
        names = {each.name: kind for kind, found in known.items() for each in found.places}
        pages = PAGES[names[name]] if name in names else ()
        if pages:
            return ApiError(
                404, "not_found", f"{shown(name)} has no page {shown(page)!r}", f"it has: {', '.join(pages)}"
            )
        hint = f"{PATH} lists those that there are now; a pod that is made anew has another address"
        return ApiError(404, "not_found", f"there is no agent {shown(name)!r}", hint)
