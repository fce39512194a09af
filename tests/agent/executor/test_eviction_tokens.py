"""Tokens of the cluster's eviction budget: spent, returned and expired, whatever comes in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from agent.executor.enforcement_switch import (
    KEPT_S,
    WINDOW_S,
    ControlData,
    ControlMap,
    EvictionToken,
    fresh,
    next_token,
    read_control,
    refusal,
    without,
)
from tests.agent.executor.node import CONTROL, NOW
from tests.fakes.kube import CONFIG_MAPS, Asked, FakeKube
from tests.fakes.kube_rules import status_object
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

Outcome = TypeVar("Outcome")
NODES = ("a", "b", "c")


@pytest.fixture
def server() -> Iterator[FakeKube]:
    with FakeKube() as server:
        for node in NODES:
            server.node(node)
        server.put(CONFIG_MAPS, CONTROL, data={"evictions-per-minute": "2", "nodes-at-once": "100%"})
        yield server


def using(server: FakeKube, act: Callable[[ControlMap], Awaitable[Outcome]]) -> Outcome:
    async def inside() -> Outcome:
        client = KubeClient(lambda: KubeAccess(server.url, "a test", token=server.token))
        try:
            return await act(ControlMap(client, CONTROL, node="a", patience=30.0))
        finally:
            await client.close()

    return asyncio.run(inside())


def lines(server: FakeKube) -> list[str]:
    return server.content(CONFIG_MAPS, CONTROL)["data"].get("recent-evictions", "").splitlines()


def put_lines(server: FakeKube, *given: str) -> None:
    """Write lines as another node does."""
    text = "".join(f"{line}\n" for line in given)
    data = {"evictions-per-minute": "2", "nodes-at-once": "100%", "recent-evictions": text}
    server.put(CONFIG_MAPS, CONTROL, data=data)


async def spend(controls: ControlMap, now: float = NOW) -> EvictionToken:
    token = await controls.spend_token(now=now)
    assert isinstance(token, EvictionToken), token
    return token


def test_two_tokens_of_one_moment_are_two(server: FakeKube):
    async def act(controls: ControlMap) -> None:
        first, second = await spend(controls), await spend(controls)
        assert first != second
        assert isinstance(await controls.spend_token(now=NOW), str)
        assert await controls.return_token(second)
        assert ["1700000000.000000 a"] == lines(server)
        assert await controls.return_token(second)  # it is removed already: no other line is removed instead
        assert ["1700000000.000000 a"] == lines(server)

    using(server, act)


@pytest.mark.parametrize("ahead", [-7200.0, -90.0, 90.0, 7200.0])
def test_a_node_with_a_wrong_clock_keeps_and_counts_the_tokens_of_others(server: FakeKube, ahead: float):
    """It treated them as expired, or as lines of a node with a wrong clock, and removed them."""
    server.clock_s = -ahead
    right = NOW - ahead
    put_lines(server, f"{right - 10:.6f} b")

    async def act(controls: ControlMap) -> None:
        token = await spend(controls, NOW)
        assert abs(token.time - right) < 3.0  # the header has whole seconds
        assert "the cluster had 2 evictions" in str(await controls.spend_token(now=NOW))
        assert ["b", "a"] == [line.partition(" ")[2] for line in lines(server)]
        assert await controls.return_token(token)
        assert ["b"] == [line.partition(" ")[2] for line in lines(server)]

    using(server, act)


@pytest.mark.parametrize("ahead", [5.0, 25.0, 60.0, 600.0, 3_600.0, 86_400.0])
def test_a_token_from_a_clock_that_is_ahead_is_ignored_and_logged_once(server: FakeKube, ahead: float, caplog) -> None:
    """Lines count that are ahead by at most the difference of the clocks of two API servers."""

    async def act(controls: ControlMap) -> None:
        for _ in range(2):
            put_lines(server, f"{NOW + ahead:.6f} b", f"{NOW + ahead:.6f} b")
            answer = await controls.spend_token(now=NOW)
            assert isinstance(answer, str) is (ahead <= 30.0)

    using(server, act)
    said = [each for each in caplog.messages if "ignoring an eviction of node b" in each]
    assert len(said) == (ahead > 30.0)


def test_a_return_keeps_a_concurrent_write_of_another_node(server: FakeKube):
    """The other node's line is written between the read and the write of the return, and stays."""

    async def act(controls: ControlMap) -> None:
        token = await spend(controls)
        raced: list[bool] = []

        def race(request: Asked) -> None:
            if (request.verb, request.resource) == ("patch", CONFIG_MAPS) and not raced:
                raced.append(True)
                put_lines(server, "1700000000.000000 a", "1700000000.000000 b")

        server.fault = race
        assert await controls.return_token(token)
        assert raced
        assert ["1700000000.000000 b"] == lines(server)

    using(server, act)


