"""Pods that the agent does not evict, and what /explain says about them."""

from pathlib import Path
from typing import Any

from agent.qos import QosClass
from agent.service.loop import Agent
from tests.agent.executor.node import CONTROL, FakeNode, with_api
from tests.agent.executor.test_refused_evictions import give_two_budgets, posts, recent
from tests.agent.service.test_loop import World, evicting
from tests.fakes.kube import CONFIG_MAPS, PODS, FakeKube


def candidates(agent: Agent) -> dict[str, str]:
    """The reason why each pod was selected or not, by its name."""
    stages = agent.explanation()["plan"]["stages"]
    return {each["pod"]: each["why"] for stage in stages for each in stage["candidates"]}


def results(agent: Agent) -> list[tuple[str, str]]:
    return [(each["step"]["pod"], each["fate"]) for each in agent.explanation()["results"] if "pod" in each["step"]]


def world(directory: Path, server: FakeKube, *pods: dict[str, Any]) -> tuple[World, FakeNode]:
    """A node with pods p0, p1, … of decreasing usage, and policies that evict."""
    node = with_api(directory / "node", server)
    for number, values in enumerate(pods):
        node.add(number, qos=QosClass.BEST_EFFORT, cpu=3.0 - number, **values)
    found = World(node, directory / "policies")
    evicting(found)
    return found, node


def test_a_refused_pod_is_explained_with_the_time_of_the_next_attempt(tmp_path: Path):
    """In the cycles of five minutes: two requests for the refused pod, and one for the next pod."""
    with FakeKube() as server:
        story, node = world(tmp_path, server, {}, {})
        give_two_budgets(server, node, 0)

        async def test(agent: Agent) -> None:
            await story.cycle(agent, 4500.0)
            assert [("shop/p0", "failed"), ("shop/p1", "done")] == results(agent)
            del node.pods[1]
            for _ in range(29):
                await story.cycle(agent, 4500.0)
                assert [] == results(agent)
                reason = candidates(agent)["shop/p0"]
                assert "more than one PodDisruptionBudget" in reason
                assert reason.endswith("; next attempt at 2023-11-14T22:18:20Z")
            assert ["shop/p0", "shop/p1"] == posts(server)
            await story.cycle(agent, 4500.0)
            assert ["shop/p0", "shop/p1", "shop/p0"] == posts(server)

        story.run(test)
        assert [] == recent(server)
        node.close()


def test_cycles_without_an_eviction_do_not_write_the_budget(tmp_path: Path):
    with FakeKube() as server:
        story, node = world(tmp_path, server, {})
        give_two_budgets(server, node, 0)

        async def test(agent: Agent) -> None:
            for _ in range(20):
                await story.cycle(agent, 4500.0)

        story.run(test)
        writes = [each for each in server.asked if each.resource == CONFIG_MAPS and each.verb == "patch"]
        assert ["spent", "returned"] == [
            "spent" if each.body["data"]["recent-evictions"] else "returned" for each in writes
        ]
        assert CONTROL == writes[0].key
        node.close()


def test_a_pod_without_a_controller_is_explained_and_the_next_one_is_evicted(tmp_path: Path):
    with FakeKube() as server:
        story, node = world(tmp_path, server, {"managed": False}, {})

        async def test(agent: Agent) -> None:
            await story.cycle(agent, 4500.0)
            assert [("shop/p1", "done")] == results(agent)
            assert "it has no controller, so nothing would recreate it" == candidates(agent)["shop/p0"]

        story.run(test)
        assert "deletionTimestamp" not in server.content(PODS, "shop/p0")["metadata"]
        node.close()
