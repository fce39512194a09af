"""The agent's own Node object over a real socket: read at intervals, never watched."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.state.background_value import pause_s
from agent.state.own_node import REFRESH_S, RETRIES_S, OwnNode
from tests.fakes.kube import NODES, FakeKube
from tests.waiting import eventually
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess


def reading(server: FakeKube, inside: Callable[[OwnNode], Awaitable[None]], *, interval: float = 0.02) -> None:
    async def run() -> None:
        client = KubeClient(lambda: KubeAccess(server.url, "a test", token=server.token))
        node = OwnNode(client, "node-1", interval=interval)
        assert node.labels() is None
        await node.start()
        try:
            await inside(node)
        finally:
            await node.close()
            await client.close()

    asyncio.run(run())


def test_labels_and_extended_cpu_are_followed_without_a_watch_or_a_list():
    with FakeKube() as server:
        server.node(
            "node-1", metadata={"labels": {"pool": "batch"}}, status={"allocatable": {"gocrane.io/cpu": "2500m"}}
        )
        server.node("node-2", metadata={"labels": {"pool": "web"}})

        async def inside(node: OwnNode) -> None:
            await eventually(lambda: node.labels() is not None, what="the labels")
            assert {"pool": "batch"} == node.labels()
            assert 2.5 == node.extended_cpu()
            server.node("node-1", metadata={"labels": {"pool": "web"}})
            await eventually(lambda: node.labels() == {"pool": "web"}, what="the new label")
            assert node.extended_cpu() is None

        reading(server, inside)
        asked = {(each.verb, each.resource, each.key, each.parameters.get("resourceVersion")) for each in server.asked}
        assert {("get", NODES, "node-1", "0")} == asked


def test_one_request_at_the_start_and_no_second_one_soon():
    with FakeKube() as server:
        server.node("node-1")

        async def inside(node: OwnNode) -> None:
            await eventually(lambda: node.labels() is not None, what="the labels")
            await asyncio.sleep(0.3)  # time in which a request would be wrong

        reading(server, inside, interval=REFRESH_S)
        assert 1 == len(server.asked)


@pytest.mark.slow
def test_a_failing_api_changes_nothing_and_is_reported_once(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="agent.state")
    with FakeKube() as server:
        server.node("node-1", metadata={"labels": {"pool": "batch"}})

        async def inside(node: OwnNode) -> None:
            await eventually(lambda: node.labels() is not None, what="the labels")
            server.forbidden = {("get", NODES)}
            await eventually(lambda: caplog.messages, what="the message")
            assert {"pool": "batch"} == node.labels()
            assert caplog.messages[0].startswith("updates of the Node object node-1 stopped: ")
            assert "cannot get nodes (403 Forbidden)" in caplog.messages[0]
            server.forbidden = set()
            server.node("node-1", metadata={"labels": {"pool": "web"}})
            await eventually(lambda: node.labels() == {"pool": "web"}, what="the new label")
            assert "updates of the Node object node-1 resumed" == caplog.messages[-1]

        reading(server, inside)


def test_a_node_with_another_name_is_reported_with_a_hint(caplog: pytest.LogCaptureFixture):
    with FakeKube() as server:

        async def inside(node: OwnNode) -> None:
            await eventually(lambda: caplog.messages, what="the message")
            assert "Set agent.node, or the environment variable NODE_NAME" in caplog.messages[0]
            assert node.labels() is None

        reading(server, inside)


@given(st.integers(0, 50))
def test_an_agent_reads_again_within_a_minute_after_the_api_is_back(failed: int):
    """The longest pause with its jitter is below a minute, and it only grows while the failures last."""
    pause = pause_s(REFRESH_S, RETRIES_S, failed)
    assert REFRESH_S == pause if not failed else pause <= 30.0
    assert failed < 2 or pause >= pause_s(REFRESH_S, RETRIES_S, failed - 1)
    assert 7.0 == pause_s(7.0, (), failed)
