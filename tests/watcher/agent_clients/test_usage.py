"""The usage of pods from node agents: small servers with the responses of agents, over real sockets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from tests.conftest import RunService
from tests.fakes.kube import FakeKube
from tests.fakes.service import Live
from tests.fakes.sources import MemorySource
from tests.waiting import wait_for
from tests.watcher.sources.metrics_server.test_provider import at
from watcher.agent_clients import usage
from watcher.agent_clients.client import AT_ONCE, AgentClient
from watcher.agent_clients.discovery import AgentDiscovery, NamedEndpoints, PodEndpoints
from watcher.agent_clients.settings import AgentsSettings
from watcher.agent_clients.usage import (
    BUDGET_S,
    AgentPods,
    AgentPodsResponse,
    AgentPodUsage,
    ProviderWithAgents,
    read_pods,
)
from watcher.core.pods.selector import PodSelection
from watcher.model import FindingKind
from watcher.platform.http.openapi import Operation
from watcher.platform.http.routing import Route
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.sources.base import NoPodUsage, PodFetch, fetch_pods
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderRefused, ProviderUnreachable
from watcher.sources.metrics_server.provider import MetricsServerProvider
from watcher.tick.shared import RefreshConfig
from watcher.tick.tick import Refresher

NOW = 1_700_000_000.0
WEB = AgentPodUsage("shop", "web", 1.5, 2.0**30)


def of(node: str, *pods: AgentPodUsage, time: float = NOW) -> bytes:
    return msgspec.json.encode(AgentPodsResponse(node, time, 10.0, pods))


@dataclass
class FakeAgent:
    """An agent with this body as its response; with `hangs` it never responds."""

    body: bytes = b""
    status: int = 200
    token: str = ""
    hangs: bool = False
    port: int = 0
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path} {request.headers.get('Host')}")
        if self.hangs:
            await asyncio.Event().wait()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="no token")
        return web.Response(status=self.status, body=self.body)

    async def listen(self, stack: AsyncExitStack) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]


def named(*urls: str) -> AgentDiscovery:
    """The configured addresses of these agents."""
    return AgentDiscovery(NamedEndpoints(urls, key="agents.urls"))


def client(discovery: AgentDiscovery, *, timeout: float = 20.0, **files: Any) -> AgentClient:
    return AgentClient(discovery, AgentsSettings(timeout=timeout, **files))


def ask(
    *agents: FakeAgent, more: tuple[str, ...] = (), budget: float = BUDGET_S, at_once: int = AT_ONCE, **options: Any
) -> PodFetch:
    """Return the usage that these agents report together."""

    async def run() -> PodFetch:
        async with AsyncExitStack() as stack:
            for agent in agents:
                await agent.listen(stack)
            urls = [f"http://127.0.0.1:{agent.port}" for agent in agents]
            asked = AgentPods(client(named(*urls, *more), **options), budget=budget, at_once=at_once)
            stack.push_async_callback(asked.close)
            return await asked.fetch(NOW)

    return asyncio.run(run())


def test_each_agent_reports_the_pods_of_its_node():
    agents = FakeAgent(of("n2", AgentPodUsage("shop", "db", 0.25, None))), FakeAgent(of("n1", WEB, time=NOW - 7))
    got = ask(*agents)
    assert (("shop", "web"), ("shop", "db")) == got.usage.pods
    assert ("n1", "n2") == got.usage.nodes
    np.testing.assert_equal([NOW - 7, NOW], got.usage.time)
    np.testing.assert_equal([1.5, 0.25], got.usage.cores)
    np.testing.assert_equal([2.0**30, np.nan], got.usage.memory)
    assert ("Agents", 10.0, "working_set", ()) == (
        got.origin.source,
        got.origin.span_s,
        got.origin.memory_kind,
        got.findings,
    )
    assert [[f"GET /pods 127.0.0.1:{agent.port}"] for agent in agents] == [agent.asked for agent in agents]


def test_the_order_of_responses_does_not_matter():
    one, two = (
        AgentPodsResponse("n1", NOW, 10.0, (WEB,)),
        AgentPodsResponse("n2", NOW, 5.0, (AgentPodUsage("a", "b", 1, 1),)),
    )
    first, second = read_pods([one, two], ()), read_pods([two, one], ())
    assert {one.node, two.node} == first.nodes
    assert (first.usage.pods, first.usage.nodes, first.origin) == (second.usage.pods, second.usage.nodes, second.origin)


def test_unavailable_agents_have_one_finding_and_only_their_pods_are_missing():
    well, odd, away = FakeAgent(of("n1", WEB)), FakeAgent(b"<html>"), FakeAgent(status=503)
    got = ask(well, odd, away, more=("http://127.0.0.1:9", "http://no-such-name.invalid:1"))
    assert (("shop", "web"),) == got.usage.pods
    (finding,) = got.findings
    assert (FindingKind.QUERY_FAILED, "pods") == (finding.kind, finding.metric)
    assert "no pod usage from 3 of 4 node agents" in finding.reason
    assert "127.0.0.1:9" in finding.reason
    assert "no-such-name.invalid:1: the name has no address. Set agents.urls to the name" in finding.reason


def test_an_agent_that_hangs_delays_the_others_by_its_timeout_only():
    got = wait_for(
        lambda: ask(FakeAgent(hangs=True), FakeAgent(of("n1", WEB)), timeout=0.5, budget=200.0),
        what="the other one, which on a busy machine may be late too",
        ignoring=(ProviderUnreachable,),
    )
    assert (("shop", "web"),) == got.usage.pods
    assert "no response in time" in got.findings[0].reason


def test_all_agents_together_have_a_time_limit():
    """Responses until then count; agents that were not requested in time are reported like unavailable ones."""
    got = ask(FakeAgent(of("n1", WEB)), *(FakeAgent(hangs=True) for _ in range(3)), budget=5.0, at_once=2)
    assert (("shop", "web"),) == got.usage.pods
    assert "3 of 4 node agents" in got.findings[0].reason


@pytest.mark.parametrize(
    ("agent", "kind", "said"),
    [
        (FakeAgent(token="secret"), ProviderRefused, "status 401"),
        (FakeAgent(b'{"node": 1}'), ProviderMalformed, "not the response of an agent"),
        (FakeAgent(b"x" * (usage.LARGEST + 1)), ProviderMalformed, "larger than 1 MiB"),
        (FakeAgent(status=404), ProviderUnreachable, "status 404"),
        (FakeAgent(status=302), ProviderUnreachable, "status 302"),
        (FakeAgent(of("n1")), NoPodUsage, "contain no pods"),
    ],
)
def test_if_no_agent_reports_pods_the_reason_is_one_of_their_errors(agent: FakeAgent, kind: type, said: str):
    with pytest.raises(ProviderError) as caught:
        ask(agent)
    assert kind is type(caught.value)
    assert said in str(caught.value)
    assert caught.value.hint


def test_the_token_is_read_again_and_not_shown(tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    got = ask(FakeAgent(of("n1", WEB), token="secret"), token_file=token)
    assert 1 == len(got.usage.pods)
    token.write_text("another\n")
    with pytest.raises(ProviderRefused) as caught:
        ask(FakeAgent(of("n1", WEB), token="secret"), token_file=token)
    assert "another" not in str(caught.value) + caught.value.hint
    assert "agents.token_file" in caught.value.hint
    token.unlink()
    with pytest.raises(ProviderRefused, match=r"agents\.token_file"):
        ask(FakeAgent(of("n1", WEB)), token_file=token)


@pytest.mark.parametrize("name", ["http://no-such-name.invalid:2023", f"http://{'x' * 70}:2023"])
async def test_a_name_without_addresses_is_reported(name: str):
    async with AsyncExitStack() as stack:
        asked = AgentPods(client(named(name), timeout=1))
        stack.push_async_callback(asked.close)
        with pytest.raises(ProviderUnreachable, match=r"no-such-name|xxx.*: the name has no address"):
            await asked.fetch(NOW)


async def test_nodes_come_from_the_source_and_pods_from_the_agents():
    """For a source without pods and for one with pods."""

    async def run(fetching: Callable[[ProviderWithAgents], Coroutine[Any, Any, None]]) -> None:
        async with AsyncExitStack() as stack:
            agent = FakeAgent(of("n1", WEB))
            await agent.listen(stack)
            source = MemorySource()
            source.put("n1", [NOW - 15, NOW], lambda time: 50.0)
            asked = AgentPods(client(named(f"http://127.0.0.1:{agent.port}")))
            together = ProviderWithAgents(source, asked)
            await together.start()
            stack.push_async_callback(together.close)
            assert (source.source, source.remembers) == (together.source, together.remembers)
            await fetching(together)

    async def fetching(together: ProviderWithAgents) -> None:
        nodes = await together.fetch(NOW - 60, NOW)
        assert ("n1",) == tuple(nodes.batches[0].nodes)
        assert (("shop", "web"),) == (await fetch_pods(together, NOW)).usage.pods

    await run(fetching)


async def test_data_of_the_source_about_nodes_is_kept_beside_the_agents():
    """Capacities, labels, silent nodes: they do not depend on the agents."""

    async def run(kube: FakeKube) -> None:
        source = MetricsServerProvider(
            lambda: KubeAccess(kube.url, "a test", token=kube.token), resolution=1.0, max_seconds=900.0
        )
        together = ProviderWithAgents(source, AgentPods(client(named(), timeout=1)))
        refresher = Refresher(provider=together, config=RefreshConfig())
        try:
            await together.start()
            await refresher.tick()
            assert {"a", "b", "unscraped"} == (await refresher.capacities()).keys()
            assert (metadata := refresher.node_metadata("a")) is not None
            assert "a" == metadata.name
            assert ("unscraped",) == refresher.never_seen
        finally:
            await refresher.close()
            await together.close()

    with FakeKube() as kube:
        for name in ("a", "b", "unscraped"):
            kube.node(name)
        for name in ("a", "b"):
            kube.usage(name, time=at(time.time() - 5), cpu="1")
        await run(kube)


async def test_agents_that_are_not_found_are_reported_with_the_usage_of_the_others():
    """By label: one that is ready, and one that is not yet; then none, because a right is missing."""

    async def run(kube: FakeKube, port: int) -> PodFetch:
        selection = PodSelection("app=agent", port, "agents")
        api = KubeClient(lambda: KubeAccess(kube.url, "a test", token=kube.token))
        asked = AgentPods(client(AgentDiscovery(PodEndpoints(selection, api, key="agents.pods"))))
        try:
            return await asked.fetch(NOW)
        finally:
            await asked.close()

    async def reported(kube: FakeKube) -> PodFetch:
        async with AsyncExitStack() as stack:
            agent = FakeAgent(of("n1", WEB))
            await agent.listen(stack)
            return await run(kube, agent.port)

    with FakeKube() as kube:
        for name, ready in ("a", "True"), ("b", "False"):
            status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": ready}]}
            kube.pod(f"agents/{name}", node=f"n-{name}", status=status, metadata={"labels": {"app": "agent"}})
        got = await reported(kube)
        assert (("shop", "web"),) == got.usage.pods
        assert "1 of 2 are unavailable: b on n-b is not ready" in got.findings[0].reason
        kube.forbidden = {("list", "v1/pods")}
        with pytest.raises(ProviderRefused, match="no node agents found; pods with app=agent in agents: ") as caught:
            await reported(kube)
    assert "in the namespace agents" in caught.value.hint


@pytest.mark.slow
def test_the_service_serves_the_usage_that_agents_report(tmp_path: Path, run_service: RunService):
    """From settings to responses, beside a source without pods: agents by name and by label, the latter with pages in
    the dashboard."""

    async def reported(_request: web.Request, _captured: Sequence[str]) -> web.Response:
        return web.Response(body=of("n1", WEB, time=time.time()))

    with Live(routes=[Route("/pods", "pods", reported, Operation("pods", {}))]) as agent, FakeKube() as kube:
        status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        kube.pod("agents/a", node="n1", status=status, metadata={"labels": {"app": "agent"}})
        selection = f'{{ selector = "app=agent", namespace = "agents", port = {agent.port} }}'
        config = (
            f'[agents]\nurls = ["http://127.0.0.1:{agent.port}"]\npods = {selection}\n[refresh]\npods = "on"\n'
            f'[kubernetes]\nkubeconfig = "kubeconfig"\nnode_names = "off"\n'
        )
        directory = tmp_path / "service"
        directory.mkdir()
        kube.kubeconfig(directory / "kubeconfig")
        service = run_service(config=config, directory=directory)
        document = service.wait_for_status(200, "/api/v1/pods", timeout=90.0).json()
        entry = {"name": f"127.0.0.1:{agent.port}", "kind": "agent", "node": "n1", "pages": ["plan", "audit"]}
        shown = {"agents": [entry], "troubles": []}
        wait_for(lambda: shown == service.get("/api/v1/agents").json(), what="the agent in the dashboard")
        assert {"v1/pods"} == {each.resource for each in kube.asked}
    assert (["shop"], ["web"], ["n1"]) == (document["namespace"], document["pod"], document["node"])
    assert ([1.5], [2**30], "working_set") == (document["cores"], document["bytes"], document["bytes_kind"])
