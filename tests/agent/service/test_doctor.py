"""The doctor's lines about a node agent that does not run. (test_process.py has those about a running one.)"""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.cgroups.detection import find_layout, top_of
from agent.cgroups.paths import Driver
from agent.executor.other_agents import CgroupLock
from tests.agent.policy.writing import API, CRANE_API, node_qos, text_of, throttling, write
from tests.doctor import Reported, doctor
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.kube import CONFIG_MAPS, FakeKube
from tests.fakes.kubelet import FakeKubelet, pod
from tests.fakes.proc import FakeProc
from tests.fakes.prometheus import FakePrometheus, responded, result

pytestmark = pytest.mark.slow

RUNNING, CONTAINER = "0000000a-0000-4000-8000-000000000000", "c" * 64


@dataclass
class Place:
    """A node of files with settings for an agent."""

    root: Path
    cgroups: FakeCgroups
    port: int

    def responded(self, *arguments: str, **more: object) -> Reported:
        """The doctor's lines; `more` are settings of the agent."""
        given: Mapping[str, object] = {
            "proc": self.root / "proc",
            "cgroup": self.cgroups.root,
            "policies": self.root / "policies",
            "port": self.port,
            "node": "node-1",
            **more,
        }
        flags = [text for name, value in given.items() if value for text in ("--set", f"agent.{name}={value}")]
        return doctor("--only", "agent", *flags, *arguments)


