"""`load-watcher qrm` as a user runs it: a process, an API server, a container runtime, plug-ins, all over sockets; the
proposal's three examples, restarts and failures."""

import asyncio
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from agent import cpuset
from agent.qrm.grpc.plugin_client import ask_info, notify
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2 as podresources_pb
from agent.qrm.grpc.protos import qrm_podresources_v1_pb2_grpc as podresources_grpc
from agent.qrm.manager.allocation import AllocationInfo, Allocations, WireHint, WireHints
from agent.qrm.store.checkpoint import encode
from tests.agent.qrm.plugins.test_sysfs import as_files, put
from tests.agent.qrm.vectors import group, machine
from tests.fakes.cri import FakeRuntime
from tests.fakes.kube import EVENTS, NODES, PODS, FakeKube
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.service import Service
from tests.waiting import eventually, wait_for

pytestmark = pytest.mark.slow

NODE = "node-1"
MEMORY = {0: 237706936320, 1: 237806551040}
RESERVED = 'reserved_cpus = "0-1,40-41"'
NICS = (
    'nics = ["eth0 numa=0 ipv6=fdbd:dc05:3:154::20", "eth1 numa=1 ipv6=fdbd:dc05:3:155::20 netns=/var/run/netns/ns1"]'
)


class Qrm(Service):
    """A `load-watcher qrm`."""

    name = "load-watcher-qrm"
    verb = "qrm"

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/qrm").json()
        return found

    def explained(self) -> dict[str, Any]:
        found: dict[str, Any] = self.get("/qrm/explain").json()
        return found

    def metric(self, name: str) -> float:
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(f"load_watcher_{name} ")]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0


@dataclass
class World:
    """The proposal's machine (80 CPUs, two NUMA nodes), an API server with its pods, and a directory for sockets."""

    directory: Path
    kube: FakeKube

    @property
    def socket(self) -> Path:
        return self.directory / "cri.sock"

    def pod(self, name: str, uid: str, role: str, *, cpu: str, memory: str = "1Gi", **more: Any) -> None:
        """A running pod; the id of its container is its uid without dashes."""
        requests = {"cpu": cpu, "memory": memory, **more.pop("requests", {})}
        containers = [{"name": "container0", "resources": {"requests": requests}}]
        statuses = [{"name": "container0", "containerID": f"containerd://{cri(uid)}", "state": {"running": {}}}]
        annotations = {"kubernetes.io/pod-role": role, **more.pop("annotations", {})}
        self.kube.put(
            PODS,
            name,
            metadata={"uid": uid, "annotations": annotations, **more.pop("metadata", {})},
            spec={"nodeName": NODE, "containers": containers},
            status={"phase": "Running", "qosClass": "Burstable", "containerStatuses": statuses},
        )

    def run(self, *lines: str, mode: str = "cri", at: str = "qrm", env: Mapping[str, str] | None = None) -> Qrm:
        """A manager with these lines in its settings, below [qrm]."""
        return Qrm(self.directory / at, config=self.settings(*lines, mode=mode), env=env)

    def settings(self, *lines: str, mode: str, period: str = "200ms") -> str:
        """The settings of a manager, with these lines at the end of [qrm]."""
        text = [
            "[kubernetes]",
            f'kubeconfig = "{self.kube.kubeconfig(self.directory / "kubeconfig")}"',
            "[qrm]",
            f'mode = "{mode}"',
            f'node = "{NODE}"',
            f'runtime_socket = "{self.socket}"',
            f'sys = "{self.directory / "sys"}"',
            f'kubelet_dir = "{self.directory / "kubelet"}"',
            f'cgroup = "{self.directory / "cgroup"}"',
            f'reconcile_period = "{period}"',
            'policy = "restricted"',
            *lines,
        ]
        return "\n".join(text)


def cri(uid: str) -> str:
    return uid.replace("-", "").ljust(64, "0")


