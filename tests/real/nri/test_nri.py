"""`load-watcher qrm` in mode nri with containerd/nri's runtime side: what the OCI spec of a new container has, what is
refused, and what happens without the plug-in."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.agent.qrm.runtime.nri.overlap import overlaps
from tests.agent.qrm.test_main import NICS, NODE, RESERVED, step
from tests.fakes.kube import EVENTS
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.real.nri.node import (
    CONTAINER,
    PLUGIN,
    NriNode,
    container_id,
    nri_node,
    wait_until_known,
)
from tests.real.nri.runtime import Refused
from tests.real.nri.sequences import Checked
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture
def node() -> Iterator[NriNode]:
    with nri_node() as made:
        yield made


def uid(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


# --- the proposal's examples -----------------------------------------------------------------------------------------


def test_example_1_pools_from_the_creation_on_and_after_a_resize(node: NriNode):
    """The resize comes from the load; containers that lose CPUs lose them before others get them."""
    steps = [step(f"admit pod{number}") for number in (1, 2, 3)]
    load = FakeService(published=publish(snapshot_of({NODE: {"CPU": steady(26.25), "Memory": steady(40)}})))
    lines = ('adjust_interval = "100ms"', "step_down = 0")
    with node.runtime() as runtime:
        with node.manage(*lines) as qrm:
            runtime.wait_for_plugin()
            for number, each in enumerate(steps, start=1):
                cpu = str(each["request"]["cpu"] or 1)
                node.pending(f"default/pod{number}", each["pod_uid"], each["pod_role"], cpu=cpu)
                wait_until_known(qrm, each["pod_uid"])
                done = node.create(runtime, f"default/pod{number}", each["pod_uid"])
                assert done.cpus == each["linux_container_resources"]["cpuset_cpus"]
                assert done.mems == "0-1"
                assert done.spec["linux"]["resources"]["cpu"]["shares"] == 1024
                assert done.spec["linux"]["resources"]["memory"]["limit"] == 1 << 30
        last = step("resize and reconcile")
        online, offline = (last["pools"][pool] for pool in ("online", "offline"))
        ids = [container_id(each["pod_uid"]) for each in steps]
        with Live(load) as live, node.manage(*lines, f'watcher = "http://127.0.0.1:{live.port}"'):
            wanted = dict(zip(ids, (online, offline, online), strict=True))
            wait_for(lambda: runtime.cpusets() == wanted, what="the pools after the resize")
        order = [
            id for asked in runtime.asked() for id, has in asked.items() if has["cpu"]["cpus"] in (online, offline)
        ]
        assert order.index(ids[1]) > max(order.index(ids[0]), order.index(ids[2]))


def test_example_2_exclusive_cpus_and_a_refused_pod(node: NriNode):
    """A third role finds no NUMA node: its container is not created until another pod has ended."""
    one, two = (step(f"hints pod{number}", 2) for number in (1, 2))
    third = uid(3)
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        for number, (case, cpu, memory) in enumerate(((one, "20", "40Gi"), (two, "10", "20Gi")), start=1):
            node.pending(f"default/pod{number}", case["pod_uid"], case["pod_role"], cpu=cpu, memory=memory)
            wait_until_known(qrm, case["pod_uid"])
            done = node.create(runtime, f"default/pod{number}", case["pod_uid"])
            wanted = step(f"allocate pod{number}", 2)["linux_container_resources"]
            assert (done.cpus, done.mems) == (wanted["cpuset_cpus"], wanted["cpuset_mems"])
        node.pending("default/pod3", third, "retriever", cpu="4")
        wait_until_known(qrm, third)
        with pytest.raises(Refused, match=r"Resources cannot be allocated with Topology locality") as refused:
            node.create(runtime, "default/pod3", third)
        assert PLUGIN in str(refused.value)
        assert container_id(third) not in runtime.cpusets()
        event = wait_for(lambda: _event_of(node, "pod3"), what="the Event on the pod")
        assert event["reason"] == "TopologyAffinityError"
        assert PLUGIN in event["message"]
        runtime.end(container_id(two["pod_uid"]))
        runtime.end_pod(two["pod_uid"])
        node.delete("default/pod2")
        done = wait_for(
            lambda: runtime.create(third, container_id(third), CONTAINER),
            what="the container in the place that is free",
            ignoring=(Refused,),
        )
        assert (done.cpus, done.mems) == ("42-45", "1")


def _event_of(node: NriNode, name: str) -> Any:
    found = [node.kube.content(EVENTS, each) for each in sorted(node.kube.names(EVENTS))]
    return next((event for event in found if event["involvedObject"]["name"] == name), None)


def test_example_3_environment_and_annotations_of_the_card(node: NriNode):
    full = uid(0)
    node.pending("default/full", full, "storage-service", cpu="38", memory="200Gi")
    with node.runtime() as runtime, node.manage(RESERVED, NICS) as qrm:
        runtime.wait_for_plugin()
        wait_until_known(qrm, full)
        assert node.create(runtime, "default/full", full).mems == "0"
        for number in (1, 2):
            case = step(f"pod{number}", 3)
            id = case.get("pod_uid", uid(number))
            node.pending(f"default/pod{number}", id, case["pod_role"], cpu="10", memory="20Gi")
            wait_until_known(qrm, id)
            done = node.create(runtime, f"default/pod{number}", id)
            given = case["response"]
            assert done.cpus == given["cpu"]["allocation_result"]
            assert done.mems == given["memory"]["allocation_result"]
            assert done.env == {"PATH": "/bin", **given["NIC"]["envs"]}
            assert given["NIC"]["annotations"].items() <= done.annotations.items()
        assert not overlaps(runtime.cpusets())


# --- without the plug-in ---------------------------------------------------------------------------------------------


def test_a_pod_that_the_manager_does_not_know_yet_starts_unpinned_and_the_next_round_pins_it(node: NriNode):
    """The answer does not wait for the API server."""
    late = uid(1)
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        done = node.create(runtime, "default/late", late)
        assert (done.cpus, done.ms < 1000) == ("", True)
        assert qrm.metric("qrm_nri_unpinned_total") >= 1
        node.pending("default/late", late, "storage-service", cpu="4")
        wait_for(lambda: runtime.cpusets() == {container_id(late): "2-5"}, what="the next round to pin it")
        assert runtime.asked()


def test_a_frozen_plugin_delays_one_container_and_later_pins_it(node: NriNode):
    """The runtime waits for its timeout, drops the plug-in, and starts the container."""
    slow = uid(1)
    with node.runtime(timeout=0.5) as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        node.pending("default/slow", slow, "storage-service", cpu="4")
        wait_until_known(qrm, slow)
        runtime.run_pod("default/slow", slow)
        qrm.pause()
        done = runtime.create(slow, container_id(slow))
        assert done.cpus == ""
        assert done.ms >= 500
        qrm.resume()
        wait_for(lambda: runtime.cpusets() == {container_id(slow): "2-5"}, what="the container to be pinned")
        assert "timeout" in runtime.log() or "deadline" in runtime.log()


def test_without_a_manager_containers_start_and_a_new_manager_pins_them(node: NriNode):
    dead = uid(1)
    with node.runtime() as runtime:
        with node.manage(RESERVED):
            runtime.wait_for_plugin()
        node.pending("default/dead", dead, "storage-service", cpu="4")
        assert node.create(runtime, "default/dead", dead).cpus == ""
        with node.manage(RESERVED):
            wait_for(lambda: runtime.cpusets() == {container_id(dead): "2-5"}, what="the container to be pinned")


def test_with_the_required_plugin_a_container_is_refused_while_the_manager_is_dead(node: NriNode):
    """qrm.on_failure = "refuse": the default validator of the runtime names the plug-in."""
    pod = uid(1)
    with node.runtime(required=[PLUGIN]) as runtime:
        node.pending("default/pod", pod, "storage-service", cpu="4")
        with pytest.raises(Refused, match=f'required plugin "{PLUGIN}" not present'):
            node.create(runtime, "default/pod", pod)
        with node.manage(RESERVED, 'on_failure = "refuse"') as qrm:
            runtime.wait_for_plugin()
            wait_until_known(qrm, pod)
            assert runtime.create(pod, container_id(pod)).cpus == "2-5"


def test_sigkill_and_restarts_of_the_runtime_keep_exclusive_cpus(node: NriNode):
    """Allocations are in the checkpoint before the answer; a new manager continues with them."""
    pods = [uid(number) for number in range(1, 5)]
    with node.runtime() as runtime:
        for number, pod in enumerate(pods):
            node.pending(f"default/pod{number}", pod, "storage-service", cpu="4")
            with node.manage(RESERVED) as qrm:
                runtime.wait_for_plugin()
                wait_until_known(qrm, pod)
                node.create(runtime, f"default/pod{number}", pod)
                given = runtime.cpusets()
                qrm.kill()
            runtime.restart()
            assert runtime.cpusets() == given
            assert not overlaps(given)
        assert sorted(runtime.cpusets().values()) == ["10-13", "14-17", "2-5", "6-9"]
        lost = container_id(pods[0])
        runtime.restart(lost=[lost])
        with node.manage(RESERVED) as qrm:
            runtime.wait_for_plugin()
            node.delete("default/pod0")
            fifth = uid(5)
            node.pending("default/fifth", fifth, "storage-service", cpu="4")
            wait_until_known(qrm, fifth)
            assert node.create(runtime, "default/fifth", fifth).cpus
            assert not overlaps(runtime.cpusets())
            assert len(runtime.cpusets()) == 4


@pytest.mark.timeout(600)
def test_random_sequences_have_no_findings():
    """Pods, SIGKILL, restarts of the runtime and resizes in any order; `make nri` runs more."""
    checked = Checked()
    checked.run([f"test/{number}" for number in range(int(os.environ.get("LOAD_WATCHER_NRI_SEQUENCES", "25")))])
    assert not checked.findings, "\n".join(checked.findings)
    assert checked.steps.keys() >= {"create", "kill", "load", "restart", "end"}


def test_updates_from_the_rounds_while_pods_start_and_are_resized(node: NriNode):
    """A pod that the API server has after its container is pinned by the UpdateContainers of a round, while the next
    pod starts and is updated; NRI before 0.12.1 could deadlock here (containerd issue 13733)."""
    pods = [uid(number) for number in range(1, 16)]
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        for number, pod in enumerate(pods):
            name, role = f"default/pod{number}", ("online-micro_service", "ETL")[number % 2]
            assert node.create(runtime, name, pod).cpus == ""
            node.pending(name, pod, role, cpu="1")
            for _ in range(5):
                runtime.update(container_id(pod), {"cpu": {"shares": 512}})
        wait_for(lambda: all(runtime.cpusets().values()), what="all pods to be pinned")
        asked = {id for each in runtime.asked() for id in each}
        state = qrm.state()["nri"]
    assert asked == {container_id(pod) for pod in pods}
    assert state["connected"]
    assert not {"dropped", "slow", "update"} & state["failures"].keys()
