"""The brake of the agents (key `enforcement` of the ConfigMap agent-control) when manifests are applied again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.rendering import only
from tests.real.control_plane.manifests import overlay
from tests.real.kube import ApiServer, find_kube_program

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

CONTROL = "/api/v1/namespaces/load-watcher-agent/configmaps/agent-control"
WAYS = {"client-side": (), "server-side": ("--server-side", "--force-conflicts")}
LIMITS = {"evictions-per-minute": "5", "nodes-at-once": "5%"}


class BrakeKubectl:
    """kubectl with a kubeconfig of the API server, which applies the agents' ConfigMap in one way."""

    def __init__(self, cluster: ApiServer, directory: Path, way: str) -> None:
        self._cluster = cluster
        self._directory = directory
        self.options = WAYS[way]
        self._config = cluster.kubeconfig(directory / "kubeconfig")

    def run(self, *arguments: str | Path) -> None:
        """Run a command; a failure fails the test."""
        command = [find_kube_program("kubectl"), "--kubeconfig", self._config, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    def apply(self, **more: str) -> None:
        """Apply the ConfigMap of deploy/agent, with further keys as an earlier version had them."""
        manifest = only(overlay("agent"), "ConfigMap", "agent-control")
        manifest["data"] |= more
        file = self._directory / "control.yaml"
        file.write_text(yaml.safe_dump(manifest))
        self.run("apply", *self.options, "-f", file)

    def brake(self, value: str) -> None:
        """Set the brake as docs/concepts/agent-safety.md describes it."""
        patch = f'{{"data":{{"enforcement":"{value}"}}}}'
        self.run("-n", "load-watcher-agent", "patch", "configmap", "agent-control", "--type", "merge", "-p", patch)

    def data(self) -> dict[str, str]:
        """What the agents read."""
        found: dict[str, str] = self._cluster.ask("GET", CONTROL).json()["data"]
        return found


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kubectl(cluster: ApiServer, tmp_path: Path, way: str) -> Iterator[BrakeKubectl]:
    cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "load-watcher-agent"}})  # 409 if it exists
    yield BrakeKubectl(cluster, tmp_path, way)
    cluster.ask("DELETE", CONTROL)


def test_the_brake_stays_when_the_manifests_are_applied_again(kubectl: BrakeKubectl) -> None:
    """As a GitOps tool does after each change, and when it corrects drift."""
    kubectl.apply()
    assert LIMITS == kubectl.data()
    for value in ("off", "restore"):
        kubectl.brake(value)
        kubectl.apply()
        assert {**LIMITS, "enforcement": value} == kubectl.data()


def test_after_an_upgrade_from_manifests_that_set_the_brake_it_must_be_set_again(
    kubectl: BrakeKubectl, way: str
) -> None:
    """Client-side apply removes the key once, because the last applied configuration had it;
    docs/concepts/agent-safety.md says to set the brake again. Server-side apply leaves it, because
    the patch made it a field of another manager."""
    kubectl.apply(enforcement="on")
    kubectl.brake("off")
    kubectl.apply()
    expected = {} if way == "client-side" else {"enforcement": "off"}
    assert {**LIMITS, **expected} == kubectl.data()
    kubectl.brake("off")
    kubectl.apply()
    assert {**LIMITS, "enforcement": "off"} == kubectl.data()


def test_the_policies_are_applied_where_kustomize_sets_a_namespace(
    cluster: ApiServer, kubectl: BrakeKubectl, tmp_path: Path
) -> None:
    """kustomize adds it to these cluster-scoped objects too, if the component is listed in deploy/agent itself."""
    policies = tmp_path / "policies.yaml"
    text = (Path(__file__).parents[3] / "deploy/components/agent-node-restriction/policies.yaml").read_text()
    found = [each | {"metadata": {**each["metadata"], "namespace": "x"}} for each in yaml.safe_load_all(text)]
    policies.write_text(yaml.safe_dump_all(found))
    try:
        for _ in range(2):
            kubectl.run("apply", *kubectl.options, "-f", policies)
    finally:
        kubectl.run("delete", "--ignore-not-found", "-f", policies)