@contextmanager
def the_seeds_machine() -> Iterator[World]:
    seed = machine("seed80_adjacent")
    # The path of a unix socket has at most 107 bytes, and pytest's own directories nearly as many.
    with tempfile.TemporaryDirectory(prefix="qrm-") as name, FakeKube() as kube:
        directory = Path(name)
        as_files(directory / "sys", seed)
        for node, size in MEMORY.items():
            meminfo = f"Node {node} MemTotal: {size >> 10} kB"
            put(directory / "sys", f"devices/system/node/node{node}/meminfo", meminfo)
        kube.node(NODE)
        yield World(directory, kube)


@pytest.fixture
def world() -> Iterator[World]:
    with the_seeds_machine() as made:
        yield made


def step(name: str, example: int = 1) -> dict[str, Any]:
    (found,) = (case for case in group(f"seed_example_{example}") if case["step"] == name)
    return found


def given(qrm: Qrm) -> dict[str, dict[str, Any]]:
    """Allocations of containers by pod and resource."""
    return {each["pod"]: each["containers"]["container0"] for each in qrm.state()["pods"]}


# --- the proposal's examples -----------------------------------------------------------------------------------------


async def test_example_1_pools_move_with_the_load(world: World):
    """Three pods in two pools. By its load, the pool online needs 28 CPUs; the runtime is updated, containers that lose
    CPUs first."""
    steps = [step(f"admit pod{number}") for number in (1, 2, 3)]
    ids = [cri(each["pod_uid"]) for each in steps]
    for number, each in enumerate(steps, start=1):
        world.pod(f"default/pod{number}", each["pod_uid"], each["pod_role"], cpu=str(each["request"]["cpu"] or 1))
    # 21 of 80 CPUs are busy, two of them of the pool offline: 1.25 x 19 + 4 = 27.75.
    load = FakeService(published=publish(snapshot_of({NODE: {"CPU": steady(26.25), "Memory": steady(40)}})))

    async with FakeRuntime(world.socket, containers=set(ids)) as runtime:
        first = {id: each["linux_container_resources"]["cpuset_cpus"] for id, each in zip(ids, steps, strict=True)}
        with world.run('adjust_interval = "100ms"', "step_down = 0") as qrm:
            await eventually(lambda: runtime.cpusets() == first, what="the pools of the beginning")
            assert {given["cpuset_mems"] for _, given in runtime.updates} == {"0-1"}
            held = await eventually(lambda: qrm.explained()["resize"], what="a decision")
            assert (held["action"], held["to"]) == ("hold: no data", 76), held
        sent = len(runtime.updates)
        with Live(load) as live:
            lines = ('adjust_interval = "100ms"', "step_down = 0", f'watcher = "http://127.0.0.1:{live.port}"')
            idle = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
            with world.run(*lines, "publish_capacity = true", f'headroom_resource = "{idle}"') as qrm:
                last = step("resize and reconcile")
                online, offline = (last["pools"][pool] for pool in ("online", "offline"))
                second = dict(zip(ids, (online, offline, online), strict=True))
                await eventually(lambda: runtime.cpusets() == second, what="the pools after the resize")
                assert not runtime.refused
                order = [id for id, given in runtime.updates[sent:] if given["cpuset_cpus"] in (online, offline)]
                assert order.index(ids[1]) > max(order.index(ids[0]), order.index(ids[2])), "growth before loss"
                reported = (await asyncio.to_thread(qrm.explained))["resizes"]
                (change,) = [each for each in reported if each["action"] == "down"]
                assert (change["from"], change["to"], change["target"]) == (76, 28, 28)
                assert change["need_cpus"] == pytest.approx(27.75, abs=0.01)
                assert change["inputs"]["windows_percent"].keys() == {"5m", "10m", "15m"}
                assert change["pools"] == {"online": online, "offline": offline}
                state = await asyncio.to_thread(qrm.state)
                assert {pool: each["size"] for pool, each in state["pools"].items()} == last["sizes"]

                def offered() -> Any:
                    return world.kube.content(NODES, NODE)["status"]["allocatable"].get(idle)

                # A fifth more than the 52 CPUs of the pool, of which two are used.
                await eventually(lambda: offered() == "62400", what="the idle CPUs to be offered")


