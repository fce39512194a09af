"""A real API server with the objects of a cluster, and the accounts, rights and priority levels of deploy/."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fleet.agents import node_name
from benchmarks.fleet.processes import niced
from benchmarks.fleet.scrape import Scrape, parse
from tests.deploy.rendering import charted
from tests.modules.programs import kubernetes
from tests.real.kube import ApiServer
from tests.real.node_metric_definition import NODE_METRIC
from tests.real.parts import REPOSITORY
from tests.service import Service
from tests.waiting import wait_for
from watcher.core.koordinator.written_objects import WRITTEN
from watcher.platform.net.session import client_session
from watcher.platform.net.tls import client_context

DEPLOY = REPOSITORY / "deploy"
AT_ONCE = 32
CORES, MEMORY = 16, 64 << 30
SERVICE = ("load-watcher", "load-watcher")
AGENT = ("load-watcher-agent", "load-watcher-agent")
OTHER = ("default", "other-client")
SETTINGS = """
[refresh]
interval = "15s"

[kubernetes]
kubeconfig = "{kubeconfig}"
node_names = "on"

[koordinator]
publish = true
lease_namespace = "load-watcher"

[scheduler.default]
plugins = [{{ name = "TargetLoadPacking", weight = 1 }}]
"""
"""As those of the chart with the extender and koordinator.publish; a replayed trace replaces metrics-server."""


def node(number: int) -> dict[str, Any]:
    """A Node of 3 kB."""
    name, size = node_name(number), {"cpu": str(CORES), "memory": str(MEMORY), "pods": "110"}
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"zone-{number % 3}"}
    images = [{"names": [f"registry.example.com/app-{i}@sha256:{i:064x}"], "sizeBytes": 10**8 + i} for i in range(20)]
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "DiskPressure", "MemoryPressure")]
    status = {"capacity": size, "allocatable": size, "images": images, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def pod(number: int, *, nodes: int) -> dict[str, Any]:
    """A bound pod of 2 kB."""
    environment = [{"name": f"VARIABLE_{index}", "value": "a value of some length"} for index in range(15)]
    resources = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    container = {"name": "main", "image": "registry.example.com/app:1.2.3", "env": environment, "resources": resources}
    labels = {"app.kubernetes.io/name": f"app-{number % 200}", "pod-template-hash": f"{number % 200:010x}"}
    metadata = {"name": f"pod-{number:06d}", "labels": labels}
    return {"metadata": metadata, "spec": {"nodeName": node_name(number % nodes), "containers": [container]}}


class ControlPlane:
    """The API server with `nodes` nodes and `pods` pods. `directory` holds the kubeconfigs."""

    def __init__(self, api: ApiServer, directory: Path, *, nodes: int, pods: int) -> None:
        self.api = api
        self._directory = directory
        self._nodes = nodes
        self._pods = pods

    def fill(self) -> None:
        """Create the manifests of deploy/, the accounts, and the objects of the cluster."""
        self._apply("-f", DEPLOY / "agent" / "crds.yaml")
        self.api.define(WRITTEN, "NodeMetric", schema=NODE_METRIC)
        self.api.make("/api/v1/namespaces", metadata={"name": SERVICE[0]})
        chart = self._directory / "chart.yaml"
        values = {"scheduler": {"enabled": True}, "config": {"koordinator": {"publish": True}}}
        chart.write_text(yaml.safe_dump_all(charted(values)))
        self._apply("-f", chart)
        for directory in (DEPLOY / "agent", DEPLOY / "flowcontrol"):
            self._apply("-k", directory)
        self._make_accounts()
        asyncio.run(self._create(self._objects()))

    def _apply(self, option: str, path: Path) -> None:
        kubeconfig = self.api.kubeconfig(self._directory / "administrator")
        command: list[str | Path] = [kubernetes().directory / "kubectl", "--kubeconfig", kubeconfig, "apply"]
        command += ["--server-side", option, path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"kubectl apply {option} {path} failed: {done.stderr}")

    def _make_accounts(self) -> None:
        """The other client, with its rights; and the rights of agents that read pods and policies from the API."""
        self.api.make("/api/v1/namespaces/default/serviceaccounts", metadata={"name": OTHER[1]})
        everything = [{"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]}]
        policies = [{"apiGroups": ["load-watcher.io"], "resources": ["*"], "verbs": ["list", "watch"]}]
        pods = [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}]
        budget = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}]
        for account, rules in ((OTHER, everything), (AGENT, [*policies, *pods, *budget])):
            name = f"benchmark-{account[1]}"
            path = "/apis/rbac.authorization.k8s.io/v1"
            self.api.make(f"{path}/clusterroles", metadata={"name": name}, rules=rules)
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
            subject = {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
            self.api.make(f"{path}/clusterrolebindings", metadata={"name": name}, roleRef=role, subjects=[subject])

    def kubeconfig(self, account: tuple[str, str]) -> Path:
        """Write a kubeconfig with a token of a ServiceAccount (namespace and name)."""
        namespace, name = account
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        token = self.api.make(path, spec={"expirationSeconds": 6 * 3600})["status"]["token"]
        return self.api.kubeconfig(self._directory / name, token=token)

    def _objects(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for number in range(self._nodes):
            yield "/api/v1/nodes", node(number)
        for number in range(self._pods):
            yield "/api/v1/namespaces/default/pods", pod(number, nodes=self._nodes)

    async def _create(self, objects: Iterator[tuple[str, Mapping[str, Any]]]) -> None:
        """Create objects with AT_ONCE requests at a time."""
        tls = client_context(ca_file=self.api.directory / "ca.pem")
        headers = {"Authorization": f"Bearer {self.api.token}"}
        async with client_session(tls=tls, headers=headers) as session:

            async def work() -> None:
                for path, content in objects:
                    async with session.post(self.api.url + path, json=content) as response:
                        if response.status != 201:
                            raise RuntimeError(f"{path}: {response.status} {await response.text()}")

            await asyncio.gather(*(work() for _ in range(AT_ONCE)))

    def scrape(self) -> Scrape:
        """The API server's metrics now."""
        return parse(self.api.ask("GET", "/metrics").text, time=time.time())

    def restart(self, *, outage: float) -> tuple[float, float]:
        """Kill the API server, discard etcd's history, and start the server again after `outage` seconds. Returns the
        times (monotonic) at which it was launched and ready."""
        self.api.kill()
        self.api.etcd.compact()
        time.sleep(outage)
        launched = time.monotonic()
        self.api.start()
        return launched, time.monotonic()


