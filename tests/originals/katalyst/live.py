"""Processes of Katalyst and of load-watcher on one node: Katalyst's plug-ins under the manager of load-watcher, and the
plug-ins of load-watcher under Katalyst's manager. A check that fails does not stop the others."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import cpuset
from agent.cpuset import CpuSet
from tests.agent.qrm.test_main import Qrm, cri
from tests.originals.frame import Outcome
from tests.originals.katalyst.node import CONTAINER, EXCLUSIVE, RECLAIMED, KatalystNode, katalyst_node, level, uid
from tests.waiting import wait_for

NODE_0, NODE_1 = cpuset.parse("0-7,16-23"), cpuset.parse("8-15,24-31")
OWN = {"kubernetes.io/pod-role": "storage-service"}
BATCH = {"kubernetes.io/pod-role": "ETL", **level("reclaimed_cores")}
NO_PLUGINS = ("cpu_plugin = false", "memory_plugin = false", "nic_plugin = false")
ROUNDS_S = 4.0
"""Seconds in which a manager that would change an allocation has changed it; both reconcile every second."""


class Part:
    """The outcomes of the checks of one part."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outcomes: list[Outcome] = []

    @contextlib.contextmanager
    def check(self, what: str) -> Iterator[None]:
        """A failure in the block is the outcome of the check."""
        failure = ""
        try:
            yield
        except (Exception, pytest.fail.Exception) as error:
            failure = f"{type(error).__name__}: {error}"[:800]
        self.outcomes.append(Outcome(self.name, {"check": what}, "", failure, what))


def given(qrm: Qrm, name: str) -> dict[str, Any]:
    """The allocations of a pod's container under load-watcher's manager, by resource."""
    pods = {each["pod"]: each["containers"] for each in qrm.state()["pods"]}
    found: dict[str, Any] = pods.get(f"default/{name}", {}).get(CONTAINER, {})
    return found


def cpus_of(info: dict[str, Any]) -> CpuSet:
    return cpuset.parse(info["allocation_result"])


def expect(found: Any, expected: Any) -> None:
    """Check that two values are equal; the message has both."""
    assert found == expected, f"found {found}, expected {expected}"


def stays(ask: Callable[[], Any], value: Any) -> None:
    """Check that a value stays as it is while both sides reconcile."""
    with contextlib.suppress(pytest.fail.Exception):
        wait_for(lambda: ask() != value, what="a change", timeout=ROUNDS_S)
    expect(ask(), value)


def registered(qrm: Qrm, *resources: str) -> bool:
    plugins = qrm.state()["plugins"]
    return all(plugins.get(name, {}).get("live") for name in resources)


class LiveChecks:
    """All parts; the seed and the number of cases do not matter."""

    name = "live"
    default_cases = 1

    def outcomes(self, program: Path, *, seed: int, cases: int) -> Iterator[Outcome]:
        for part in (their_plugins, their_native_plugin, under_their_manager):
            with katalyst_node(program) as node:
                yield from part(node)


# --- Katalyst's plug-ins under load-watcher's manager ----------------------------------------------------------------


def their_plugins(node: KatalystNode) -> list[Outcome]:
    part = Part("Katalyst's plug-ins")
    lines = (*NO_PLUGINS, 'policy = "restricted"', f'names = ["{RECLAIMED}=cpu"]')
    flags = {"sockets": node.sockets, "state": node.directory / "theirs", "reserved_cpus": 2}
    with node.katalyst("plugins", **flags) as plugins:
        with node.load_watcher(*lines, mode="cri") as qrm:
            _admissions(part, node, qrm)
            _readers(part, node)
            before = {name: given(qrm, name) for name in ("own", "batch")}
        with node.load_watcher(*lines, mode="cri") as qrm:
            with part.check("after a restart of load-watcher, plug-ins register again and nothing changes"):
                wait_for(lambda: registered(qrm, "cpu", "memory"), what="registration")
                wait_for(lambda: {name: given(qrm, name) for name in before} == before, what=f"the same as {before}")
                stays(lambda: {name: given(qrm, name) for name in before}, before)
            plugins.stop(signal.SIGKILL)
            _without_plugins(part, node, qrm, before)
            plugins.start()
            _plugins_again(part, node, qrm, before["own"])
    return part.outcomes


