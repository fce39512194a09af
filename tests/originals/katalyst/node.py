"""A node with processes of both sides: machine, pods (in a file and in an API server), and container runtime."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.store.checkpoint import decode
from tests.agent.qrm.plugins.test_sysfs import as_files, put
from tests.agent.qrm.test_main import Qrm, cri
from tests.fakes.cri import FakeRuntime
from tests.fakes.kube import PODS, FakeKube
from tests.waiting import wait_for

NODE = "node-1"
CONTAINER = "main"
RECLAIMED = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
PREFIX = "katalyst.kubewharf.io"
CORES = 8
"""Cores of each of the two sockets. A socket is a NUMA node, and a core has the threads i and i + all cores."""
PODS_AT_MOST = 20
STOP_S = 10.0


def uid(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


def level(name: str, **memory: str) -> dict[str, str]:
    """Annotations with a QoS level and memory enhancements."""
    enhancement = {f"{PREFIX}/memory_enhancement": json.dumps(memory)} if memory else {}
    return {f"{PREFIX}/qos_level": name, **enhancement}


EXCLUSIVE = level("dedicated_cores", numa_binding="true", numa_exclusive="true")


def topology() -> CpuTopology:
    """The machine of the node, with 64 GiB on each NUMA node."""
    cpus = {}
    for cpu in range(4 * CORES):
        core = cpu % (2 * CORES)
        node = core // CORES
        cpus[cpu] = LogicalCpu(cpu, core, node, node, node)
    return CpuTopology(cpus, {0: 64 << 30, 1: 64 << 30})


def computer(machine: CpuTopology) -> dict[str, Any]:
    """The machine for the Go program."""
    cpus = [{"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "numa": cpu.numa} for cpu in machine.cpus.values()]
    return {"cpus": cpus, "memory": [machine.memory[node] for node in sorted(machine.memory)]}


class KatalystProcess:
    """A running service of the Go program; its output goes to a file."""

    def __init__(self, program: Path, log: Path, command: str, **flags: Any) -> None:
        self._command = [str(program), command, *(f"-{name.replace('_', '-')}={flags[name]}" for name in flags)]
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process with a signal; SIGKILL if it is still running after STOP_S seconds."""
        self._process.send_signal(number)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class KatalystNode:
    """A machine with two NUMA nodes. All files and sockets are in `directory`, which has a short path."""

    def __init__(self, directory: Path, kube: FakeKube, runtime: FakeRuntime, program: Path) -> None:
        self.directory, self.kube, self.runtime, self._program = directory, kube, runtime, program
        self._pods: dict[str, dict[str, Any]] = {}
        machine = topology()
        as_files(directory / "sys", machine)
        for node, size in machine.memory.items():
            meminfo = f"Node {node} MemTotal: {size >> 10} kB"
            put(directory / "sys", f"devices/system/node/node{node}/meminfo", meminfo)
        self.machine = directory / "machine.json"
        self.machine.write_text(json.dumps(computer(machine)))
        self.sockets.mkdir()
        self._write_pods()

    @property
    def sockets(self) -> Path:
        return self.directory / "socks"

    @property
    def pods_file(self) -> Path:
        return self.directory / "pods.json"

    @property
    def pod_resources(self) -> Path:
        return self.directory / "pr.sock"

    # --- pods --------------------------------------------------------------------------------------------------------

    def add(self, number: int, name: str, requests: Mapping[str, str], *, init: bool = False, **more: Any) -> None:
        """A running pod in the namespace default. `more` are parts of its metadata, or its `qos` class."""
        resources = {"requests": dict(requests)}
        qos = more.pop("qos", "Burstable")
        if qos == "Guaranteed":
            resources["limits"] = dict(requests)
        metadata = {"uid": uid(number), "labels": {}, "annotations": {}, **more}
        spec: dict[str, Any] = {"nodeName": NODE, "containers": [{"name": CONTAINER, "resources": resources}]}
        if init:
            spec["initContainers"] = [{"name": "init", "resources": resources}]
        status = {"name": CONTAINER, "containerID": f"containerd://{cri(uid(number))}", "state": {"running": {}}}
        self._pods[name] = {
            "metadata": {"namespace": "default", "name": name, **metadata},
            "spec": spec,
            "status": {"phase": "Running", "qosClass": qos, "containerStatuses": [status]},
        }
        self._write_pods()
        added = self._pods[name]
        self.kube.put(PODS, f"default/{name}", metadata=metadata, spec=spec, status=added["status"])

    def remove(self, name: str) -> None:
        del self._pods[name]
        self._write_pods()
        self.kube.delete(PODS, f"default/{name}")

    def _write_pods(self) -> None:
        new = self.pods_file.with_suffix(".new")
        new.write_text(json.dumps(list(self._pods.values())))
        new.replace(self.pods_file)

    # --- processes ---------------------------------------------------------------------------------------------------

    def load_watcher(self, *lines: str, mode: str) -> Qrm:
        """A `load-watcher qrm` whose plug-ins, or manager, use the directory of sockets; `lines` are in [qrm]."""
        text = [
            "[kubernetes]",
            f'kubeconfig = "{self.kube.kubeconfig(self.directory / "kubeconfig")}"',
            "[qrm]",
            f'mode = "{mode}"',
            f'node = "{NODE}"',
            f'runtime_socket = "{self.runtime.path}"',
            f'sys = "{self.directory / "sys"}"',
            f'kubelet_dir = "{self.directory / "kubelet"}"',
            f'cgroup = "{self.directory / "cgroup"}"',
            f'registration_dir = "{self.sockets}"',
            f'state_dir = "{self.directory / "state"}"',
            f'pod_resources_socket = "{self.pod_resources}"',
            'reconcile_period = "500ms"',
            *lines,
        ]
        return Qrm(self.directory / "qrm", config="\n".join(text))

    @contextlib.contextmanager
    def katalyst(self, command: str, **flags: Any) -> Iterator[KatalystProcess]:
        log = self.directory / f"{command}.log"
        process = KatalystProcess(self._program, log, command, machine=self.machine, pods=self.pods_file, **flags)
        try:
            yield process
        finally:
            process.stop()

    def ask(self, command: str, **flags: Any) -> Any:
        """The JSON that a command of the Go program prints."""
        arguments = [f"-{name.replace('_', '-')}={flags[name]}" for name in flags]
        done = subprocess.run([str(self._program), command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-600:]
        return json.loads(done.stdout)

    def plugin_sockets(self) -> set[tuple[str, int]]:
        """Names and times of creation of the sockets of load-watcher's plug-ins."""
        return {(path.name, path.stat().st_mtime_ns) for path in self.sockets.glob("qrm_*.sock") if path.is_socket()}

    # --- files of both sides -----------------------------------------------------------------------------------------

    def katalyst_allocations(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The allocations in the checkpoint of Katalyst's manager, by pod UID and resource; empty without one."""
        try:
            entries = self.ask("checkpoint", file=self.sockets / "kubelet_qrm_checkpoint")
        except AssertionError:  # no checkpoint yet, or just being written
            return {}
        return {(entry["pod"], entry["resource"]): entry["info"] for entry in entries if entry["container"] != "init"}

    def checkpoint(self, path: Path) -> list[Any]:
        """The allocations in a checkpoint, read by load-watcher."""
        return list(decode(path.read_bytes()))


@contextlib.contextmanager
def katalyst_node(program: Path) -> Iterator[KatalystNode]:
    # The path of a unix socket has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="lwk-") as name, FakeKube() as kube:
        kube.node(NODE)
        directory = Path(name)
        with _running_runtime(directory / "cri.sock") as runtime:
            yield KatalystNode(directory, kube, runtime, program)


@contextlib.contextmanager
def _running_runtime(path: Path) -> Iterator[FakeRuntime]:
    """A container runtime in a thread with its own event loop."""
    runtime = FakeRuntime(path, containers={cri(uid(number)) for number in range(PODS_AT_MOST)}, cpus="0-31")
    ended = threading.Event()

    async def serve() -> None:
        async with runtime:
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        wait_for(path.exists, what="the container runtime")
        yield runtime
    finally:
        ended.set()
        thread.join()
