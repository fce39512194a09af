"""The agent on a real API server: evictions that it refuses, and the rights that the manifests grant."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent.decision.plan import Plan
from agent.executor.cluster import ClusterActions
from agent.executor.executor import Executor, Permissions
from agent.executor.report import PlanReport, StepOutcome
from agent.model import Step
from tests.agent.executor.node import FakeNode, always, evict, generous
from tests.deploy.rendering import Manifest, charted
from tests.doctor import Reported, doctor
from tests.fakes.cgroups import FakeCgroups
from tests.real.kube import ApiServer
from tests.waiting import wait_for
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

NAMESPACE = "load-watcher-agent"
CONTROL = f"/api/v1/namespaces/{NAMESPACE}/configmaps/agent-control"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
PODS = "/api/v1/namespaces/default/pods"
MERGE = {"Content-Type": "application/merge-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}
CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "0", "controller": True}


@pytest.fixture(scope="module")
def control(apiserver: ApiServer) -> None:
    """The namespace of the agents with the budget of one eviction per minute on one node."""
    apiserver.make("/api/v1/namespaces", metadata={"name": NAMESPACE})
    data = {"evictions-per-minute": "1", "nodes-at-once": "1"}
    apiserver.make(CONTROL.rpartition("/")[0], metadata={"name": "agent-control"}, data=data)
    for number in (1, 2):
        apiserver.make("/api/v1/nodes", metadata={"name": f"node-{number}"})


def run_pod(apiserver: ApiServer, name: str, **labels: str) -> Step:
    """A running pod of a controller, and the step that evicts it."""
    metadata = {"name": name, "labels": labels, "ownerReferences": [CONTROLLER]}
    spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "x"}]}
    made = apiserver.make(PODS, metadata=metadata, spec=spec)
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    assert apiserver.ask("PATCH", f"{PODS}/{name}/status", status, headers=MERGE).ok
    return evict(pod=f"default/{name}", uid=made["metadata"]["uid"], owner="ReplicaSet/web")


def two_budgets(apiserver: ApiServer) -> None:
    """Budgets of the pods with the label app=twice; their status is that of their controller."""
    spec = {"minAvailable": 0, "selector": {"matchLabels": {"app": "twice"}}}
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": 5,
        "currentHealthy": 5,
        "desiredHealthy": 0,
        "expectedPods": 5,
    }
    for name in ("first", "second"):
        apiserver.make(BUDGETS, metadata={"name": name}, spec=spec)
        assert apiserver.ask("PATCH", f"{BUDGETS}/{name}/status", {"status": status}, headers=MERGE).ok


def leaves(apiserver: ApiServer, name: str) -> bool:
    return "deletionTimestamp" in apiserver.ask("GET", f"{PODS}/{name}").json()["metadata"]


def tokens(apiserver: ApiServer) -> list[str]:
    """The nodes of the spent tokens."""
    data = apiserver.ask("GET", CONTROL).json()["data"]
    return [line.partition(" ")[2] for line in data.get("recent-evictions", "").splitlines()]


async def test_a_pod_with_two_budgets_prevents_no_other_eviction(
    apiserver: ApiServer, control: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither of another pod nor on another node: earlier, each cycle spent a token on it, and no node of the cluster
    could evict any more."""
    two_budgets(apiserver)
    twice, plain, other = (
        run_pod(apiserver, "twice", app="twice"),
        run_pod(apiserver, "plain"),
        run_pod(apiserver, "far"),
    )
    path = apiserver.kubeconfig(tmp_path / "kubeconfig")
    passed = [0.0]

    async def on(number: int, act: Callable[[Callable[..., Awaitable[PlanReport]]], Awaitable[None]]) -> None:
        """Let `act` carry out plans on the node with this number."""
        directory = tmp_path / str(number)
        node = FakeNode(directory)
        client = KubeClient(lambda: find_access(kubeconfig=path, environ={}), timeout=30.0)
        cluster = ClusterActions(
            client,
            node=f"node-{number}",
            control=f"{NAMESPACE}/agent-control",
            clock=time.time,
            monotonic=lambda: passed[0],
            patience=30.0,
        )
        permissions = Permissions(enforce=True, proc=directory / "proc", limits=generous())
        executor = Executor(node.audit, node.groups(), cluster=cluster, permissions=permissions)

        async def run(*steps: Step) -> PlanReport:
            return await executor.run(Plan(time.time(), steps), state=node.state(), cycle=1, needed=always)

        try:
            await act(run)
        finally:
            await client.close()
            node.close()

    async def first(run: Callable[..., Awaitable[PlanReport]]) -> None:
        for seconds in (0.0, 10.0, 290.0):
            passed[0] = seconds
            report = await run(twice)
            assert StepOutcome.FAILED is report.results[0].fate
            assert "more than one PodDisruptionBudget" in report.results[0].text
            assert "next attempt at" in report.results[0].text
        assert [] == tokens(apiserver)
        report = await run(twice, plain)
        assert [StepOutcome.FAILED, StepOutcome.DONE] == [each.fate for each in report.results]
        assert ["node-1"] == tokens(apiserver)

    async def second(run: Callable[..., Awaitable[PlanReport]]) -> None:
        report = await run(other)
        assert StepOutcome.DONE is report.results[0].fate

    caplog.set_level(logging.WARNING)
    await on(1, first)
    assert 1 == len([each for each in caplog.messages if "default/twice is not evicted" in each])
    assert (False, True) == (leaves(apiserver, "twice"), leaves(apiserver, "plain"))
    found = apiserver.ask("GET", "/api/v1/namespaces/default/events").json()["items"]
    assert ["twice"] == [each["involvedObject"]["name"] for each in found if each["reason"] == "EvictionRefused"]
    assert apiserver.ask("PATCH", CONTROL, {"data": {"recent-evictions": ""}}, headers=MERGE).ok
    await on(2, second)
    assert leaves(apiserver, "far")


