"""Kubernetes' own command line with the fake server: an independent client checks that the fake behaves like an API
server.

It also checks load-watcher's client, which changes the same objects.
"""

import asyncio
import json
import os
import ssl
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.fakes.kube import BUDGETS, NODES, PODS, FakeKube
from tests.real.kube import find_kube_program
from tests.waiting import wait_for
from watcher.core.kubernetes.objects import NODES as NODE_RESOURCE
from watcher.core.kubernetes.objects import PODS as POD_RESOURCE
from watcher.core.kubernetes.objects import Taint
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access
from watcher.platform.kube.node_changes import add_taint, remove_taint

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

METRICS = "slo.koordinator.sh/v1alpha1/nodemetrics"


class Kubectl:
    """kubectl for one server, with its own home directory."""

    def __init__(self, server: FakeKube, directory: Path, authority: trustme.CA) -> None:
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        self.server = server
        self.config = server.kubeconfig(directory / "config", **{"certificate-authority": str(directory / "ca.pem")})
        self._directory = directory
        self._program = find_kube_program("kubectl")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start a command."""
        flags = [f"--kubeconfig={self.config}", f"--cache-dir={self._directory / 'cache'}"]
        return subprocess.Popen(
            [str(self._program), *flags, *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(self._directory)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def fails(self, *arguments: str) -> str:
        """The error output of a command that fails."""
        process = self.start(*arguments)
        _, errors = process.communicate(timeout=100)
        assert process.returncode == 1, errors
        return errors

    def __call__(self, *arguments: str) -> str:
        """The output of a command."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        return output.strip()

    def ask(self, question: Callable[[KubeClient], Awaitable[Any]]) -> Any:
        """The result of load-watcher's client with the same kubeconfig."""

        async def inside() -> Any:
            client = KubeClient(lambda: find_access(kubeconfig=self.config, environ={}), timeout=30.0)
            try:
                return await question(client)
            finally:
                await client.close()

        return asyncio.run(inside())