def _admissions(part: Part, node: KatalystNode, qrm: Qrm) -> None:
    with part.check("both plug-ins register"):
        wait_for(lambda: registered(qrm, "cpu", "memory"), what="registration")
    node.add(1, "shared", {"cpu": "4", "memory": "1Gi"}, init=True)
    with part.check("a shared pod with an init container has all CPUs that are not dedicated"):
        wait_for(lambda: given(qrm, "shared").get("cpu"), what="an allocation")
        expect(cpus_of(given(qrm, "shared")["cpu"]), (NODE_0 | NODE_1) - {0, 8})
    with part.check("the runtime gets them"):
        wait_for(lambda: cri(uid(1)) in node.runtime.cpusets(), what="an update")
    node.add(2, "own", {"cpu": "4", "memory": "4Gi"}, annotations=EXCLUSIVE)
    with part.check("an exclusive pod has the CPUs and the memory of one NUMA node"):
        wait_for(lambda: given(qrm, "own").keys() >= {"cpu", "memory"}, what="both allocations")
        own = given(qrm, "own")
        expect(cpus_of(own["cpu"]), NODE_0 - {0} if own["memory"]["allocation_result"] == "0" else NODE_1 - {8})
        expect(own["memory"]["allocated_quantity"], 64 << 30)
    node.add(3, "batch", {RECLAIMED: "2000", "memory": "1Gi"}, annotations=level("reclaimed_cores"), init=True)
    with part.check("a reclaimed pod requests reclaimed_millicpu, which qrm.names maps to cpu"):
        wait_for(lambda: given(qrm, "batch").keys() >= {"cpu", "memory"}, what="both allocations")
    with part.check("the shared pod leaves the CPUs of the exclusive pod"):
        dedicated = cpus_of(given(qrm, "own")["cpu"])
        wait_for(lambda: not cpus_of(given(qrm, "shared")["cpu"]) & dedicated, what="disjoint allocations")
        wait_for(lambda: not cpuset.parse(node.runtime.cpusets()[cri(uid(1))]) & dedicated, what="the update")


def _readers(part: Part, node: KatalystNode) -> None:
    with part.check("Katalyst's client reads load-watcher's pod-resources API"):
        found = node.ask("pod-resources", socket=node.pod_resources)
        pods = {pod["name"]: pod["containers"][0] for pod in found["list"]["pod_resources"]}
        expect({each["resource_name"] for each in pods["own"]["resources"]}, {"cpu", "memory"})
        expect({each["resource_name"] for each in found["allocatable"]["resources"]}, {"cpu", "memory"})
    with part.check("Katalyst's adapter derives topology zones from it"):
        zones = node.ask("zones", socket=node.pod_resources, machine=node.machine, pods=node.pods_file)
        assert "default/own" in json.dumps(zones)
        expect({zone["type"] for zone in zones}, {"Socket"})
    ours, again = node.directory / "state" / "kubelet_qrm_checkpoint", node.directory / "kubelet_qrm_checkpoint"
    with part.check("Katalyst's checkpoint manager reads load-watcher's checkpoint"):
        entries = node.ask("checkpoint", file=ours, write=again)
        expect({entry["pod"] for entry in entries}, {uid(1), uid(2), uid(3)})
    with part.check("load-watcher reads Katalyst's checkpoint"):
        expect(sorted(node.checkpoint(again), key=str), sorted(node.checkpoint(ours), key=str))


def _without_plugins(part: Part, node: KatalystNode, qrm: Qrm, before: dict[str, Any]) -> None:
    node.add(4, "meanwhile", {"cpu": "2", "memory": "1Gi"})
    with part.check("after SIGKILL of Katalyst's agent, a new pod is inadmissible with the policy restricted"):
        wait_for(
            lambda: "default/meanwhile" in [each["pod"] for each in qrm.state()["inadmissible"]], what="the report"
        )
    with part.check("running pods keep their allocations"):
        stays(lambda: {name: given(qrm, name) for name in before}, before)


def _plugins_again(part: Part, node: KatalystNode, qrm: Qrm, own: dict[str, Any]) -> None:
    with part.check("when the agent is back, that pod gets CPUs"):
        wait_for(lambda: given(qrm, "meanwhile").get("cpu"), what="an allocation", timeout=90.0)
        wait_for(lambda: qrm.state()["inadmissible"] == [], what="the end of the report")
    with part.check("the exclusive pod still has the same CPUs"):
        expect(given(qrm, "own")["cpu"]["allocation_result"], own["cpu"]["allocation_result"])
    node.remove("own")
    with part.check("a pod that ends is removed from the state of Katalyst's plug-ins"):
        state = node.directory / "theirs" / "cpu_plugin_state"
        wait_for(lambda: uid(2) not in state.read_text(), what="the removal")
        assert uid(1) in state.read_text()
    node.add(5, "big", {"cpu": "64", "memory": "1Gi"}, annotations=EXCLUSIVE)
    with part.check("a pod that exceeds the machine is inadmissible"):
        wait_for(lambda: "default/big" in [each["pod"] for each in qrm.state()["inadmissible"]], what="the report")
    with part.check("the runtime has refused no update"):
        expect(node.runtime.refused, [])