@pytest.fixture
def nobody() -> Iterator[int]:
    """A used port on which no server responds."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(params=["v1", "v2"])
def place(tmp_path: Path, nobody: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    FakeProc(tmp_path / "proc")
    cgroups = FakeCgroups(tmp_path / "cgroup", request.param)
    cgroups.add(cgroups.pod_path(RUNNING))
    cgroups.add(cgroups.container_path(RUNNING, CONTAINER))
    (top,) = {path for path in cgroups.root.rglob("kubepods.slice") if path.parent.name in ("cgroup", "cpu")}
    name = "cpu.max" if request.param == "v2" else "cpu.cfs_quota_us"
    (top / name).write_text("max 100000\n" if request.param == "v2" else "-1\n")
    (tmp_path / "policies").mkdir()
    write(tmp_path / "policies", all=text_of(node_qos(), throttling()))
    return Place(tmp_path, cgroups, nobody)


def test_a_complete_node_has_no_findings(place: Place):
    found = place.responded()
    assert found.exit_code == 0, found
    assert {line.name for line in found.lines} == {"settings", "agent"}
    found.one("agent", "skipped", f"no agent responds at http://127.0.0.1:{place.port}", "preview")
    found.one("agent", "ok", "the policies are valid", "read: 2")
    found.one("agent", "skipped", "rights are not checked: no Kubernetes API is configured")
    found.one("agent", "ok", f"control groups of {place.cgroups.version}", "quotas can be set")
    found.one("agent", "ok", "no koordlet or crane-agent")


def test_invalid_and_missing_policies(place: Place):
    write(place.root / "policies", more=text_of(node_qos(name="other", wrong=True)))
    place.responded().one("agent", "fail", "1 problem in policies", "wrong", "load-watcher agent --check")
    write(place.root / "policies", more=text_of({**node_qos(), "apiVersion": CRANE_API}))
    place.responded().one("agent", "ok", "the policies are valid", "read: 2")
    place.responded().one(
        "agent", "warn", "more.yaml", "NodeQOS/cpu: is not used", "Delete the object of ensurance.crane.io"
    )
    for file in (place.root / "policies").iterdir():
        file.unlink()
    place.responded().one("agent", "warn", "no policies for this node", "docs/reference/agent-policies.md")
    place.responded(policies=place.root / "elsewhere").one("agent", "fail", "elsewhere", "cannot be read")


def test_policies_of_the_cluster(place: Place):
    place.responded(policies=None).one(
        "agent", "fail", "policies cannot be read: no Kubernetes API is configured", "agent.policies"
    )
    with FakeKube() as server:
        kubeconfig = ("--set", f"kubernetes.kubeconfig={server.kubeconfig(place.root / 'kubeconfig')}")
        found = place.responded(*kubeconfig, policies=None).one("agent", "warn", "no policies are defined in the API")
        assert "kubectl apply -f deploy/agent/crds.yaml" in found.cure
        server.define(f"{API}/avoidanceactions", "AvoidanceAction")
        place.responded(*kubeconfig, policies=None).one("agent", "warn", "no policies for this node")
        server.put(f"{API}/avoidanceactions", "throttle", spec=throttling()["spec"])
        place.responded(*kubeconfig, policies=None).one("agent", "ok", "read: 1")


def test_unusable_control_groups(place: Place):
    place.responded(cgroup=place.root / "policies").one("agent", "fail", "no control groups found", "agent.cgroup")
    place.responded(cgroup_driver="cgroupfs").one("agent", "fail", "no kubelet groups found", "--cgroups-per-qos")
    (file,) = (each for top in place.cgroups.root.rglob("kubepods.slice") for each in top.glob("cpu.[cm][fa]*"))
    file.unlink()
    place.responded().one("agent", "fail", "the cpu controller is not enabled", str(file), "subtree_control")


def test_other_agents_that_manage_the_same_groups(place: Place):
    comm = place.root / "proc" / "77" / "comm"
    comm.parent.mkdir()
    comm.write_text("koordlet\n")
    place.responded().one("agent", "warn", "koordlet (process)", "remove one of the two from this node")
    place.responded(mode="enforce").one("agent", "fail", "koordlet (process)", "agent.beside_others")
    place.responded(mode="enforce", beside_others="true").one("agent", "warn", "koordlet (process)")
    other = CgroupLock(lambda: top_of(find_layout(str(place.cgroups.root))))
    assert not other.acquire()
    place.responded().one("agent", "warn", "another enforcing load-watcher agent", "does not respond")
    other.release()
    assert not [line for line in place.responded().lines if "another load-watcher agent" in line.what]


ENFORCING = {
    ("get", "v1/configmaps"),
    ("patch", "v1/configmaps"),
    ("list", "v1/nodes"),
    ("get", "v1/pods"),
    ("create", "v1/pods/eviction"),
    ("patch", "v1/nodes"),
    ("patch", "v1/nodes/status"),
    ("create", "v1/events"),
}


def test_rights_that_the_settings_need(place: Place):
    """A preview needs only rights to read. A missing right is a failure with the rule and its manifest."""
    with FakeKube() as server:
        kubeconfig = ("--set", f"kubernetes.kubeconfig={server.kubeconfig(place.root / 'kubeconfig')}")
        granted = place.responded(*kubeconfig, mode="enforce").one(
            "agent", "ok", "this account may get nodes, list pods"
        )
        assert granted.what.endswith("patch nodes, patch nodes/status, create events")
        server.forbidden = set(ENFORCING)
        place.responded(*kubeconfig).one("agent", "ok", "this account may get nodes, list pods, watch pods")
        found = place.responded(*kubeconfig, mode="enforce")
        assert 1 == found.exit_code
        missing = found.one(
            "agent", "fail", "this account may not get pods, create pods/eviction; needed for evictions"
        )
        assert 'resources: ["pods/eviction"], verbs: ["create"]' in missing.cure
        assert "deploy/components/agent-enforce (in the chart: agent.config.agent.mode) grants it." in missing.cure
        found.one("agent", "fail", "may not get configmaps, patch configmaps; needed for the brake and the eviction")
        found.one("agent", "fail", "may not list nodes; needed for the brake and the eviction budget of the cluster")
        found.one("agent", "fail", "may not patch nodes, patch nodes/status; needed for keeping new pods away")
        found.one("agent", "warn", "may not create events")
        reviews = [each.body["spec"]["resourceAttributes"] for each in server.asked if "review" in each.resource]
        assert {"load-watcher-agent"} == {each["namespace"] for each in reviews if each["resource"] == "configmaps"}
        assert {"node-1", None} == {each.get("name") for each in reviews if each["resource"] == "nodes"}


def test_the_brake_and_the_node_in_the_cluster(place: Place):
    """The checks of an enforcing agent with all rights."""
    control = "load-watcher-agent/agent-control"
    with FakeKube() as server:
        kubeconfig = ("--set", f"kubernetes.kubeconfig={server.kubeconfig(place.root / 'kubeconfig')}")
        found = place.responded(*kubeconfig, mode="enforce")
        missing = found.one("agent", "fail", "the Node object node-1 does not exist")
        assert "Set agent.node" in missing.cure
        found.one(
            "agent", "fail", f"the agent evicts no pod: the ConfigMap {control} with the eviction budget does not"
        )
        server.node("node-1")
        budget = {"evictions-per-minute": "5", "nodes-at-once": "5%"}
        server.put(CONFIG_MAPS, control, data={**budget, "enforcement": "restore"})
        found = place.responded(*kubeconfig, mode="enforce")
        found.one("agent", "warn", f"enforcement is restore in the ConfigMap {control}")
        assert not [line for line in found.lines if "node-1" in line.what]
        server.put(CONFIG_MAPS, control, data={**budget, "evictions-per-minute": "many"})
        place.responded(*kubeconfig, mode="enforce").one("agent", "fail", "evictions-per-minute must be a whole number")
        server.put(CONFIG_MAPS, control, data=budget)
        place.responded(*kubeconfig, mode="enforce").one("agent", "ok", "enforcement is on", "5 evictions per minute")
        assert not [line for line in place.responded(*kubeconfig).lines if "enforcement is" in line.what]


def test_rights_on_policies_and_on_pods_depend_on_their_source(place: Place):
    with FakeKube() as server, FakeKubelet([pod("a", "1")]) as kubelet:
        kubeconfig = ("--set", f"kubernetes.kubeconfig={server.kubeconfig(place.root / 'kubeconfig')}")
        server.forbidden = {(verb, f"{API}/podqoss") for verb in ("list", "watch")}
        missing = place.responded(*kubeconfig, policies=None).one(
            "agent", "fail", "may not list podqoss.load-watcher.io"
        )
        assert "deploy/components/agent-api-policies" in missing.cure
        server.forbidden = {(verb, f"{CRANE_API}/podqoss") for verb in ("list", "watch")}
        place.responded(*kubeconfig, policies=None).one("agent", "warn", "may not list podqoss.ensurance.crane.io")
        server.forbidden = {("list", "v1/pods"), ("get", "v1/nodes/pods")}
        missing = place.responded(*kubeconfig).one(
            "agent", "fail", "this account may not list pods; needed for the pods of"
        )
        assert "the chart, with agent.config.agent.pods: api, grants it" in missing.cure
        place.responded(*kubeconfig, kubelet=kubelet.url).one(
            "agent", "ok", f"the kubelet at {kubelet.url} lists 1 pod"
        )
        https = "https://127.0.0.1:1"
        place.responded(*kubeconfig, kubelet=https).one("agent", "ok", "this account may get nodes, get nodes/pods")
        server.forbidden = {("get", "v1/nodes/pods"), ("get", "v1/nodes/proxy")}
        missing = place.responded(*kubeconfig, kubelet=https).one(
            "agent", "fail", "this account may not get nodes/pods"
        )
        assert "deploy/agent/rbac.yaml grants it." in missing.cure


def test_a_kubelet_that_refuses(place: Place):
    with FakeKubelet(fault=lambda: (403, b"Forbidden")) as kubelet:
        found = place.responded(kubelet=kubelet.url).one("agent", "fail", "the pods of the node are unknown", "403")
        assert "nodes/pods" in found.cure


def test_the_servers_of_windows_and_queries(place: Place):
    away = f"http://127.0.0.1:{place.port}"
    place.responded(watcher=away).one("agent", "fail", f"the watcher at {away} returned no windows for node-1")
    query = ("--set", "agent.queries.p99.expression=up")
    place.responded(*query, prometheus=away).one("agent", "fail", "agent.queries.p99", "agent.prometheus_token_file")
    with FakePrometheus(lambda _: result("vector", [])) as server:
        place.responded(*query, prometheus=server.url).one(
            "agent", "warn", "0 series", "the metric is missing for its rules"
        )
    with FakePrometheus(lambda _: responded("Unauthorized", status=401)) as server:
        place.responded(*query, prometheus=server.url).one("agent", "fail", "401", "agent.prometheus_token_file")


def test_a_single_check_and_an_unknown_one(place: Place):
    assert {line.name for line in doctor("--only", "settings").lines} == {"settings"}
    assert {line.name for line in place.responded("--only", "port").lines} == {"settings", "port", "agent"}
    with pytest.raises(AssertionError, match="unknown check agnet"):
        doctor("--only", "agnet")


def test_mixed_cgroup_drivers(place: Place):
    """Kubelet and container runtime differ, or the kubelet's driver was changed."""
    assert "cgroup driver" not in str(place.responded())
    place.cgroups.add(place.cgroups.pod_path("0000000b-0000-4000-8000-000000000000"))
    found = place.responded().one("agent", "warn", "1 of 2 pods have no control group of a container below their own")
    assert "The kubelet uses the cgroup driver systemd" in found.cure
    place.cgroups.remove(place.cgroups.container_path(RUNNING, CONTAINER))
    place.responded().one("agent", "fail", "2 of 2 pods have no control group of a container below their own")
    before = FakeCgroups(place.root / "before", place.cgroups.version, Driver.CGROUPFS)
    place.cgroups.add(before.pod_path("0000000c-0000-4000-8000-000000000000"))
    found = place.responded().one("agent", "warn", "2 pods of driver systemd and 1 pod of driver cgroupfs")
    assert "drain the node" in found.cure