async def test_example_2_exclusive_cpus_and_memory_with_roles_on_separate_nodes(world: World):
    """Two roles on two NUMA nodes. A third one does not fit, is reported and gets nothing until a pod is deleted."""
    one, two = (step(f"hints pod{number}", 2) for number in (1, 2))
    ids = [cri(each["pod_uid"]) for each in (one, two)]
    third = "33333333-0000-4000-8000-000000000000"

    async with FakeRuntime(world.socket, containers={*ids, cri(third)}) as runtime:
        world.pod("default/pod1", one["pod_uid"], one["pod_role"], cpu="20", memory="40Gi")
        with world.run(RESERVED) as qrm:
            await eventually(lambda: ids[0] in runtime.cpusets(), what="pod1")
            assert runtime.updates[-1][1] == step("allocate pod1", 2)["linux_container_resources"]
            world.pod("default/pod2", two["pod_uid"], two["pod_role"], cpu="10", memory="20Gi")
            await eventually(lambda: ids[1] in runtime.cpusets(), what="pod2")
            allocated = step("allocate pod2", 2)
            assert runtime.updates[-1][1] == allocated["linux_container_resources"]
            listed = await pod_resources(qrm)
            assert {name: cpuset.text(cpus) for name, cpus in listed.items()} == {"pod1": "2-21", "pod2": "42-51"}
            world.pod("default/pod3", third, "retriever", cpu="4")
            state = await eventually(lambda: _inadmissible(qrm), what="the report of pod3")
            assert state["inadmissible"][0] | {"uid": ""} == {
                "pod": "default/pod3",
                "uid": "",
                "role": "retriever",
                "reason": "TopologyAffinityError",
                "message": "Resources cannot be allocated with Topology locality",
            }
            plugins = state["plugins"]
            assert plugins["cpu"]["state"] == allocated["cpu_machine_state"]
            assert plugins["memory"]["state"]["memory"] == allocated["memory_machine_state"]
            await eventually(lambda: world.kube.names(EVENTS), what="the Event")
            (event,) = (world.kube.content(EVENTS, name) for name in world.kube.names(EVENTS))
            assert (event["involvedObject"]["name"], event["reason"]) == ("pod3", "TopologyAffinityError")
            admissions = {each["pod"]: each for each in (await asyncio.to_thread(qrm.explained))["admissions"]}
            why = admissions["default/pod1"]["containers"]["container0"]["cpu"]
            assert why == {
                "offered": [{"nodes": [0], "preferred": True}, {"nodes": [1], "preferred": True}],
                "decided": {"nodes": [0], "preferred": True},
            }
            assert admissions["default/pod3"]["containers"]["container0"]["cpu"]["offered"] == []
            assert cri(third) not in runtime.cpusets()
            world.kube.delete(PODS, "default/pod2")
            await eventually(lambda: runtime.cpusets().get(cri(third)) == "42-45", what="pod3 in its place")
            assert not runtime.refused


async def pod_resources(qrm: Qrm) -> dict[str, list[int]]:
    """CPUs by pod, from the pod-resources API."""
    socket = qrm.directory / "load-watcher-qrm" / "pod-resources.sock"
    async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        answer = await podresources_grpc.PodResourcesListerStub(channel).List(podresources_pb.ListPodResourcesRequest())
    return {pod.name: [cpu for each in pod.containers for cpu in each.cpu_ids] for pod in answer.pod_resources}


def _inadmissible(qrm: Qrm) -> dict[str, Any]:
    """The state with a pod that could not be admitted, empty without one."""
    state = qrm.state()
    return state if state["inadmissible"] else {}


def test_example_3_two_pods_share_a_card(world: World):
    """Node 0 is full. Two pods get CPUs and memory of node 1, and its card without a request."""
    world.pod("default/full", "00000000-0000-4000-8000-000000000000", "storage-service", cpu="38", memory="200Gi")
    pods = [("default/pod1", step("pod1", 3)), ("default/pod2", step("pod2", 3))]

    def what(qrm: Qrm) -> dict[str, Any]:
        found: dict[str, Any] = given(qrm)
        return found

    with world.run(RESERVED, NICS, mode="dry-run") as qrm:
        wait_for(lambda: "default/full" in what(qrm) and what(qrm)["default/full"], what="node 0 to be full")
        for name, case in pods:
            world.pod(name, case.get("pod_uid", f"uid-of-{name[8:]}"), case["pod_role"], cpu="10", memory="20Gi")
            wait_for(lambda name=name: what(qrm).get(name), what=name)  # type: ignore[misc]
        found = what(qrm)
        for name, case in pods:
            for resource, expected in case["response"].items():
                has = found[name][resource]
                for key in ("oci_property_name", "allocated_quantity", "allocation_result"):
                    assert has[key] == expected[key], (name, resource)
            nic = case["response"]["NIC"]
            assert (found[name]["NIC"]["envs"], found[name]["NIC"]["annotations"]) == (nic["envs"], nic["annotations"])
        assert not world.socket.exists()