def their_native_plugin(node: KatalystNode) -> list[Outcome]:
    part = Part("Katalyst's native plug-in")
    lines = NO_PLUGINS
    flags = {"run": "cpu-native", "sockets": node.sockets, "state": node.directory / "theirs", "reserved_cpus": 2}
    with node.katalyst("plugins", **flags), node.load_watcher(*lines, mode="cri") as qrm:
        with part.check("it registers"):
            wait_for(lambda: registered(qrm, "cpu"), what="registration")
        node.add(1, "shared", {"cpu": "1500m", "memory": "1Gi"})
        with part.check("a Burstable pod is in the default pool"):
            wait_for(lambda: given(qrm, "shared").get("cpu"), what="an allocation")
        node.add(2, "own", {"cpu": "4", "memory": "4Gi"}, qos="Guaranteed")
        with part.check("a Guaranteed pod has CPUs of its own"):
            wait_for(lambda: given(qrm, "own").get("cpu"), what="an allocation")
            expect(len(cpus_of(given(qrm, "own")["cpu"])), 4)
        with part.check("the default pool loses them, in the runtime too"):
            own = cpus_of(given(qrm, "own")["cpu"])
            wait_for(lambda: not cpuset.parse(node.runtime.cpusets()[cri(uid(1))]) & own, what="the update")
    return part.outcomes


# --- load-watcher's plug-ins under Katalyst's manager ----------------------------------------------------------------


def under_their_manager(node: KatalystNode) -> list[Outcome]:
    part, lines = Part("under Katalyst's manager"), ('reserved_cpus = "0,16"', "adjust = false")
    flags = {"sockets": node.sockets, "pod_resources": node.pod_resources, "policy": "restricted"}
    flags |= {"updates": node.directory / "updates", "names": f"{RECLAIMED}=cpu"}
    with node.katalyst("manager", **flags) as manager:
        wait_for((node.sockets / "kubelet.sock").exists, what="Katalyst's manager")
        with node.load_watcher(*lines, mode="server") as qrm:
            with part.check("all plug-ins register"):
                wait_for(lambda: registered(qrm, "cpu", "memory", "NIC"), what="registration")
            _managed_admissions(part, node)
            _role_of_label(part, node)
            _managed_readers(part, node)
            before, sockets = node.katalyst_allocations(), node.plugin_sockets()
            manager.stop(signal.SIGKILL)
            manager.start()
            with part.check("Katalyst's agent restarts and empties its directory: the sockets are there again"):
                wait_for(lambda: len(node.plugin_sockets() - sockets) == len(sockets), what="new sockets")
            _manager_again(part, node, qrm, before)
            _managed_removal(part, node)
            qrm.kill()
        with node.load_watcher(*lines, mode="server") as qrm:
            _load_watcher_again(part, node, qrm)
    return part.outcomes


def _managed_admissions(part: Part, node: KatalystNode) -> None:
    def has(number: int, *resources: str) -> dict[str, dict[str, Any]]:
        found = node.katalyst_allocations()
        complete = all((uid(number), name) in found for name in resources)
        return {name: found[uid(number), name] for name in resources} if complete else {}

    node.add(1, "shared", {"cpu": "4", "memory": "1Gi"}, init=True)
    with part.check("a shared pod with an init container has CPUs of both NUMA nodes"):
        shared = wait_for(lambda: has(1, "cpu", "memory"), what="both allocations")
        assert cpus_of(shared["cpu"]) & NODE_0
        assert cpus_of(shared["cpu"]) & NODE_1
    node.add(2, "own", {"cpu": "4", "memory": "4Gi"}, annotations=OWN)
    with part.check("an exclusive pod has CPUs of one NUMA node"):
        found = wait_for(lambda: has(2, "cpu", "memory"), what="both allocations")
        assert cpus_of(found["cpu"]) < NODE_0 or cpus_of(found["cpu"]) < NODE_1
    with part.check("and the memory of this NUMA node"):
        memory = has(2, "memory")["memory"]
        expect(memory["allocation_result"], "0" if cpus_of(has(2, "cpu")["cpu"]) < NODE_0 else "1")
        expect(memory["allocated_quantity"], 4 << 30)
    node.add(3, "batch", {RECLAIMED: "2000", "memory": "1Gi"}, annotations=BATCH)
    with part.check("a reclaimed pod requests reclaimed_millicpu, which the manager maps to cpu"):
        wait_for(lambda: has(3, "cpu", "memory"), what="both allocations")
        expect(_state_of(node, "cpu")["pods"][uid(3)][CONTAINER]["request"], 2)
    with part.check("the shared pod leaves the CPUs of the exclusive pod"):
        mine = cpus_of(has(2, "cpu")["cpu"])
        wait_for(lambda: not cpus_of(has(1, "cpu")["cpu"]) & mine, what="disjoint allocations")
    with part.check("the manager sets this on the container"):
        updates = node.directory / "updates"

        def latest() -> dict[str, Any]:
            lines = map(json.loads, updates.read_text().splitlines())
            return {line["pod"]: line["resources"] for line in lines if line["container"] == CONTAINER}

        wait_for(lambda: not cpus_of(latest()[uid(1)]["cpu"]) & mine, what="the update")


