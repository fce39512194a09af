"""`load-watcher agent` with the settings, policies and ServiceAccount of deploy/agent: in enforce mode it evicts a pod,
taints its node and reports both. No request is forbidden, and each granted right is used."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.cgroups.paths import Driver
from agent.policy.schema import CRANE_GROUP, GROUPS, VERSION
from tests.agent.service.test_process import AgentProcess
from tests.deploy.rendering import Manifest, charted, composed, settings_in
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.proc import FakeProc
from tests.real.control_plane.manifests import DEPLOY, apply_all, define_policies, delete_all, overlay
from tests.real.control_plane.objects import end_pod, make_node, read, run_pod
from tests.real.control_plane.rights import Right, granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

ACCOUNT = "load-watcher-agent/load-watcher-agent"
NODE = "agent-1"
POD = "default/agent-victim"
FROM_API = {
    "enabled": True,
    "nodeRestriction": True,
    "apiPolicies": True,
    "config": {"agent": {"mode": "enforce", "pods": "api"}},
}
"""Values of the chart for an enforcing agent that reads pods and policies from the API."""
OF_THE_KUBELET = Right("get", "", "nodes/pods")
"""Checked by the kubelet, which asks the API server in its own name."""
DAEMON = "default/agent-daemon"
OF_DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "none", "uid": "0", "controller": True}
CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "victim", "uid": "0", "controller": True}


def policies() -> list[Manifest]:
    """The policies of deploy/agent that evict above 90 % memory, with the rule enabled and a short cool-down. The
    action is of Crane's API group."""
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
            policy["apiVersion"] = f"{CRANE_GROUP}/{VERSION}"
    return wanted


@pytest.fixture(scope="module", autouse=True)
def definitions(cluster: ApiServer) -> None:
    """The policy definitions of both API groups are installed."""
    for group in GROUPS:
        define_policies(cluster, group=group)


class Host:
    """The files of a node with 8 GB, of which a pod uses the most."""

    def __init__(self, root: Path, pod: dict[str, Any]) -> None:
        self.root = root
        self.proc = FakeProc(root / "proc", available_kb=400_000)
        self.cgroups = FakeCgroups(root / "cgroup", "v2", Driver.SYSTEMD)
        uid = pod["metadata"]["uid"]
        container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        for path in (self.cgroups.pod_path(uid), self.cgroups.container_path(uid, container)):
            self.cgroups.add(path, memory=6 * 10**9)
        self.places = {"proc": self.proc.root, "cgroup": self.cgroups.root, "state_file": root / "agent.db"}

    def write_policies(self) -> Path:
        """Write the policies as files; return their directory."""
        directory = self.root / "policies"
        directory.mkdir()
        (directory / "all.yaml").write_text(yaml.safe_dump_all(policies()))
        return directory

    def flags(self, cluster: ApiServer, **settings: object) -> list[str]:
        """Return the settings of an agent on this host, with a token of its ServiceAccount, as command line flags."""
        access = cluster.kubeconfig(self.root / "kubeconfig", token=cluster.account_token(ACCOUNT, node=NODE))
        given = {"node": NODE, **self.places, **settings}
        flags = [f"agent.{key}={value}" for key, value in given.items()] + [f"kubernetes.kubeconfig={access}"]
        return [text for each in flags for text in ("--set", each)]

    def end_pressure(self) -> None:
        """Let the memory be free again."""
        self.proc.available_kb = 6_000_000
        self.proc.write()


@pytest.mark.parametrize("of_api", [False, True], ids=["kubelet-and-files", "api-pods-and-policies"])
def test_the_enforcing_agent_uses_exactly_its_rights(cluster: ApiServer, tmp_path: Path, of_api: bool) -> None:
    """By the audit log of the API server; with pods and policies from the node, and from the API. The
    ValidatingAdmissionPolicies of its token refuse nothing that it does."""
    if of_api:
        rendered = agents_of(charted({"agent": FROM_API}, namespace="load-watcher-agent"))
    else:
        rendered = composed(tmp_path, DEPLOY / "agent", "agent-enforce", "agent-node-restriction")
    apply_all(cluster, [*rendered, *policies()])
    make_node(cluster, NODE)
    pod = run_pod(cluster, POD, node=NODE, ownerReferences=[CONTROLLER])
    run_pod(cluster, DAEMON, node=NODE, ownerReferences=[OF_DAEMON_SET])
    before = len(cluster.audited(ACCOUNT))
    try:
        host = Host(tmp_path, pod)
        with FakeKubelet([] if of_api else [pod]) as kubelet:
            sources = {} if of_api else {"kubelet": kubelet.url, "policies": host.write_policies()}
            with start(cluster, rendered, host, **sources) as agent:
                wait_for(lambda: "deletionTimestamp" in read(cluster, POD)["metadata"], what="the eviction")
                wait_for(lambda: taints(cluster), what="the taint")
                host.end_pressure()
                wait_for(lambda: not taints(cluster), what="the taint to be removed")
                wait_for(lambda: not under_pressure(cluster), what="the condition to be false")
                rights = granted(rendered, ACCOUNT) - {OF_THE_KUBELET}
                wait_until_used(cluster, rights, ACCOUNT, since=before)
                assert agent.stop() == 0
        assert [] == refused(cluster, ACCOUNT, since=before)
        events = cluster.ask("GET", "/api/v1/events").json()["items"]
        assert {("Pod", "Evicted"), ("Node", "PodsEvicted")} <= {
            (each["involvedObject"]["kind"], each["reason"]) for each in events
        }
    finally:
        end_pod(cluster, POD)
        end_pod(cluster, DAEMON)
        cluster.ask("DELETE", f"/api/v1/nodes/{NODE}")
        delete_all(cluster, [*policies(), *rendered])


