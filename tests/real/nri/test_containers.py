"""Containers of a real containerd and runc: the CPUs that the kernel gives to their processes. `make containers` runs
this; it requires root and writable cgroups."""

import asyncio
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import cpuset
from agent.qrm.manager.admission import ContainerOptions
from agent.qrm.manager.allocation import DeviceNode
from agent.qrm.runtime.nri.devices import read_devices
from agent.qrm.runtime.nri.messages import adjustment, update
from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import NriSession
from tests.agent.qrm.test_main import NODE, Qrm
from tests.fakes.kube import PODS, FakeKube
from tests.real.nri.containerd import CGROUPS, Containerd, allowed_cpus
from tests.real.nri.recording import methods
from tests.real.parts import REPOSITORY
from tests.waiting import PATIENCE_SECONDS, eventually, wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

UID = "22222222-0000-4000-8000-000000000000"


@pytest.fixture
def containerd() -> Iterator[Containerd]:
    with tempfile.TemporaryDirectory(prefix="nri-") as directory:
        made = Containerd(Path(directory))
        try:
            made.start()
            made.load_image()
            yield made
        finally:
            made.close()


async def test_the_session_registers_with_containerd_and_sets_cpus(containerd: Containerd):
    """The plug-in of the recordings, with a CPU that each machine has."""
    failures: list[tuple[str, str]] = []
    session = NriSession(
        containerd.nri_socket,
        lambda: methods("1"),
        name="load-watcher",
        index="50",
        failed=lambda *what: failures.append(what),
    )
    running = asyncio.create_task(session.run())
    await eventually(lambda: not session.trouble, what="the registration")

    def run() -> tuple[str, str]:
        pod = containerd.run_pod("default/pod1", UID, {})
        id = containerd.create(pod, "default/pod1", UID, {}, container="container0")
        return containerd.spec(id)["linux"]["resources"]["cpu"]["cpus"], allowed_cpus(containerd.start_container(id))

    assert await asyncio.to_thread(run) == ("1", "1")
    assert not failures
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_container_gets_a_device_with_its_permissions_only(containerd: Containerd):
    """The rules of the spec, and with control groups of version 1 those of the kernel."""
    card = containerd.directory / "card"
    os.mknod(card, stat.S_IFCHR | 0o666, os.makedev(10, 229))
    options = ContainerOptions({}, {}, {}, devices=(DeviceNode("/dev/card", str(card), "r"),))
    devices, failed = await read_devices(options.devices)
    assert not failed

    async def create(payload: bytes) -> bytes:
        container = pb.CreateContainerRequest.FromString(payload).container
        return pb.CreateContainerResponse(adjust=adjustment(options, container, devices)).SerializeToString()

    session = NriSession(
        containerd.nri_socket,
        lambda: {**methods(), "CreateContainer": create},
        name="load-watcher",
        index="50",
        failed=lambda *_: None,
    )
    running = asyncio.create_task(session.run())
    await eventually(lambda: not session.trouble, what="the registration")

    def run() -> tuple[Any, list[str]]:
        pod = containerd.run_pod("default/pod1", UID, {})
        id = containerd.create(pod, "default/pod1", UID, {}, container="container0")
        process = containerd.start_container(id)
        groups = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{process}/cgroup").read_text().splitlines())
        rules = ["c 10:229 r"]
        if "devices" in groups:
            rules = (CGROUPS / "devices" / groups["devices"].lstrip("/") / "devices.list").read_text().splitlines()
        return containerd.spec(id)["linux"]["resources"]["devices"], [each for each in rules if "10:229" in each]

    (_, allowed, denied), rules = await asyncio.to_thread(run)
    assert (allowed["allow"], allowed["access"], denied["allow"], denied["access"]) == (True, "rw", False, "w")
    assert {(each["major"], each["minor"]) for each in (allowed, denied)} == {(10, 229)}
    assert rules == ["c 10:229 r"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_created_container_starts_with_the_cpus_of_an_update(containerd: Containerd):
    """The answer about a second container updates the first one, which has not started."""
    created: list[str] = []

    async def create(payload: bytes) -> bytes:
        answer = pb.CreateContainerResponse()
        answer.update.extend(update(id, {"CpusetCpus": "1"}, ignore_failure=True) for id in created)
        answer.adjust.linux.resources.cpu.cpus = "0"
        created.append(pb.CreateContainerRequest.FromString(payload).container.id)
        return answer.SerializeToString()

    session = NriSession(
        containerd.nri_socket,
        lambda: {**methods(), "CreateContainer": create},
        name="load-watcher",
        index="50",
        failed=lambda *_: None,
    )
    running = asyncio.create_task(session.run())
    await eventually(lambda: not session.trouble, what="the registration")

    def run() -> tuple[str, str, str]:
        pod = containerd.run_pod("default/pod1", UID, {})
        first = containerd.create(pod, "default/pod1", UID, {}, container="container0")
        containerd.create(pod, "default/pod1", UID, {}, container="container1")
        process = containerd.start_container(first)
        return containerd.spec(first)["linux"]["resources"]["cpu"]["cpus"], allowed_cpus(process), cgroup_cpus(process)

    assert await asyncio.to_thread(run) == ("1", "1", "1")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# --- load-watcher qrm, and restore -----------------------------------------------------------------------------------


def qrm(directory: Path, kube: FakeKube, containerd: Containerd, mode: str, *lines: str, min_online: int = 1) -> Qrm:
    """A manager with two pools of one CPU each, or more; with `min_online` 0, one of two CPUs can be exclusive."""
    config = f"""
[kubernetes]
kubeconfig = "{kube.kubeconfig(directory / "kubeconfig")}"
[qrm]
mode = "{mode}"
node = "{NODE}"
runtime_socket = "{containerd.socket}"
nri_socket = "{containerd.nri_socket}"
kubelet_dir = "{directory}"
reconcile_period = "200ms"
min_online = {min_online}
min_offline = 1
reserved_memory = "0"
"""
    config += "\n".join(lines)
    return Qrm(directory / "qrm", config=config)


def put_pod(kube: FakeKube, id: str = "", role: str = "ETL") -> None:
    """The pod of the container `id`, by default without a running container."""
    statuses = [{"name": "main", "containerID": f"containerd://{id}", "state": {"running": {}}}] if id else []
    requests = {"cpu": "1", "memory": "16Mi"}
    kube.put(
        PODS,
        "default/pod1",
        metadata={"uid": UID, "annotations": {"kubernetes.io/pod-role": role}},
        spec={"nodeName": NODE, "containers": [{"name": "main", "resources": {"requests": requests}}]},
        status={"phase": "Running" if id else "Pending", "qosClass": "Burstable", "containerStatuses": statuses},
    )


def environment(pid: int) -> dict[str, str]:
    """The environment of a process."""
    variables = Path(f"/proc/{pid}/environ").read_text().rstrip("\0").split("\0")
    return dict(each.split("=", 1) for each in variables)


def cgroup_cpus(pid: int) -> str:
    """cpuset.cpus of the control group of a process, in version 1 or 2."""
    groups = dict(line.split(":", 2)[1:] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    top = CGROUPS / "cpuset" if "cpuset" in groups else CGROUPS
    return (top / groups.get("cpuset", groups.get("", "")).lstrip("/") / "cpuset.cpus").read_text().strip()


def test_the_manager_sets_exclusive_cpus_and_the_environment_before_the_start(containerd: Containerd):
    """`load-watcher qrm` with the topology of this machine; a second manager after SIGKILL keeps the CPUs."""
    everything = cpuset.parse(Path("/sys/devices/system/cpu/online").read_text())
    if len(everything) < 2:
        pytest.skip("a single CPU cannot be exclusive")
    lines = ('nic_roles = ["storage-service"]', 'nics = ["eth0 numa=0 ipv6=fdbd:dc05:3:154::20"]')
    with tempfile.TemporaryDirectory(prefix="qrm-") as name, FakeKube() as kube:
        kube.node(NODE)
        manager = qrm(Path(name), kube, containerd, "nri", *lines, min_online=0)
        put_pod(kube, role="storage-service")
        with manager:
            wait_for(lambda: manager.state()["nri"]["connected"], what="the runtime")
            wait_for(lambda: manager.state()["pods"], what="the pod")
            pod = containerd.run_pod("default/pod1", UID, {"kubernetes.io/pod-role": "storage-service"})
            id = containerd.create(pod, "default/pod1", UID, {}, container="main")
            given = containerd.spec(id)["linux"]["resources"]["cpu"]["cpus"]
            process = containerd.start_container(id)
            (state,) = manager.state()["pods"]
            allocated = state["containers"]["main"]
            assert len(cpuset.parse(given)) == 1
            assert given == allocated["cpu"]["allocation_result"]
            assert (allowed_cpus(process), cgroup_cpus(process)) == (given, given)
            envs = allocated["NIC"]["envs"]
            assert "fdbd:dc05:3:154::20" in envs.values()
            assert envs.items() <= environment(process).items()
            manager.kill()
        put_pod(kube, id, role="storage-service")
        with manager:
            wait_for(lambda: manager.state()["nri"]["connected"], what="the runtime")
            wait_for(lambda: manager.state()["pods"], what="the pod")
            assert (allowed_cpus(process), cgroup_cpus(process)) == (given, given)
            assert manager.metric("qrm_nri_unpinned_total") == 0


def restore(qrm: Qrm) -> tuple[int, str]:
    """Exit code and output of `load-watcher qrm restore` with the settings and the state of a manager."""
    done = subprocess.run(
        [sys.executable, "-m", "load_watcher", "qrm", "restore", "--config", str(qrm.config_file)],
        cwd=qrm.directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("mode", ["nri", "cri"])
def test_restore_gives_a_container_all_cpus_again(containerd: Containerd, mode: str):
    """On the machine of the tests, in the kernel."""
    everything = cpuset.parse(Path("/sys/devices/system/cpu/online").read_text())
    if len(everything) < 2:
        pytest.skip("one CPU cannot be divided into two pools")
    before = allowed_cpus(os.getpid())
    with tempfile.TemporaryDirectory(prefix="qrm-") as name, FakeKube() as kube:
        directory = Path(name)
        kube.node(NODE)
        pod = containerd.run_pod("default/pod1", UID, {})
        manager = qrm(directory, kube, containerd, mode)

        def run() -> int:
            id = containerd.create(pod, "default/pod1", UID, {}, container="main")
            process = containerd.start_container(id)
            put_pod(kube, id)
            return process

        put_pod(kube)
        with manager:
            wait_for(lambda: mode != "nri" or manager.state()["nri"]["connected"], what="the runtime")
            wait_for(lambda: manager.state()["pods"], what="the pod")
            process = run()
            wait_for(lambda: cpuset.parse(allowed_cpus(process)) < everything, what="fewer CPUs")
            assert restore(manager)[0] == 1, "the manager is running"
        code, out = restore(manager)
        assert (code, cpuset.parse(allowed_cpus(process))) == (0, everything), out
        assert f"restored: CpusetCpus is {cpuset.text(everything)}" in out
        code, out = restore(manager)
        assert code == 0
        assert "restored: " not in out
        assert allowed_cpus(os.getpid()) == before
        containerd.remove_pod(pod)
        code, out = restore(manager)
        assert code == 0
        assert "has ended, nothing to restore" in out
