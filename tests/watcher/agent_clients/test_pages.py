"""Pages of the configured agents through the service: read only, and no other pages."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.service import Answer, Live, Protection
from watcher.agent_clients.client import AgentClient
from watcher.agent_clients.discovery import AgentDiscovery, EndpointSource, NamedEndpoints
from watcher.agent_clients.pages import AgentProxy, EndpointKind
from watcher.agent_clients.settings import AgentsSettings
from watcher.api.agents import AgentRoutes
from watcher.platform.http import openapi
from watcher.platform.http.openapi import Operation
from watcher.platform.http.routing import Access, ApiError, Handler, Route

pytestmark = pytest.mark.slow

TOKEN = "s3cr3t-of-the-agents"
PLAN = {"node": "node-1", "sentences": ["nothing to do"]}


def route(path: str, handler: Handler) -> Route:
    answers = {200: openapi.ResponseSpec("whatever", dict[str, Any])}
    return Route(path, path, handler, Operation("a page", answers), access=Access.DETAIL)


async def plan(request: web.Request, captured: Sequence[str]) -> web.Response:
    return web.json_response(PLAN)


async def audit(request: web.Request, captured: Sequence[str]) -> web.Response:
    return web.json_response({"deeds": [], "asked": dict(request.query)})


def answering(body: object) -> Handler:
    async def handle(request: web.Request, captured: Sequence[str]) -> web.Response:
        return web.json_response(body)

    return handle


def raising(error: ApiError) -> Handler:
    async def handle(request: web.Request, captured: Sequence[str]) -> web.Response:
        raise error

    return handle


async def elsewhere(request: web.Request, captured: Sequence[str]) -> web.Response:
    return web.Response(status=302, headers={"Location": "/audit"})


async def nonsense(request: web.Request, captured: Sequence[str]) -> web.Response:
    return web.Response(text="<html>NaN")


@contextmanager
def an_agent(handler: Handler = plan, *, token: str | None = None) -> Iterator[Live]:
    """An agent whose plan comes from `handler`."""
    with Live(routes=[route("/explain", handler), route("/audit", audit)], protection=Protection(token)) as live:
        yield live


@contextmanager
def a_dashboard(
    *agents: int, qrms: Sequence[int] = (), token_file: Path | None = None, protection: Protection | None = None
) -> Iterator[Live]:
    """A service that shows the agents at these ports."""
    named = {
        EndpointKind.AGENT: NamedEndpoints([f"http://127.0.0.1:{port}" for port in agents], key="agents.urls"),
        EndpointKind.QRM: NamedEndpoints([f"http://127.0.0.1:{port}" for port in qrms], key="qrms.urls"),
    }
    with showing(named, token_file=token_file, protection=protection) as live:
        yield live


@contextmanager
def showing(
    sources: Mapping[EndpointKind, EndpointSource],
    *,
    token_file: Path | None = None,
    protection: Protection | None = None,
) -> Iterator[Live]:
    """A service that shows the agents of these sources."""
    settings = AgentsSettings(token_file=token_file)
    pages = AgentProxy({kind: AgentClient(AgentDiscovery(source), settings) for kind, source in sources.items()})
    with Live(routes=AgentRoutes(pages).routes(), lives=[pages.life], protection=protection) as live:
        yield live


def page(live: Live, port: int, name: str = "plan", **more: Any) -> Answer:
    return live.ask(f"/api/v1/agents/127.0.0.1:{port}/{name}", **more)


def test_configured_agents_are_listed_with_their_pages() -> None:
    """By kind, then by address; the overview states that there are some."""
    with a_dashboard(2021, qrms=[2022]) as live:
        assert {
            "agents": [
                {"name": "127.0.0.1:2021", "kind": "agent", "node": None, "pages": ["plan", "audit"]},
                {"name": "127.0.0.1:2022", "kind": "qrm", "node": None, "pages": ["state", "decisions"]},
            ],
            "troubles": [],
        } == live.ask("/api/v1/agents").json()
        assert live.ask("/api/v1/overview").json()["agents"]


def test_a_page_is_passed_on_unchanged() -> None:
    """Of the request, only the name of the page is passed on."""
    with an_agent() as agent, a_dashboard(agent.port) as live:
        answer = page(live, agent.port)
        assert (200, PLAN, "no-store") == (answer.status, answer.json(), answer.headers["Cache-Control"])
        assert {"deeds": [], "asked": {"limit": "100"}} == page(live, agent.port, "audit").json()
        assert 400 == page(live, agent.port, "audit?limit=1").status


@pytest.mark.parametrize(
    "path", ["plan/..%2Fmetrics", "metrics", "healthz", "%2Fexplain", "state", "plan%3Flimit=1", "..%2Fplan", ""]
)
def test_other_pages_are_not_found(path: str) -> None:
    """Neither by name nor by an encoded path."""
    with an_agent() as agent, a_dashboard(agent.port) as live:
        assert (404, "not_found") == ((found := page(live, agent.port, path)).status, found.error["code"])


@pytest.mark.parametrize(
    "name", ["localhost:{}", "127.0.0.1", "127.0.0.2:{}", "[::1]:{}", "a@127.0.0.1:{}", "127.0.0.1:22"]
)
def test_other_addresses_are_not_found(name: str) -> None:
    """Only configured addresses, exactly as listed."""
    with an_agent() as agent, a_dashboard(agent.port) as live:
        assert 404 == live.ask(f"/api/v1/agents/{name.format(agent.port)}/plan").status


def test_other_methods_than_get_are_refused() -> None:
    with an_agent() as agent, a_dashboard(agent.port) as live:
        assert [405] * 3 == [page(live, agent.port, method=method).status for method in ("POST", "PUT", "DELETE")]


def test_the_token_is_sent_and_not_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is read for each request; the agent refuses a wrong one, and the error does not contain it."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with an_agent(token=TOKEN) as agent, a_dashboard(agent.port, token_file=file) as live:
        assert PLAN == page(live, agent.port).json()
        for text in ("another", f"{TOKEN}\nX: y"):
            file.write_text(text)
            refused = page(live, agent.port)
            assert (502, "agent_refused") == (refused.status, refused.error["code"])
            assert TOKEN.encode() not in refused.body
            assert "agents.token_file" in refused.error["hint"]
        file.unlink()
        assert (502, "agent_refused") == ((gone := page(live, agent.port)).status, gone.error["code"])
        assert "agents.token_file" in gone.error["hint"]
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        (elsewhere, "agent_failed"),
        (nonsense, "agent_failed"),
        (raising(ApiError(500, "internal", "broken")), "agent_failed"),
        (raising(ApiError(401, "unauthorized", "who?")), "agent_refused"),
    ],
)
def test_a_response_that_is_not_a_page_is_an_error(handler: Handler, code: str) -> None:
    """Redirects are not followed, and content that is not JSON is not served as JSON."""
    with an_agent(handler) as agent, a_dashboard(agent.port) as live:
        assert (502, code) == ((found := page(live, agent.port)).status, found.error["code"])


def test_an_unavailable_agent_is_reported() -> None:
    """With its address and a hint."""
    with a_dashboard(1) as live:
        answer = page(live, 1)
        assert (502, "agent_unreachable") == (answer.status, answer.error["code"])
        assert "no response from 127.0.0.1:1: " in answer.error["message"]
        assert "check that it runs" in answer.error["hint"]


def test_pages_need_the_token_of_the_service_if_it_is_set() -> None:
    """The pages contain pods, as explain does; the list does not."""
    with an_agent() as agent, a_dashboard(agent.port, protection=Protection("page-token")) as live:
        assert 200 == live.ask("/api/v1/agents").status
        assert 401 == page(live, agent.port).status
        assert 200 == page(live, agent.port, headers={"Authorization": "Bearer page-token"}).status


def test_a_name_without_an_address_has_no_agents() -> None:
    """A headless Service without pods is not an error of the service, and is reported."""
    named = {EndpointKind.AGENT: NamedEndpoints(["http://nobody.invalid:2021"], key="agents.urls")}
    with showing(named) as live:
        document = live.ask("/api/v1/agents").json()
    (trouble,) = document["troubles"]
    assert ([], "agent", "nobody.invalid:2021") == (document["agents"], trouble["kind"], trouble["of"])
    assert "the name has no address" == trouble["message"]
    assert "Set agents.urls to the name" in trouble["hint"]