def test_the_agent_in_preview_uses_exactly_its_rights(cluster: ApiServer, tmp_path: Path) -> None:
    """It decides to evict, and changes nothing."""
    rendered = overlay("agent")
    apply_all(cluster, rendered)
    make_node(cluster, NODE)
    pod = run_pod(cluster, POD, node=NODE, ownerReferences=[CONTROLLER])
    before = len(cluster.audited(ACCOUNT))
    try:
        host = Host(tmp_path, pod)
        files = host.write_policies()
        with (
            FakeKubelet([pod]) as kubelet,
            start(cluster, rendered, host, kubelet=kubelet.url, policies=files) as run,
        ):
            wait_for(lambda: "would evict" in run.get("/explain").text, what="the decision")
            wait_until_used(cluster, granted(rendered, ACCOUNT) - {OF_THE_KUBELET}, ACCOUNT, since=before)
        assert [] == refused(cluster, ACCOUNT, since=before)
        assert {"get", "list", "watch"} >= {each.verb for each in cluster.audited(ACCOUNT)[before:]}
    finally:
        end_pod(cluster, POD)
        cluster.ask("DELETE", f"/api/v1/nodes/{NODE}")
        delete_all(cluster, rendered)


def test_restoring_uses_exactly_its_rights(cluster: ApiServer, tmp_path: Path) -> None:
    """deploy/agent-restore replaces the agents, here one that was killed, and removes the taint of the node."""
    (tmp_path / "enforcing").mkdir()
    enforcing = composed(tmp_path / "enforcing", DEPLOY / "agent", "agent-enforce", "agent-node-restriction")
    restoring = overlay("agent-restore")
    apply_all(cluster, enforcing)
    make_node(cluster, NODE)
    pod = run_pod(cluster, POD, node=NODE, ownerReferences=[CONTROLLER])
    try:
        host = Host(tmp_path, pod)
        files = host.write_policies()
        with FakeKubelet([pod]) as kubelet, start(cluster, enforcing, host, kubelet=kubelet.url, policies=files) as run:
            wait_for(lambda: taints(cluster), what="the taint")
            run.kill()
        apply_all(cluster, restoring)
        before = len(cluster.audited(ACCOUNT))
        (daemons,) = (each for each in restoring if each["kind"] == "DaemonSet")
        (container,) = daemons["spec"]["template"]["spec"]["initContainers"]
        command = [sys.executable, "-m", "load_watcher", *container["args"], *host.flags(cluster)]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert not taints(cluster)
        wait_until_used(cluster, granted(restoring, ACCOUNT), ACCOUNT, since=before)
        assert [] == refused(cluster, ACCOUNT, since=before)
    finally:
        end_pod(cluster, POD)
        cluster.ask("DELETE", f"/api/v1/nodes/{NODE}")
        delete_all(cluster, enforcing)


def agents_of(chart: list[Manifest]) -> list[Manifest]:
    """What the chart renders for the agents, and their namespace."""
    name = "load-watcher-agent"
    own = [each for each in chart if each["metadata"]["labels"]["app.kubernetes.io/name"] == name]
    return [*(each for each in overlay("agent") if each["kind"] == "Namespace"), *own]


def start(cluster: ApiServer, rendered: list[Manifest], host: Host, **settings: object) -> AgentProcess:
    """The agent with the settings and environment of its DaemonSet, on the files of a host."""
    (daemons,) = (each for each in rendered if each["kind"] == "DaemonSet")
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    literal = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    env = {name: value for name, value in literal.items() if name.startswith("LOAD_WATCHER_AGENT_")}
    return AgentProcess(
        host.root, *host.flags(cluster, interval="1s", settle="0s", **settings), config=settings_in(rendered), env=env
    )


def under_pressure(cluster: ApiServer) -> bool:
    """Return whether a condition of the node, other than Ready, is true."""
    conditions = read(cluster, NODE)["status"]["conditions"]
    return any(each["status"] == "True" for each in conditions if each["type"] != "Ready")


def taints(cluster: ApiServer) -> list[dict[str, Any]]:
    """Return the taints of the node."""
    found: list[dict[str, Any]] = read(cluster, NODE)["spec"].get("taints", [])
    return found