def test_a_return_without_a_response_is_not_repeated(server: FakeKube):
    """It may have been done, and the same line could then be a later token."""

    async def act(controls: ControlMap) -> None:
        token = await spend(controls)

        def fail(request: Asked) -> web.Response | None:
            writes = (request.verb, request.resource) == ("patch", CONFIG_MAPS)
            return web.json_response(status_object(503, "busy"), status=503) if writes else None

        server.fault = fail
        asked = len(server.asked)
        assert not await controls.return_token(token)
        assert ["get", "patch"] == [each.verb for each in server.asked[asked:]]

    using(server, act)


def test_a_token_of_an_agent_that_was_killed_expires(server: FakeKube):
    """kill -9 between the token and its return leaves the line."""

    async def act(controls: ControlMap) -> None:
        await spend(controls)
        await spend(controls)
        assert "evictions-per-minute is 2" in str(await controls.spend_token(now=NOW + 59.0))
        await spend(controls, NOW + WINDOW_S + 1.0)
        assert 3 == len(lines(server))
        await spend(controls, NOW + KEPT_S + 1.0)

    using(server, act)
    assert ["1700000061.000000 a", "1700000121.000000 a"] == lines(server)


def test_lines_of_an_earlier_version_have_whole_seconds(server: FakeKube):
    put_lines(server, "1700000000 b")

    async def act(controls: ControlMap) -> None:
        token = await spend(controls)
        assert {"1700000000.000000 b", "1700000000.000000 a"} == set(lines(server))
        assert await controls.return_token(token)

    using(server, act)
    assert ["1700000000.000000 b"] == lines(server)


# --- the arithmetic --------------------------------------------------------------------------------------------------

TIMES = st.floats(NOW, NOW + 1e6, allow_nan=False).map(lambda time: round(time, 6))
TOKENS = st.lists(st.builds(EvictionToken, TIMES, st.sampled_from(NODES)), max_size=20).map(tuple)


@given(TOKENS)
def test_tokens_survive_the_config_map(tokens: tuple[EvictionToken, ...]):
    text = "".join(f"{each.time:.6f} {each.node}\n" for each in tokens)
    assert tokens == read_control({"recent-evictions": text}).recent


@given(TOKENS, TIMES, st.sampled_from(NODES))
def test_a_new_token_is_unique_and_its_return_changes_no_other_line(
    tokens: tuple[EvictionToken, ...], now: float, node: str
):
    token = next_token(tokens, node=node, now=now)
    assert token not in tokens
    assert 0.0 <= token.time - now < 1e-3
    assert tokens == without((*tokens, token), token)
    assert tokens == without(tokens, token)


STORIES = st.lists(
    st.tuples(
        st.integers(0, 40),  # seconds since the event before
        st.sampled_from(NODES),
        st.sampled_from(["evicted", "refused", "killed"]),
    ),
    max_size=40,
)


@given(STORIES, st.integers(0, 4), st.integers(0, 3), st.data())
def test_the_budget_is_kept_and_refused_evictions_leave_no_token(
    story: list[tuple[int, str, str]], per_minute: int, at_once: int, data: Any
):
    """Tokens of refused evictions are returned later, in any order. At every moment the evictions of a minute are
    within the budget, and the lines are exactly the tokens that are out."""
    now, recent = NOW, tuple[EvictionToken, ...]()
    evicted: list[EvictionToken] = []
    lost: list[EvictionToken] = []
    returning: list[EvictionToken] = []
    for seconds, node, end in story:
        now += seconds
        while returning and data.draw(st.booleans()):
            token = returning.pop(data.draw(st.integers(0, len(returning) - 1)))
            recent = without(recent, token)
        control = ControlData(per_minute=per_minute, nodes_at_once=float(at_once), recent=recent)
        if refusal(control, node=node, nodes=len(NODES), now=now):
            continue
        recent = fresh(recent, now)
        token = next_token(recent, node=node, now=now)
        recent = (*recent, token)
        {"evicted": evicted, "refused": returning, "killed": lost}[end].append(token)
        of_minute = [each for each in evicted if now - WINDOW_S < each.time]
        assert len(of_minute) <= per_minute
        assert len({each.node for each in of_minute}) <= max(1, at_once)
        assert set(recent) == set(fresh((*evicted, *lost, *returning), now))
    for token in returning:
        recent = without(recent, token)
    assert set(fresh(recent, now)) == set(fresh((*evicted, *lost), now))
    later = ControlData(per_minute=1, nodes_at_once=1.0, recent=recent)
    assert not refusal(later, node="a", nodes=3, now=now + WINDOW_S + 1.0)
