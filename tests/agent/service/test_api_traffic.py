"""The requests of an agent with the settings of deploy/agent to the Kubernetes API, which thousands of agents share."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.service.test_process import POD, UID, AgentProcess, Machine, cycle_of, throttled
from tests.fakes.kube import CONFIG_MAPS, FakeKube
from tests.fakes.kubelet import FakeKubelet
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

CYCLES = 10
CONTROL = "load-watcher-agent/agent-control"
CONTROLLER = {"kind": "ReplicaSet", "name": "web", "controller": True}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.running():
        yield machine


@pytest.fixture
def server() -> Iterator[FakeKube]:
    with FakeKube() as server:
        server.node("node-1")
        server.put(CONFIG_MAPS, CONTROL, data={"evictions-per-minute": "5", "nodes-at-once": "5%"})
        server.pod("shop/web", node="node-1", metadata={"uid": UID, "ownerReferences": [CONTROLLER]})
        yield server


def run(machine: Machine, server: FakeKube, *arguments: str, throttles: bool = False) -> int:
    """Run an agent for some cycles, from the first throttled one if it `throttles`; returns their number."""
    access = server.kubeconfig(machine.root / "kubeconfig")
    with FakeKubelet([POD]) as kubelet:
        settings = machine.settings(kubelet=kubelet.url, interval="0.2s")
        with AgentProcess(machine.root, *arguments, *settings, "--set", f"kubernetes.kubeconfig={access}") as process:
            if throttles:
                wait_for(lambda: throttled(machine), what="the pod to be throttled")
            first = cycle_of(process)
            wait_for(lambda: cycle_of(process) >= first + CYCLES, what="some cycles")
            assert kubelet.asked > CYCLES / 2
            last = cycle_of(process)
            assert 0 == process.stop()
    return last


def asked(server: FakeKube) -> Counter[tuple[str, str]]:
    return Counter((each.verb, each.resource) for each in server.asked)


def test_in_preview_one_request_per_minute_without_a_watch_or_a_list(machine: Machine, server: FakeKube):
    run(machine, server)
    assert {("get", "v1/nodes"): 1} == asked(server)
    assert {"0"} == {each.parameters["resourceVersion"] for each in server.asked}


def test_enforcing_agents_without_steps_send_no_more_requests(machine: Machine, server: FakeKube):
    """At the start they check once that the node has no taint and no condition of the agent."""
    machine.put()
    run(machine, server, "--enforce")
    assert {("get", "v1/nodes"): 2, ("get", CONFIG_MAPS): 1} == asked(server)


def test_the_brake_is_not_read_in_each_cycle_while_a_pod_is_throttled(machine: Machine, server: FakeKube):
    """It is read from the cache of the API server, and nothing is written."""
    run(machine, server, "--enforce", throttles=True)
    found = asked(server)
    assert not [each for each in found if each[0] in ("list", "watch")]
    assert 1 <= found["get", CONFIG_MAPS] < CYCLES
    assert {"0"} == {each.parameters.get("resourceVersion") for each in server.asked if each.resource == CONFIG_MAPS}
    assert 0 == found["patch", CONFIG_MAPS]
