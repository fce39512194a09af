"""`load-watcher agent` in enforce mode with the settings, policies and ServiceAccount of deploy/agent: it evicts a pod,
taints its node and reports both; no request is forbidden, and each granted right is used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cgroups.paths import Driver
from tests.agent.service.test_process import AgentProcess
from tests.deploy.rendering import Manifest, settings_in
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.proc import FakeProc
from tests.real.control_plane.manifests import DEPLOY, apply_all, define_policies, delete_all, overlay
from tests.real.control_plane.objects import make_node, read, run_pod
from tests.real.control_plane.rights import granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = "load-watcher-agent/load-watcher-agent"
NODE = "agent-1"
POD = "default/agent-victim"
CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "victim", "uid": "0", "controller": True}


def policies() -> list[Manifest]:
    """The policies of deploy/agent that evict above 90 % memory, with the rule enabled and a short cool-down."""
    found = [
        policy
        for name in ("evict", "throttle")
        for policy in yaml.safe_load_all((DEPLOY / f"agent/policies/{name}.yaml").read_text())
    ]
    wanted = [each for each in found if each["metadata"]["name"] in ("memory", "evict", "best-effort")]
    for policy in wanted:
        for rule in policy["spec"].get("rules", []):
            rule["strategy"] = "None"
        if policy["kind"] == "AvoidanceAction":
            policy["spec"]["coolDownSeconds"] = 1
    return wanted


@pytest.fixture
def rendered(cluster: ApiServer) -> Iterator[list[Manifest]]:
    """deploy/agent and its policies are installed."""
    define_policies(cluster)
    found = overlay("agent")
    apply_all(cluster, [*found, *policies()])
    yield found
    delete_all(cluster, [*policies(), *found])


class Host:
    """The files of a node with 8 GB, of which a pod uses the most."""

    def __init__(self, root: Path, pod: dict[str, Any]) -> None:
        self.proc = FakeProc(root / "proc", available_kb=400_000)
        self.cgroups = FakeCgroups(root / "cgroup", "v2", Driver.SYSTEMD)
        uid = pod["metadata"]["uid"]
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        for path in (self.cgroups.pod_path(uid), self.cgroups.container_path(uid, container)):
            self.cgroups.add(path, memory=6 * 10**9)

    def end_pressure(self) -> None:
        """Let the memory be free again."""
        self.proc.available_kb = 6_000_000
        self.proc.write()


def test_the_enforcing_agent_uses_exactly_its_rights(
    cluster: ApiServer, rendered: list[Manifest], tmp_path: Path
) -> None:
    """By the audit log of the API server."""
    make_node(cluster, NODE)
    host = Host(tmp_path, run_pod(cluster, POD, node=NODE, ownerReferences=[CONTROLLER]))
    places = {"proc": host.proc.root, "cgroup": host.cgroups.root, "state_file": tmp_path / "agent.db"}
    times = {"interval": "1s", "settle": "0s"}
    given = {**places, **times, "node": NODE, "mode": "enforce"}
    access = cluster.kubeconfig(tmp_path / "kubeconfig", token=cluster.account_token(ACCOUNT))
    flags = [f"agent.{key}={value}" for key, value in given.items()] + [f"kubernetes.kubeconfig={access}"]
    arguments = [text for each in flags for text in ("--set", each)]
    with AgentProcess(tmp_path, *arguments, config=settings_in(rendered)) as agent:
        wait_for(lambda: "deletionTimestamp" in read(cluster, POD)["metadata"], what="the eviction")
        wait_for(lambda: taints(cluster), what="the taint")
        host.end_pressure()
        wait_for(lambda: not taints(cluster), what="the taint to be removed")
        wait_for(lambda: not under_pressure(cluster), what="the condition to be false")
        wait_until_used(cluster, granted(rendered, ACCOUNT), ACCOUNT)
        assert agent.stop() == 0
    assert [] == refused(cluster, ACCOUNT)
    events = cluster.ask("GET", "/api/v1/events").json()["items"]
    assert {("Pod", "Evicted"), ("Node", "PodsEvicted")} <= {
        (each["involvedObject"]["kind"], each["reason"]) for each in events
    }


def under_pressure(cluster: ApiServer) -> bool:
    """Return whether a condition of the node, other than Ready, is true."""
    conditions = read(cluster, NODE)["status"]["conditions"]
    return any(each["status"] == "True" for each in conditions if each["type"] != "Ready")


def taints(cluster: ApiServer) -> list[dict[str, Any]]:
    """Return the taints of the node."""
    found: list[dict[str, Any]] = read(cluster, NODE)["spec"].get("taints", [])
    return found