class FleetService(Service):
    """`load-watcher serve` with the extender and the publishing of NodeMetrics, on the nodes of the cluster."""

    def __init__(self, directory: Path, kubeconfig: Path, *, nodes: int) -> None:
        directory.mkdir()
        trace = directory / "trace.csv"
        lines = ["time,record,node,cpu,memory"]
        for number in range(nodes):
            name = node_name(number)
            load = 0.1 + 0.8 * ((number * 37) % 100) / 100
            lines += [
                f"1700000000,node,{name},{CORES},{MEMORY}",
                f"1700000000,load,{name},{load * CORES:.2f},{int(load * MEMORY)}",
            ]
        trace.write_text("\n".join([*lines, "1700086400,end,,,", ""]))
        config = SETTINGS.format(kubeconfig=kubeconfig)
        super().__init__(directory, "--provider", "replay", "--trace", str(trace), config=config)

    def command(self) -> Sequence[str | Path]:
        return niced(super().command())

    def knows(self, name: str) -> bool:
        """Whether the extender's table has this node."""
        return self.get(f"/scheduler/default/nodes/{name}").status == 200

    def wait_known(self, name: str, *, timeout: float) -> float:
        """Wait until the extender's table has this node, and return the time (monotonic)."""
        wait_for(lambda: self.knows(name), what=f"the service to know {name}", timeout=timeout)
        return time.monotonic()
