"""Requests are computed in one way: the extender, a recorded trace with its simulation, the agent, and the QoS Resource
Manager count the same for each pod (tests/real/test_report_requests.py tests `report`)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.cluster.pod_source import QrmPodObject, qrm_pod
from agent.state.pod_facts import AgentPod, facts_of
from lab.record.builder import TraceBuilder
from lab.traces.records import PodRecord
from scorers.cluster.pages import ClusterHandler
from scorers.cluster.pods import pod_info
from scorers.extender.handlers import Extender
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.fakes.service import Live
from tests.pod_request_cases import CASES, PodCase
from tests.scorers.simulated_cluster import NOW, load, node, table
from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.pod_resources import combined
from watcher.core.pods.observed import ClusterSnapshot

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
NODE = node("a", {"cpu": "64", "memory": "64Gi", "pods": "110"})
PACKING = {"podDemand": "requests", "resources": ["cpu", "memory"]}


@each_case
def test_requests_in_explain_of_the_extender(case: PodCase) -> None:
    cluster = table([NODE], loads=load({"a": {("CPU", "AVG"): 1.0, ("Memory", "AVG"): 1.0}}))
    plugin = PluginSettings("TargetLoadPacking", 1, PACKING, ("score",))
    extender = Extender(cluster, {"p": ProfileRunner(ProfileSettings("p", (plugin,)), cluster)}, now=lambda: NOW)
    with (live := Live(routes=extender.routes())):
        body = json.dumps({"Pod": case.object()}).encode()
        reported = live.ask("/scheduler/p/explain", method="POST", body=body).json()
    requests = reported["pod"]["requests"]
    assert (requests.get("cpu", 0), requests.get("memory", 0)) == (case.milli, case.bytes)
    packing = next(each for each in reported["nodes"][0]["plugins"] if each["name"] == "TargetLoadPacking")
    assert packing["inputs"]["podDemand"] == {"cpu": case.milli, "memory": case.bytes}


@each_case
def test_requests_in_a_trace_for_the_simulation(case: PodCase) -> None:
    bound = msgspec.convert(case.object(nodeName="a"), Pod)
    cluster = table([NODE], [bound])
    handler = ClusterHandler(cluster, now=lambda: NOW, is_whole=lambda: True)
    with (live := Live(routes=handler.routes())):
        seen = msgspec.json.decode(live.ask("/scheduler/cluster").body, type=ClusterSnapshot)
    (found,) = (each for each in TraceBuilder("test").add(seen, None, None) if isinstance(each, PodRecord))
    assert (found.cores, found.bytes) == (case.milli / 1000, case.bytes)


@each_case
def test_requests_in_the_agent(case: PodCase) -> None:
    found = facts_of(msgspec.convert(case.object(), AgentPod))
    assert (found.pod.memory_request or 0) == case.bytes


@each_case
def test_requests_in_the_qos_resource_manager(case: PodCase) -> None:
    """By container and, if the pod has pod-level requests, for the pod; the runtime adds the overhead."""
    found = qrm_pod(msgspec.convert(case.object(), QrmPodObject))
    assert found is not None
    apps = [each.requests for each in found.containers if not each.init]
    inits = [(each.requests, each.restarts) for each in found.containers if each.init]
    total = {**combined(apps, inits), **found.requests}
    overhead = 250 if "overhead" in case.spec else 0
    assert round(1000 * total.get("cpu", 0.0)) + overhead == case.milli


AMOUNT = st.integers(0, 100).map(lambda size: {"requests": {"cpu": f"{size}m"}})
INIT = st.tuples(AMOUNT, st.booleans())


def requested(containers: list[Any], inits: list[Any]) -> int:
    spec = {
        "containers": [{"name": f"c{i}", "resources": each} for i, each in enumerate(containers)],
        "initContainers": [
            {"name": f"i{i}", "resources": each, "restartPolicy": "Always" if stays else ""}
            for i, (each, stays) in enumerate(inits)
        ],
    }
    return pod_info(msgspec.convert({"spec": spec}, Pod)).requests.get("cpu", 0)


def milli(resources: Any) -> int:
    return int(resources["requests"]["cpu"].removesuffix("m"))


@given(st.lists(AMOUNT, min_size=1, max_size=4), st.lists(INIT, max_size=4), st.randoms())
def test_a_pod_requests_the_maximum_of_its_running_containers(
    containers: list[Any], inits: list[Any], source: Any
) -> None:
    """The order of containers has no effect. At each step of the start: one init container and the sidecars before it,
    at last all sidecars and containers."""
    total = requested(containers, inits)
    shuffled = source.sample(containers, len(containers))
    assert requested(shuffled, inits) == total
    sidecars, steps = 0, []
    for each, stays in inits:
        steps.append(sidecars + milli(each))
        sidecars += milli(each) if stays else 0
    assert total == max([*steps, sidecars + sum(map(milli, containers))])
    assert total >= max(map(milli, containers))