# --- rights ----------------------------------------------------------------------------------------------------------

FULL = {"enabled": True, "apiPolicies": True, "config": {"agent": {"mode": "enforce", "pods": "api"}}}
"""Values of the chart for all rights."""


def apply(apiserver: ApiServer, manifest: Manifest) -> None:
    """As `kubectl apply --server-side` does."""
    group = manifest["apiVersion"]
    namespace = manifest["metadata"].get("namespace")
    inner = f"namespaces/{namespace}/" if namespace else ""
    where = f"/{'apis' if '/' in group else 'api'}/{group}/{inner}{manifest['kind'].lower()}s"
    path = f"{where}/{manifest['metadata']['name']}?fieldManager=tests&fieldValidation=Strict&force=true"
    answer = apiserver.ask("PATCH", path, manifest, headers=APPLY)
    assert answer.ok, answer.text


@pytest.fixture
def granted(apiserver: ApiServer, control: None) -> Iterator[Callable[..., str]]:
    """Installs the roles of the agents by the chart; returns a token of their ServiceAccount."""
    applied: list[Manifest] = []

    def install(**values: Any) -> str:
        chart = charted({"agent": {"enabled": True, **values}}, namespace=NAMESPACE)
        rendered = [each for each in chart if each["metadata"]["labels"]["app.kubernetes.io/name"] == NAMESPACE]
        kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
        for manifest in (each for each in rendered if each["kind"] in kinds):
            apply(apiserver, manifest)
            applied.append(manifest)
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/load-watcher-agent/token"
        token: str = apiserver.make(path, spec={"expirationSeconds": 600})["status"]["token"]
        return token

    yield install
    for name in ("clusterroles", "clusterrolebindings"):
        apiserver.ask("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{name}/load-watcher-agent")


def report(apiserver: ApiServer, root: Path, token: str, **agent: Any) -> Reported:
    """The doctor's report on an agent with these settings and credentials."""
    root.mkdir(exist_ok=True)
    cgroups = FakeCgroups(root / "cgroup")
    cgroups.add(cgroups.pod_path("0000000a-0000-4000-8000-000000000000"))
    given = {"cgroup": cgroups.root, "node": "node-1", "port": 1, "control": f"{NAMESPACE}/agent-control", **agent}
    access = apiserver.kubeconfig(root / "kubeconfig", token=token)
    flags = [f"agent.{name}={value}" for name, value in given.items()] + [f"kubernetes.kubeconfig={access}"]
    return doctor("--only", "agent", *(text for each in flags for text in ("--set", each)))


def test_the_doctor_checks_the_rights_of_the_agent(
    apiserver: ApiServer, granted: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, an agent that could neither evict nor taint passed."""
    monkeypatch.chdir(tmp_path)
    settings = {"mode": "enforce", "pods": "api"}
    nobody = report(apiserver, tmp_path / "nobody", apiserver.nobodys, **settings)
    for words in (
        "get pods, create pods/eviction",
        "patch nodes, patch nodes/status",
        "get configmaps",
        "list nodeqoss",
    ):
        nobody.one("agent", "fail", f"this account may not {words}")
    preview = granted()
    refused = report(apiserver, tmp_path / "preview", preview, policies=tmp_path, **settings)
    missing = refused.one("agent", "fail", "this account may not get pods, create pods/eviction")
    assert "deploy/components/agent-enforce" in missing.cure
    (tmp_path / "policies").mkdir()
    https = "https://127.0.0.1:1"
    enough = report(apiserver, tmp_path / "enough", preview, policies=tmp_path / "policies", kubelet=https)
    enough.one("agent", "ok", "this account may get nodes, get nodes/pods")
    full, attempts = granted(**FULL), count()

    def passes() -> bool:  # the authorizer of the API server follows roles by a watch
        control = f"{NAMESPACE}/load-watcher-agent-control"  # its name in the chart
        found = report(apiserver, tmp_path / f"full-{next(attempts)}", full, control=control, **settings)
        return any("create pods/eviction" in each.what for each in found.of("agent", "ok"))

    wait_for(passes, what="the rights to be in force")