@pytest.fixture
def kubectl(tmp_path: Path) -> Iterator[Kubectl]:
    """kubectl with an API of two nodes and three pods, over TLS, without which kubectl sends no token."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    with FakeKube(tls=tls, kubelet=True) as server:
        server.node("node-1", metadata={"labels": {"zone": "a"}})
        server.node("node-2")
        server.pod("shop/web-0", node="node-1", metadata={"labels": {"app": "web"}})
        server.pod("shop/web-1", node="node-2", metadata={"labels": {"app": "web"}})
        server.pod("batch", node="node-1")
        yield Kubectl(server, tmp_path, authority)


def test_both_clients_list_and_select_the_same(kubectl: Kubectl):
    """By namespace, label, field, and in pages."""
    listed = kubectl.ask(lambda client: client.list(POD_RESOURCE, page=2)).items
    names = [f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in listed]
    template = "{range .items[*]}{.metadata.namespace}/{.metadata.name} {end}"
    assert names == kubectl("get", "pods", "-A", "--chunk-size=2", f"-o=jsonpath={template}").split()
    selectors = ["-l", "app in (web),!tier", "--field-selector", "spec.nodeName=node-1,status.phase!=Failed"]
    assert "pod/web-0" == kubectl("get", "pods", "-n", "shop", "-o", "name", *selectors)
    assert "node-1" in kubectl("get", "nodes", "-l", "zone=a")


def test_both_clients_keep_the_taints_of_the_other(kubectl: Kubectl):
    kubectl("taint", "node", "node-1", "gpu=yes:NoSchedule")
    ours = Taint("interference.crane.io", "PreferNoSchedule")
    assert kubectl.ask(lambda client: add_taint(client, "node-1", ours))
    both = json.loads(kubectl("get", "node", "node-1", "-o", "jsonpath={.spec.taints}"))
    assert ["gpu", "interference.crane.io"] == [taint["key"] for taint in both]
    kubectl("taint", "node", "node-1", "gpu:NoSchedule-")
    (left,) = kubectl.ask(lambda client: client.get(NODE_RESOURCE, "node-1")).spec.taints
    assert ours == left
    assert kubectl.ask(lambda client: remove_taint(client, "node-1", key=ours.key, effect=ours.effect))


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("json", '[{"op": "add", "path": "/metadata/labels/new", "value": "1"}]'),
        ("merge", '{"metadata": {"labels": {"new": "1"}}}'),
        ("strategic", '{"metadata": {"labels": {"new": "1"}}}'),
    ],
)
def test_patches_of_each_kind(kubectl: Kubectl, kind: str, patch: str):
    kubectl("patch", "node", "node-1", f"--type={kind}", f"--patch={patch}")
    assert {"zone": "a", "new": "1"} == kubectl.server.content(NODES, "node-1")["metadata"]["labels"]


def test_a_drain_evicts_the_pods_of_the_node(kubectl: Kubectl):
    """It waits until each pod is deleted, and does not change others."""
    kubectl("drain", "node-1", "--force", "--timeout=60s")
    assert {"shop/web-1"} == kubectl.server.names(PODS)
    assert kubectl.server.content(NODES, "node-1")["spec"]["unschedulable"]
    assert 2 == sum(asked.resource == "v1/pods/eviction" for asked in kubectl.server.asked)


def test_a_budget_delays_a_drain(kubectl: Kubectl):
    """kubectl reports the reason."""
    budget = {"spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"disruptionsAllowed": 0}}
    kubectl.server.put(BUDGETS, "shop/web", **budget)
    errors = kubectl.fails("drain", "node-1", "--force", "--timeout=3s")
    assert "Cannot evict pod as it would violate the pod's disruption budget" in errors
    assert "shop/web-0" in kubectl.server.names(PODS)


def test_a_watch_reports_changes(kubectl: Kubectl):
    """First the existing objects, then each change."""
    process = kubectl.start("get", "pods", "-n", "shop", "-w", "--no-headers", "-o", "name")
    assert process.stdout is not None
    try:
        assert ["pod/web-0\n", "pod/web-1\n"] == [process.stdout.readline() for _ in range(2)]
        wait_for(lambda: any(each.verb == "watch" for each in kubectl.server.asked), what="the watch", timeout=60)
        kubectl.server.pod("shop/web-2", node="node-2")
        kubectl.server.pod("other", node="node-2")
        kubectl.server.pod("shop/web-3", node="node-2")
        assert ["pod/web-2\n", "pod/web-3\n"] == [process.stdout.readline() for _ in range(2)]
    finally:
        process.kill()
        process.communicate()


def test_a_custom_resource_is_found_by_its_name(kubectl: Kubectl):
    """By discovery."""
    kubectl.server.define(METRICS, "NodeMetric")
    kubectl.server.put(METRICS, "node-1", spec={"seconds": 60})
    name = "nodemetrics.slo.koordinator.sh"  # metrics-server's kind has the same name without its group
    assert "60" == kubectl("get", name, "node-1", "-o", "jsonpath={.spec.seconds}")


def test_kubectl_top_shows_the_usage_of_nodes(kubectl: Kubectl):
    """It reads metrics-server's API."""
    for node in ("node-1", "node-2"):
        kubectl.server.usage(node, time="2026-11-21T10:00:00Z", cpu="1", memory="2Gi")
    assert ["node-1", "1000m", "25%", "2048Mi", "25%"] == kubectl("top", "nodes").splitlines()[1].split()


def test_refusals_are_reported(kubectl: Kubectl):
    """With their meaning."""
    kubectl.server.forbidden.add(("list", NODES))
    assert 'Error from server (NotFound): pods "nope" not found' in kubectl.fails("get", "pod", "-n", "shop", "nope")
    assert "Error from server (Forbidden)" in kubectl.fails("get", "nodes")
    assert "field label not supported: spec.x" in kubectl.fails("get", "pods", "--field-selector=spec.x=1")
    kubectl.server.token = "another"
    assert "Unauthorized" in kubectl.fails("get", "pod", "-n", "shop", "web-0")
