"""Plug-ins that fail, respond for other plug-ins, or send invalid names: one message each, without other effects."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from agent.qrm.grpc.plugin_api import PAUSED, PluginCallError
from agent.qrm.manager.allocation import AllocationInfo
from agent.qrm.manager.request import ResourceRequest
from agent.qrm.manager.topology import Hint
from tests.agent.qrm.manager.test_manager import Fake, World, pod

STATUS = {"died": "UNAVAILABLE", "hangs": "DEADLINE_EXCEEDED", "paused": PAUSED, "refuses": "UNKNOWN"}


@dataclass
class Failing(Fake):
    """A plug-in that fails in one way in every method, if `fault` is set."""

    fault: str = ""

    def _check(self, method: str) -> None:
        if self.fault:
            raise PluginCallError(self.resource, method, STATUS[self.fault], "as this test wants")


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def rounds(world: World, *pods: Any, times: int = 20) -> None:
    """The calls of the manager's rounds, with the capacity for the node and queries of pod resources."""
    for _ in range(times):
        world.now += 3.0
        await world.manager.reconcile(pods, world.apply)
        await world.manager.plugins.capacity()
        await world.manager.topology_aware(pod(), "c")


@pytest.mark.parametrize(("fault", "live", "warnings"), [("died", False, 1), ("hangs", False, 4), ("refuses", True, 4)])
async def test_a_failure_in_every_round_is_logged_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture, fault: str, live: bool, warnings: int
):
    plugin = Failing()
    world = await World().with_(plugin)
    assert (await world.manager.admit(pod())).admitted
    caplog.set_level(logging.INFO)
    plugin.fault = fault
    await rounds(world)
    assert {"cpu": live} == world.manager.plugins.states
    reported = lines(caplog, logging.WARNING)
    # A plug-in that has died is one fault; otherwise, each method may fail for its own reason.
    assert len(reported) <= warnings
    assert "the plug-in for cpu failed in" in reported[0]
    assert len(set(reported)) == len(reported)
    plugin.fault = "paused"  # logs nothing by itself
    await rounds(world)
    assert lines(caplog, logging.WARNING) == reported
    plugin.fault = ""
    await rounds(world, pod())
    assert {"cpu": True} == world.manager.plugins.states
    assert lines(caplog, logging.WARNING) == reported
    assert 1 <= len(lines(caplog, logging.INFO)) <= warnings
    plugin.fault = fault  # fails again, so it is logged again
    await rounds(world)
    assert len(lines(caplog, logging.WARNING)) > len(reported)


async def test_hints_with_unknown_numa_nodes_are_reported_once(caplog: pytest.LogCaptureFixture):
    strange, real = Hint(frozenset({7}), preferred=True), Hint(frozenset({1}), preferred=True)
    world = await World().with_(fake := Fake(offers=(strange, real)))
    for number in range(5):
        assert (await world.manager.admit(pod(f"p{number}"))).admitted
    (reported,) = lines(caplog, logging.WARNING)
    assert reported.endswith("it names NUMA nodes that this machine does not have; these hints are ignored")
    fake.offers = (real,)
    assert (await world.manager.admit(pod("good"))).admitted
    fake.offers = (strange, real)
    assert (await world.manager.admit(pod("again"))).admitted
    assert len(lines(caplog, logging.WARNING)) == 2


async def test_a_plugin_that_registers_again_after_it_died_is_live(caplog: pytest.LogCaptureFixture):
    world = await World().with_(Failing(fault="died"))
    await rounds(world, times=1)
    assert {"cpu": False} == world.manager.plugins.states
    await world.with_(Failing())
    assert {"cpu": True} == world.manager.plugins.states


@dataclass
class Thief(Fake):
    """A plug-in that also responds for cpu."""

    resource: str = "evil.io/stealcpu"
    prop: str = ""

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
        given = dict(await super().allocate(request) or {})
        given["cpu"] = AllocationInfo("CpusetCpus", False, True, 32.0, "0-31")
        given["evil.io/extra"] = AllocationInfo("", False, True, 1.0, "")
        self.has[request.pod_uid][request.container_name] = given
        return given


@pytest.mark.parametrize("cpu_first", [True, False])
async def test_a_plugin_cannot_overrule_another_plugin(caplog: pytest.LogCaptureFixture, cpu_first: bool):
    """A resource that no plug-in serves may be allocated by a plug-in of another resource, as the protocol allows."""
    plugins = [Fake(), Thief()]
    world = await World().with_(*(plugins if cpu_first else reversed(plugins)))
    both = pod(requests={"cpu": 2.0, "evil.io/stealcpu": 2.0})
    stealing = pod("q", requests={"evil.io/stealcpu": 2.0})
    assert (await world.manager.admit(both)).admitted
    assert (await world.manager.admit(stealing)).admitted
    for _ in range(5):
        assert {"cpu": 2.0, "evil.io/stealcpu": 2.0, "evil.io/extra": 1.0} == world.stored()
        assert {"evil.io/stealcpu": 2.0, "evil.io/extra": 1.0} == world.stored("q")
        await world.manager.reconcile([both, stealing], world.apply)
    assert ("p/c", {"CpusetCpus": "0-1"}) in world.set
    assert not [properties for name, properties in world.set if name == "q/c"]
    (reported,) = lines(caplog, logging.WARNING)
    assert "ignoring the answers of the plug-in for evil.io/stealcpu about cpu" in reported
