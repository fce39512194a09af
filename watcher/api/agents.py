"""Read-only proxy for the pages of agents and QoS Resource Managers, for the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import hdrs, web

from watcher.agent_clients.pages import PAGES, AgentError, AgentProxy
from watcher.platform.http.openapi import Operation, Parameter, ResponseSpec, failure
from watcher.platform.http.parameters import query_values, truncated
from watcher.platform.http.responses import json_response
from watcher.platform.http.routing import JSON, Access, ApiError, Route

PATH = "/api/v1/agents"


class AgentEntry(msgspec.Struct):
    """A reachable agent or QoS Resource Manager and the names of its pages. `node` is null if unknown: it is known for
    pods found through the Kubernetes API, but not for addresses found through DNS."""

    name: str
    kind: str
    node: str | None
    pages: list[str]


class AgentTrouble(msgspec.Struct):
    """The reason why some or all processes of a kind could not be discovered. `of` is the DNS name or the pod
    selector."""

    kind: str
    of: str
    message: str
    hint: str


class AgentsDocument(msgspec.Struct):
    """Body of /api/v1/agents. `agents` are ordered by kind, node and name."""

    agents: list[AgentEntry]
    troubles: list[AgentTrouble]


class AgentRoutes:
    """Routes of /api/v1/agents and of the proxied pages."""

    def __init__(self, agents: AgentProxy) -> None:
        self._agents = agents

    def routes(self) -> list[Route]:
        """Both routes. Pages contain details of pods, so they need Access.DETAIL, as the explain page does."""
        listed = Operation(
            "List agents and QoS Resource Managers",
            {200: ResponseSpec("the discovered agents and QoS Resource Managers", AgentsDocument)},
        )
        passed = Operation(
            "A page of one agent or QoS Resource Manager",
            {
                200: ResponseSpec("the page, unchanged", dict[str, Any]),
                404: failure("no agent has this name, or it has no such page"),
                502: failure("agent_unreachable, agent_refused, agent_failed: the agent did not return the page"),
            },
            (
                Parameter("name", "address and port, as listed by /api/v1/agents", place="path"),
                Parameter(
                    "page",
                    "agent: plan or audit; QoS Resource Manager: state or decisions",
                    {"type": "string", "enum": [page for pages in PAGES.values() for page in pages]},
                    place="path",
                ),
            ),
        )
        return [
            Route(PATH, "agents", self.listed, listed),
            Route(f"{PATH}/{{name}}/{{page}}", "agent_page", self.page, passed, access=Access.DETAIL),
        ]

    async def listed(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """List the discovered agents, their pages, and discovery failures."""
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
        """Return a page of an agent unchanged."""
        query_values(request.rel_url.raw_query_string, known=())
        name, page = captured
        try:
            body = await self._agents.page(name, page)
        except AgentError as error:
            raise ApiError(502, error.code, str(error), error.hint) from error
        except LookupError:
            raise await self._not_found_error(name, page) from None
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: JSON, hdrs.CACHE_CONTROL: "no-store"})

    async def _not_found_error(self, name: str, page: str) -> ApiError:
        known = await self._agents.known()
        names = {each.name: kind for kind, found in known.items() for each in found.places}
        pages = PAGES[names[name]] if name in names else ()
        if pages:
            return ApiError(
                404,
                "not_found",
                f"{truncated(name)} has no page {truncated(page)!r}",
                f"available pages: {', '.join(pages)}",
            )
        hint = f"{PATH} lists the current agents; a recreated pod has a different address"
        return ApiError(404, "not_found", f"agent {truncated(name)!r} not found", hint)