def test_a_failed_allocation_is_reported_with_the_decision(world: World):
    """The plug-in for CPUs refuses what the policy admits: the whole pod is refused, for any QoS level."""
    dedicated = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    ids = [f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12"]
    world.pod("default/runs", ids[0], "storage-service", cpu="70")
    world.pod("default/waits", ids[1], "storage-service", cpu="70", annotations=dedicated)
    with world.run(RESERVED, mode="dry-run", env={"LOAD_WATCHER_QRM_POLICY": "best-effort"}) as qrm:
        wait_for(lambda: len(qrm.explained()["admissions"]) == 2, what="both admissions")
        reported = {each["pod"]: each for each in qrm.explained()["admissions"]}
        why = {name: each["containers"]["container0"]["cpu"]["failed"] for name, each in reported.items()}
        assert why["default/runs"].startswith("the plug-in for cpu failed in Allocate: UNKNOWN: no available")
        for name, each in reported.items():
            assert (each["admitted"], each["reason"], each["given_back"]) == (False, "UnexpectedAdmissionError", "all")
            assert each["message"] == f"Allocate failed due to {why[name]}, which is unexpected"
            assert given(qrm)[name] == {}


# --- restarts --------------------------------------------------------------------------------------------------------


def test_a_killed_and_restarted_manager_restores_all_allocations(world: World):
    """kill -9, a damaged checkpoint, and a pod that was deleted meanwhile."""
    stays, goes = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"
    world.pod("default/stays", stays, "storage-service", cpu="20")
    qrm = world.run(RESERVED, mode="dry-run")
    try:
        qrm.start()
        wait_for(lambda: given(qrm).get("default/stays"), what="the first one")
        world.pod("default/goes", goes, "reranker", cpu="10")
        before = wait_for(lambda: _both(qrm), what="both")
        checkpoint = qrm.directory / "load-watcher-qrm" / "kubelet_qrm_checkpoint"
        assert {entry["PodUID"] for entry in json.loads(checkpoint.read_bytes())["Data"]["PodResourceEntries"]} == {
            stays,
            goes,
        }
        qrm.kill()
        world.kube.delete(PODS, "default/goes")
        qrm.start()
        wait_for(lambda: given(qrm) == {"default/stays": before["default/stays"]}, what="the same again")
        state = wait_for(lambda: _without(qrm, "42-51"), what="the CPUs of the one that went to be free")
        assert state["plugins"]["cpu"]["state"]["0"]["allocated_cpuset"] == "2-21"
        qrm.kill()
        checkpoint.write_bytes(checkpoint.read_bytes().replace(b"2-21", b"2-22"))
        qrm.start()
        wait_for(lambda: given(qrm) == {"default/stays": before["default/stays"]}, what="the same from the plug-ins")
        assert qrm.metric('qrm_checkpoint_writes_total{result="corrupt"}') == 1
        assert [path.name for path in checkpoint.parent.glob("*.corrupt-*")]
        assert "is unusable: the checksum is" in qrm.log()
        assert qrm.stop() == 0
        assert not list((qrm.directory / "load-watcher-qrm" / "plugins").glob("*.sock"))
    finally:
        qrm.kill()


def test_an_empty_state_file_of_a_plugin_does_not_free_the_cpus_of_running_pods(world: World):
    """As after a power failure. The manager has its checkpoint, and asks the plug-in again for the same pods. They keep
    their CPUs in any order of the requests."""
    world.pod("default/stays", "11111111-0000-4000-8000-000000000000", "storage-service", cpu="20")
    qrm = world.run(RESERVED, mode="dry-run")
    try:
        qrm.start()
        wait_for(lambda: given(qrm).get("default/stays"), what="the first one")
        world.pod("default/goes", "22222222-0000-4000-8000-000000000000", "storage-service", cpu="10")
        wait_for(lambda: _both(qrm), what="both")

        def results() -> dict[str, tuple[str, str]]:
            return {
                name: (each["cpu"]["allocation_result"], each["memory"]["allocation_result"])
                for name, each in given(qrm).items()
            }

        before = results()
        qrm.kill()
        state = qrm.directory / "load-watcher-qrm" / "qrm_cpu_plugin_state"
        for each in (state, state.with_name("qrm_memory_plugin_state")):
            each.write_bytes(b"")
        qrm.start()
        wait_for(lambda: _reserved(qrm) == 30, what="the plug-in to have both again")
        assert "qrm_cpu_plugin_state is unusable: it is not a JSON object" in qrm.log()
        assert before == wait_for(results, what="the first round")
        assert [b""] == [each.read_bytes() for each in state.parent.glob(f"{state.name}.corrupt-*")]
        world.pod("default/new", "33333333-0000-4000-8000-000000000000", "storage-service", cpu="10")
        wait_for(lambda: given(qrm).get("default/new"), what="the new one")
        sets = [cpuset.parse(each["cpu"]["allocation_result"]) for each in given(qrm).values()]
        assert 40 == len(frozenset().union(*sets)) == sum(map(len, sets))
    finally:
        qrm.kill()


def test_an_invalid_cpu_set_in_the_checkpoint_does_not_prevent_the_start(world: World):
    """The checksum of the file is right; another version or another plug-in may have written the set."""
    uid = "11111111-0000-4000-8000-000000000000"
    allocations = Allocations()
    hints = WireHints((WireHint((0,), preferred=True),))
    allocations.set(uid, "c", "cpu", AllocationInfo("CpusetCpus", allocation_result="all", resource_hints=hints))
    qrm = world.run(RESERVED, mode="dry-run")
    checkpoint = qrm.directory / "load-watcher-qrm" / "kubelet_qrm_checkpoint"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_bytes(encode(allocations))
    try:
        qrm.start()
        assert f"pod {uid}, container c: ignoring its cpu of the checkpoint: 'all'" in qrm.log()
    finally:
        qrm.kill()


def _reserved(qrm: Qrm) -> int:
    """The number of CPUs that the plug-in has given to containers."""
    nodes = qrm.state()["plugins"]["cpu"]["state"].values()
    return sum(len(cpuset.parse(each["allocated_cpuset"])) for each in nodes if "allocated_cpuset" in each)


def _both(qrm: Qrm) -> dict[str, dict[str, Any]]:
    """The allocations of both pods, empty while one has none."""
    found = given(qrm)
    return found if found.get("default/stays") and found.get("default/goes") else {}


def _without(qrm: Qrm, cpus: str) -> dict[str, Any]:
    """The state without these exclusive CPUs, empty while a container has them."""
    state = qrm.state()
    return {} if cpus in json.dumps(state["plugins"]) else state


def test_allocations_stay_while_a_plugin_in_its_own_process_is_restarted(world: World):
    """A pod that needs its resource waits meanwhile; then the plug-in continues with its earlier allocations."""
    sockets = f'registration_dir = "{world.directory / "plugins"}"'
    own = ("cpu_plugin = true", "memory_plugin = false", "nic_plugin = false", "adjust = false", sockets, RESERVED)
    none = ("cpu_plugin = false", "memory_plugin = false", "nic_plugin = false", sockets)
    plugin = world.run(*own, mode="server", at="plugin")
    first, later = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"
    dedicated = {"katalyst.kubewharf.io/qos_level": "dedicated_cores"}
    try:
        plugin.start()
        with world.run(*none, mode="dry-run") as qrm:
            wait_for(lambda: qrm.state()["plugins"].get("cpu", {}).get("live"), what="the plug-in to register")
            world.pod("default/first", first, "storage-service", cpu="20", annotations=dedicated)
            before = wait_for(lambda: given(qrm).get("default/first", {}), what="its CPUs")
            assert before["cpu"]["allocation_result"] == "2-21"
            plugin.kill()
            world.pod("default/later", later, "storage-service", cpu="4", annotations=dedicated)
            state = wait_for(lambda: _inadmissible(qrm), what="the pod that came meanwhile to wait")
            assert state["inadmissible"][0]["pod"] == "default/later"
            assert given(qrm)["default/first"] == before
            plugin.start()
            wait_for(lambda: given(qrm).get("default/later"), what="that pod to be tried again")
            assert given(qrm)["default/later"]["cpu"]["allocation_result"] == "22-25"
            assert given(qrm)["default/first"] == before
    finally:
        plugin.kill()


async def test_an_update_that_the_runtime_refuses_is_reported_and_retried(world: World):
    uid = "11111111-0000-4000-8000-000000000000"

    async with FakeRuntime(world.socket, containers=set()) as runtime:
        world.pod("default/early", uid, "online-micro_service", cpu="1")
        with world.run() as qrm:
            await eventually(lambda: runtime.refused, what="a refusal")
            failed = await eventually(lambda: qrm.state()["last_reconcile"]["failed"], what="the report of the refusal")
            assert "NOT_FOUND: no such container" in failed["default/early/container0"]
            runtime.containers.add(cri(uid))
            await eventually(lambda: runtime.updates, what="another try")
            assert qrm.get("/healthz").status == 200


async def test_inadmissible_pods_are_evicted_if_configured(world: World):
    async with FakeRuntime(world.socket, containers=set()):
        world.pod("default/large", "11111111-0000-4000-8000-000000000000", "storage-service", cpu="70")
        with world.run("evict_inadmissible = true"):
            await eventually(lambda: _ending(world, "default/large"), what="the eviction")


def _ending(world: World, name: str) -> bool:
    if name not in world.kube.names(PODS):
        return True
    return "deletionTimestamp" in world.kube.content(PODS, name)["metadata"]


def test_a_watcher_is_ignored_without_the_builtin_cpu_plugin(world: World):
    with world.run("cpu_plugin = false", 'watcher = "http://127.0.0.1:9"', mode="dry-run") as qrm:
        assert (qrm.explained()["resize"], qrm.state()["pools"]) == (None, {})
        assert "ignoring qrm.watcher: load resizes only the pools of the built-in CPU plug-in" in qrm.log()


async def test_plugins_serve_their_sockets_again_when_another_manager_empties_the_directory(world: World):
    """Katalyst's agent empties it when it starts, and then registers the sockets that it finds."""
    directory = world.directory / "socks"
    sockets = {directory / f"qrm_{name}_plugin.sock" for name in ("cpu", "memory", "nic")}

    async def register() -> None:
        for path in sorted(sockets):
            assert (await ask_info(path)).type == "ResourcePlugin"
            await notify(path, "")

    def live() -> set[bool]:
        return {plugin["live"] for plugin in qrm.state()["plugins"].values()}

    with world.run(f'registration_dir = "{directory}"', mode="server") as qrm:
        await register()
        assert live() == {True}
        for path in directory.iterdir():
            path.unlink()
        wait_for(lambda: sockets <= set(directory.iterdir()) and live() == {False}, what="the sockets")
        wait_for(lambda: qrm.log().count("serving ") == len(sockets), what="the log")
        await register()
        assert live() == {True}
        assert qrm.get("/healthz").json() == {"status": "ok", "unused": {}}
        assert 'load_watcher_qrm_manager_silent_seconds{resource="cpu"}' in qrm.get("/metrics").text


# --- starts that are refused -----------------------------------------------------------------------------------------


def refused(qrm: Qrm) -> str:
    qrm.launch()
    try:
        wait_for(lambda: not qrm.is_running(), what="the process to end")
    finally:
        qrm.kill()
    assert qrm.process is not None
    assert qrm.process.returncode == 1, qrm.log()
    return qrm.log()


def test_it_does_not_start_beside_a_kubelet_that_sets_cpusets_itself(world: World):
    put(world.directory / "kubelet", "cpu_manager_state", '{"policyName":"static","defaultCpuSet":"0-79"}')
    log = refused(world.run())
    assert "the kubelet of this node sets cpusets itself" in log
    assert (
        "configure the kubelet with cpuManagerPolicy: none, remove the file and restart the kubelet; or set qrm.force"
        in log
    )
    with world.run("force = true", mode="server", at="server") as qrm:
        assert "sets cpusets itself" in qrm.log()
        put(world.directory / "kubelet", "cpu_manager_state", '{"policyName":"none","defaultCpuSet":""}')
        wait_for(lambda: "does not set cpusets itself any more" in qrm.log(), what="the change in the log")


async def test_the_manager_pauses_while_a_kubelet_sets_cpusets_itself(world: World):
    """The kubelet replaces its state by a rename. Nothing is written while its CPU manager is enabled."""
    uid, later = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "12")
    world.pod("default/own", uid, "storage-service", cpu="4")
    state = world.directory / "kubelet" / "cpu_manager_state"
    put(world.directory / "kubelet", "cpu_manager_state", '{"policyName":"none","defaultCpuSet":""}')
    async with FakeRuntime(world.socket, containers={cri(uid), cri(later)}) as runtime:
        with world.run(RESERVED) as qrm:
            await eventually(lambda: cri(uid) in runtime.cpusets(), what="the CPUs of the pod")

            def replace(policy: str) -> None:
                put(world.directory / "kubelet", "fresh", f'{{"policyName":"{policy}","defaultCpuSet":"0-79"}}')
                (world.directory / "kubelet" / "fresh").rename(state)

            def trouble() -> str:
                return str(qrm.state()["last_reconcile"]["trouble"])

            replace("static")
            await eventually(lambda: "contains the policy static" in trouble(), what="the reason")
            world.pod("default/later", later, "storage-service", cpu="4")
            await eventually(lambda: "default/later" in given(qrm), what="the other pod")
            assert cri(later) not in runtime.cpusets()
            replace("none")
            await eventually(lambda: cri(later) in runtime.cpusets(), what="the CPUs of the other pod")
            assert qrm.log().count("sets cpusets itself") == 1
            again = "allocations are applied to containers again"
            await eventually(lambda: again in qrm.log(), what="the end of the trouble in the log")


