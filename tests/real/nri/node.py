"""A node with `load-watcher qrm` in mode nri: the machine of the proposal, an API server, and a runtime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agent.qrm.pods import ROLE_ANNOTATION
from tests.agent.qrm.test_main import NODE, Qrm, World, the_seeds_machine
from tests.fakes.kube import PODS, FakeKube
from tests.real.nri.runtime import Done, NriRuntime, oci_spec
from tests.waiting import wait_for

CONTAINER = "container0"
PLUGIN = "load-watcher"
"""The name with which the plug-in registers."""


class NriNode(World):
    """Pods are in the API server before their containers are created, as on any node."""

    def __init__(self, directory: Path, kube: FakeKube) -> None:
        super().__init__(directory, kube)
        self.annotations: dict[str, Mapping[str, str]] = {}

    @property
    def nri_socket(self) -> Path:
        """Where the runtime listens for plug-ins."""
        return self.directory / "nri.sock"

    def runtime(self, **options: Any) -> NriRuntime:
        """A runtime for this node; its plug-ins have half a second, as the tests wait for slow ones."""
        return NriRuntime(self.nri_socket, **{"timeout": 2.0, **options})

    def manage(self, *lines: str, at: str = "qrm") -> Qrm:
        """A manager with these lines in its settings."""
        return Qrm(self.directory / at, config=self.settings(*lines))

    def settings(self, *lines: str, mode: str = "nri", period: str = "200ms") -> str:
        return super().settings(f'nri_socket = "{self.nri_socket}"', *lines, mode=mode, period=period)

    def pending(self, name: str, uid: str, role: str, *, cpu: str, memory: str = "1Gi", **more: Any) -> None:
        """Put a pod without a running container into the API server; `cpu` are the requests of its containers."""
        annotations = {ROLE_ANNOTATION: role, **more.pop("annotations", {})}
        self.annotations[uid] = annotations
        requests = {"memory": memory, **more.pop("requests", {})}
        containers = [
            {"name": container_name(at), "resources": {"requests": {"cpu": size, **requests}}}
            for at, size in enumerate(cpu.split())
        ]
        self.kube.put(
            PODS,
            name,
            metadata={"uid": uid, "annotations": annotations, **more.pop("metadata", {})},
            spec={"nodeName": NODE, "containers": containers, **more},
            status={"phase": "Pending", "qosClass": "Burstable"},
        )

    def delete(self, name: str) -> None:
        """Delete a pod in the API server."""
        self.kube.delete(PODS, name)

    def create(self, runtime: NriRuntime, name: str, uid: str) -> Done:
        """Create a pod and its container in the runtime, as the kubelet does. Raises Refused."""
        runtime.run_pod(name, uid, annotations=self.annotations.get(uid, {}))
        return runtime.create(uid, container_id(uid), CONTAINER, oci_spec())


def container_id(uid: str, at: int = 0) -> str:
    """The id of a container of a pod, by its position."""
    return uid.replace("-", "").ljust(63, "0") + str(at)


def container_name(at: int) -> str:
    """The name of a container of a pod, by its position."""
    return f"{CONTAINER[:-1]}{at}"


@contextmanager
def nri_node() -> Iterator[NriNode]:
    """A node of which nothing runs yet."""
    with the_seeds_machine() as made:
        yield NriNode(made.directory, made.kube)


def wait_until_connected(qrm: Qrm) -> None:
    """Until the runtime has synchronized, and the pods of the API are known."""
    wait_for(lambda: qrm.metric("qrm_nri_connected") == 1, what="the synchronization")
    wait_for(lambda: not qrm.state()["last_reconcile"]["trouble"], what="a round after the first list of pods")


def wait_until_known(qrm: Qrm, *uids: str) -> None:
    """Wait until the manager's copy of the API server has pods."""

    def known() -> bool:
        return set(uids) <= {pod["uid"] for pod in qrm.state()["pods"]}

    wait_for(known, what=f"the manager to know {', '.join(uids)}")
