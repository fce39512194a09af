"""The pages of agents and QoS Resource Managers, for the dashboard: to be looked at, nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import hdrs, web

from watcher.agent_pages import PAGES, AgentError, AgentPages
from watcher.api.openapi import Answer, Operation, Parameter, failure
from watcher.api.parameters import nearest, query_values, shown
from watcher.api.responses import json_response
from watcher.api.routing import JSON, Access, ApiError, Route

PATH = "/api/v1/agents"


class AgentEntry(msgspec.Struct):
    """One that may be asked, with the names of its pages."""

    name: str
    kind: str
    pages: list[str]


class AgentsDocument(msgspec.Struct):
    """Body of /api/v1/agents, by kind and name."""

    agents: list[AgentEntry]


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
        entries = [AgentEntry(each.name, each.kind.value, list(PAGES[each.kind])) for each in known]
        return json_response(AgentsDocument(entries))

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
        pages = [page for each in known if each.name == name for page in PAGES[each.kind]]
        if pages:
            return ApiError(
                404, "not_found", f"{shown(name)} has no page {shown(page)!r}", f"it has: {', '.join(pages)}"
            )
        near = nearest(name, [each.name for each in known])
        hint = f"did you mean {near}?" if near else f"{PATH} lists those of [dashboard]"
        return ApiError(404, "not_found", f"there is no agent {shown(name)!r}", hint)
