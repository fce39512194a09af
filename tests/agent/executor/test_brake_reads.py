"""How often an enforcing agent reads the brake, and how soon the brake takes effect."""

import pytest
from aiohttp import web

from agent.decision.plan import Plan
from agent.executor.executor import Executor
from agent.executor.report import EnforcementLevel, PlanReport
from agent.model import SchedulingChange, Step
from tests.agent.executor.node import CONTROL, NOW, FakeNode, always, throttle
from tests.fakes.kube import CONFIG_MAPS, FakeKube
from tests.fakes.kube_rules import status_object

KEEP_AWAY = Step("scheduling", SchedulingChange(disable=True), reason="cpu is short")
ALLOWED = {"evictions-per-minute": "100", "nodes-at-once": "100%"}
INTERVAL_S = 10.0
NODE_READS_PER_S = 1 / 60
"""agent.state.own_node"""


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    node.add(0, 1)
    return node


async def at(executor: Executor, node: FakeNode, seconds: float, *steps: Step) -> PlanReport:
    """The report of a plan of these steps at this time."""
    node.now = NOW + seconds
    return await executor.run(Plan(node.now, steps), state=node.state(), cycle=1, needed=always)


def reads(server: FakeKube) -> int:
    return sum((each.verb, each.resource) == ("get", CONFIG_MAPS) for each in server.asked)


def pull(server: FakeKube, word: str) -> None:
    server.put(CONFIG_MAPS, CONTROL, data={**ALLOWED, "enforcement": word})


@pytest.mark.parametrize("interval", [1.0, 5.0, INTERVAL_S])
def test_a_node_with_changes_sends_less_than_a_request_in_ten_seconds(
    node: FakeNode, server: FakeKube, interval: float
):
    """Its rule is triggered, so each plan demands the taint again."""

    async def act(executor: Executor) -> float:
        await at(executor, node, 0.0, KEEP_AWAY, throttle(0))
        before, cycles = len(server.asked), round(900.0 / interval)
        for number in range(1, cycles + 1):
            await at(executor, node, number * interval, KEEP_AWAY)
        assert reads(server)
        return (len(server.asked) - before) / 900.0

    assert node.acting(act) + NODE_READS_PER_S < 0.1


def test_restore_takes_effect_within_25_seconds_on_a_node_with_changes(node: FakeNode, server: FakeKube):
    async def act(executor: Executor) -> None:
        await at(executor, node, 0.0, throttle(0))
        pull(server, "restore")
        assert EnforcementLevel.ENFORCE is (await at(executor, node, 10.0)).level
        assert "50000 100000" == node.quota(0)
        assert EnforcementLevel.RESTORE_ALL is (await at(executor, node, 20.0)).level
        assert "max 100000" == node.quota(0)

    node.acting(act)


@pytest.mark.parametrize(("word", "held"), [("off", "50000 100000"), ("restore", "max 100000")])
def test_a_new_step_needs_a_new_read_of_the_brake(node: FakeNode, server: FakeKube, word: str, held: str):
    async def act(executor: Executor) -> None:
        await at(executor, node, 0.0, throttle(0))
        pull(server, word)
        await at(executor, node, 1.0, throttle(1))
        assert (held, "max 100000") == (node.quota(0), node.quota(1))

    node.acting(act)


def test_an_unavailable_api_is_read_again_in_the_next_cycle(node: FakeNode, server: FakeKube):
    async def act(executor: Executor) -> None:
        await at(executor, node, 0.0, throttle(0))
        server.fault = lambda _: web.json_response(status_object(503, "busy"), status=503)
        assert EnforcementLevel.THROTTLE_ONLY is (await at(executor, node, 20.0)).level
        server.fault = lambda _: None
        assert EnforcementLevel.ENFORCE is (await at(executor, node, 21.0)).level

    node.acting(act)