def test_a_second_manager_on_the_node_does_not_start(world: World):
    with world.run(mode="server", at="one"):
        sockets = f'registration_dir = "{world.directory / "one" / "load-watcher-qrm" / "plugins"}"'
        assert "another load-watcher serves" in refused(world.run(sockets, mode="server", at="two"))


def test_unneeded_modules_are_not_loaded_and_unneeded_metrics_are_not_exported(world: World):
    """It runs on every node, and an always empty family of metrics looks like a fault. In dry-run, it runs beside a
    kubelet that sets cpusets, because it sets nothing; SIGTERM ends it with exit code 0."""
    put(world.directory / "kubelet", "cpu_manager_state", '{"policyName":"static","defaultCpuSet":"0-79"}')
    with world.run(mode="dry-run") as qrm:
        assert qrm.process is not None
        assert "sets cpusets itself" in qrm.log()
        maps = Path(f"/proc/{qrm.process.pid}/maps").read_text()
        reported = qrm.get("/metrics").text
        assert qrm.stop() == 0
    loaded = {part for line in maps.splitlines() for part in line.rpartition(" ")[2].split("/")}
    assert "grpc" in loaded, "the map of the process lists its libraries"
    assert not {"numpy", "sqlalchemy", "psutil", "zstandard"} & loaded
    families = {line.split()[2] for line in reported.splitlines() if line.startswith("# TYPE ")}
    own = {name for name in families if name.startswith("load_watcher_qrm_")}
    assert {"load_watcher_qrm_plugins", "load_watcher_qrm_reconcile_seconds", "load_watcher_qrm_pool_cpus"} <= own
    requests = {"load_watcher_http_requests_total", "load_watcher_http_request_duration_seconds"}
    assert "process_resident_memory_bytes" in families
    others = {name for name in families - own if not name.startswith(("process_", "python_gc_"))}
    assert others == {"load_watcher_build_info", *requests}