def _role_of_label(part: Part, node: KatalystNode) -> None:
    labels = {"katalyst.kubewharf.io/pod_role": "storage-service"}
    node.add(8, "labelled", {"cpu": "4", "memory": "4Gi"}, labels=labels)
    with part.check("a pod with the role in its label has exclusive CPUs, too"):
        wait_for(lambda: (uid(8), "memory") in node.katalyst_allocations(), what="both allocations")
        found = node.katalyst_allocations()[uid(8), "cpu"]
        expect(found["allocated_quantity"], 4)
        assert not cpus_of(found) & cpus_of(node.katalyst_allocations()[uid(2), "cpu"])


def _managed_readers(part: Part, node: KatalystNode) -> None:
    with part.check("Katalyst's pod-resources API has the allocations"):
        found = node.ask("pod-resources", socket=node.pod_resources)
        pods = {pod["name"]: pod["containers"][0] for pod in found["list"]["pod_resources"]}
        assert {each["resource_name"] for each in pods["own"]["resources"]} >= {"cpu", "memory"}
        assert {each["resource_name"] for each in found["allocatable"]["resources"]} >= {"cpu", "memory"}
    with part.check("Katalyst's adapter derives topology zones from it"):
        zones = node.ask("zones", socket=node.pod_resources, machine=node.machine, pods=node.pods_file)
        expect({zone["type"] for zone in zones}, {"Socket"})


def _managed_removal(part: Part, node: KatalystNode) -> None:
    node.add(5, "big", {"cpu": "64", "memory": "1Gi"}, annotations=OWN)
    with part.check("a pod that exceeds the machine gets no CPUs"):
        stays(lambda: (uid(5), "cpu") in node.katalyst_allocations(), False)
    node.remove("big")
    node.remove("own")
    with part.check("a pod that ends is removed from the state of the plug-ins"):
        wait_for(lambda: uid(2) not in _state_of(node, "cpu")["pods"], what="the removal")
        wait_for(lambda: uid(2) not in _state_of(node, "memory")["pods"], what="the removal of memory")
        assert uid(1) in _state_of(node, "cpu")["pods"]


def _state_of(node: KatalystNode, resource: str) -> Any:
    (path,) = (node.directory / "state").glob(f"qrm_{resource}_plugin*_state")
    return json.loads(path.read_text())


def _manager_again(part: Part, node: KatalystNode, qrm: Qrm, before: dict[tuple[str, str], Any]) -> None:
    with part.check("all plug-ins register again"):
        wait_for(lambda: registered(qrm, "cpu", "memory", "NIC"), what="registration")
        expect(qrm.get("/healthz").json(), {"status": "ok", "unused": {}})
        assert "another process has removed or replaced" in qrm.log(), qrm.log()[-600:]
    node.add(6, "late", {"cpu": "2", "memory": "1Gi"})
    with part.check("a new pod gets CPUs"):
        wait_for(lambda: (uid(6), "cpu") in node.katalyst_allocations(), what="an allocation")
    with part.check("running pods keep their allocations"):
        after = node.katalyst_allocations()
        for key in ((uid(2), "cpu"), (uid(2), "memory")):
            expect(after.get(key), before[key])
        expect(after.keys() & before.keys(), before.keys())


def _load_watcher_again(part: Part, node: KatalystNode, qrm: Qrm) -> None:
    with part.check("after SIGKILL and a restart of load-watcher, its plug-ins register with their state"):
        wait_for(lambda: registered(qrm, "cpu", "memory", "NIC"), what="registration")
        assert _state_of(node, "cpu")["pods"].keys() >= {uid(1), uid(6)}
    node.add(7, "last", {"cpu": "2", "memory": "1Gi"})
    with part.check("a pod after that gets CPUs"):
        wait_for(lambda: (uid(7), "cpu") in node.katalyst_allocations(), what="an allocation")
