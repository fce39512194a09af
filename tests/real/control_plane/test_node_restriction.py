"""The ValidatingAdmissionPolicies of deploy/components/*-node-restriction and of the chart: what a token may change."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
import requests

from agent.executor.enforcement_switch import MANAGER
from scorers.marks.annotation import ANNOTATION_KEY
from scorers.marks.degrees import EFFECT, KEYS
from tests.deploy.rendering import Manifest, charted, composed
from tests.real.control_plane.manifests import APPLY, DEPLOY, apply_all, delete_all
from tests.real.control_plane.objects import MERGE, make_node, read
from tests.real.kube import ApiServer
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

OWN, FOREIGN = "restricted-1", "restricted-2"
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
CONTROL = "/api/v1/namespaces/load-watcher-agent/configmaps/agent-control"
TAINT = {"key": "interference.crane.io", "effect": "PreferNoSchedule"}
OTHER_TAINT = {"key": "example.com/other", "effect": "NoSchedule"}
CONDITION = {"type": "interference-identified", "status": "True", "reason": "AvoidanceTriggered"}


@dataclass
class RestrictedAccount:
    """A ServiceAccount of the manifests, as requests see it."""

    api: ApiServer
    name: str
    tokens: dict[str, str] = field(default_factory=dict)

    def patch(self, path: str, change: Any, *, node: str = OWN, kind: dict[str, str] = MERGE) -> requests.Response:
        """Patch with the token of a pod on `node`, or with one that names no node ("")."""
        return self._ask("PATCH", path, change, node=node, headers=kind)

    def refused(self, verb: str, path: str, body: Any = None, *, node: str = OWN) -> str:
        """The message of the policy that refuses a request with the token of a pod on `node`."""
        return _refusal(self._ask(verb, path, body, node=node, headers={"Content-Type": "application/json"}))

    def _ask(self, verb: str, path: str, body: Any, *, node: str, headers: dict[str, str]) -> requests.Response:
        if node not in self.tokens:
            self.tokens[node] = self.api.account_token(self.name, node=node)
        headers = {**headers, "Authorization": f"Bearer {self.tokens[node]}"}
        data = None if body is None else json.dumps(body)
        return self.api.session.request(verb, f"{self.api.url}{path}", data=data, headers=headers, timeout=30)

    def refusal(self, path: str, change: Any, **options: Any) -> str:
        """The message of the policy that refuses a patch."""
        return _refusal(self.patch(path, change, **options))

    def changes(self, path: str, change: Any, **options: Any) -> None:
        """Patch; fails if the API server refuses it, or if nothing was changed."""
        before = self.api.ask("GET", path.removesuffix("/status")).json()["metadata"]["resourceVersion"]
        answer = self.patch(path, change, **options)
        assert answer.ok, answer.text
        assert before != answer.json()["metadata"]["resourceVersion"]


def _refusal(answer: requests.Response) -> str:
    assert 403 == answer.status_code, answer.text
    assert "ValidatingAdmissionPolicy" in answer.json()["message"]
    return str(answer.json()["message"])


@pytest.fixture(scope="module")
def nodes(cluster: ApiServer) -> Iterator[None]:
    for name in (OWN, FOREIGN):
        make_node(cluster, name)
    yield
    for name in (OWN, FOREIGN):
        cluster.ask("DELETE", path(name))


@contextmanager
def installed(cluster: ApiServer, rendered: list[Manifest], account: RestrictedAccount) -> Iterator[RestrictedAccount]:
    """Apply manifests, give the account more rights by RBAC than it has, and wait until the policies are enforced."""
    grants = generous(account.name)
    try:
        apply_all(cluster, [*rendered, *grants])
        _wait_until_enforced(rendered, account)
        yield account
    finally:
        delete_all(cluster, [*rendered, *grants])


def _wait_until_enforced(rendered: list[Manifest], account: RestrictedAccount) -> None:
    probe = {"metadata": {"labels": {"probe": "yes"}}}
    limited = [path(OWN), *(CONTROL for each in rendered if each["metadata"]["name"] == "agent-control")]

    def enforced() -> bool:
        return all(account.patch(f"{each}?dryRun=All", probe).status_code == 403 for each in limited)

    wait_for(enforced, what="the policies to be enforced")


@pytest.fixture(scope="module")
def agent(cluster: ApiServer, nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestrictedAccount]:
    """The agents, with more rights by RBAC than they have: only the policy refuses the requests of these tests."""
    rendered = composed(tmp_path_factory.mktemp("agent"), DEPLOY / "agent", "agent-enforce", "agent-node-restriction")
    account = RestrictedAccount(cluster, "load-watcher-agent/load-watcher-agent")
    with installed(cluster, rendered, account):
        yield account


@pytest.fixture(scope="module")
def manager(cluster: ApiServer, nodes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestrictedAccount]:
    """The QoS Resource Managers, with more rights by RBAC than they have."""
    rendered = composed(
        tmp_path_factory.mktemp("qrm"), DEPLOY / "qrm", "qrm-cri", "qrm-publish", "qrm-node-restriction"
    )
    account = RestrictedAccount(cluster, "load-watcher-qrm/load-watcher-qrm")
    with installed(cluster, rendered, account):
        yield account


def generous(account: str) -> list[Manifest]:
    """Roles with all rights on nodes and ConfigMaps."""
    namespace, _, name = account.partition("/")
    group = "rbac.authorization.k8s.io"
    metadata = {"name": f"generous-{name}"}
    rules = [{"apiGroups": [""], "resources": ["nodes", "nodes/status", "configmaps"], "verbs": ["*"]}]
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": metadata["name"]}
    common = {"apiVersion": f"{group}/v1", "metadata": metadata}
    role = {**common, "kind": "ClusterRole", "rules": rules}
    return [role, {**common, "kind": "ClusterRoleBinding", "roleRef": reference, "subjects": subjects}]


def path(node: str) -> str:
    return f"/api/v1/nodes/{node}"


def taints(*wanted: dict[str, str]) -> dict[str, Any]:
    return {"spec": {"taints": list(wanted)}}


def conditions(*wanted: dict[str, str]) -> dict[str, Any]:
    return {"status": {"conditions": list(wanted)}}


@pytest.fixture(autouse=True)
def no_taints(cluster: ApiServer, nodes: None) -> None:
    """The nodes have no taint of an earlier test."""
    for name in (OWN, FOREIGN):
        assert cluster.ask("PATCH", path(name), {"spec": {"taints": None}}, headers=MERGE).ok


# --- the agent -------------------------------------------------------------------------------------------------------


def test_an_agent_taints_its_own_node_and_reports_its_condition(cluster: ApiServer, agent: RestrictedAccount) -> None:
    """And removes both; the taints and conditions of others stay."""
    cluster.ask("PATCH", path(OWN), taints(OTHER_TAINT), headers=MERGE)
    agent.changes(path(OWN), taints(OTHER_TAINT, TAINT))
    agent.changes(f"{path(OWN)}/status", conditions(CONDITION), kind=STRATEGIC)
    agent.changes(f"{path(OWN)}/status", conditions({**CONDITION, "status": "False"}), kind=STRATEGIC)
    agent.changes(path(OWN), taints(OTHER_TAINT))
    found = read(cluster, OWN)
    assert [OTHER_TAINT] == found["spec"]["taints"]
    assert {"Ready", "interference-identified"} == {each["type"] for each in found["status"]["conditions"]}


def test_an_agent_may_not_change_another_node(agent: RestrictedAccount) -> None:
    message = f"the token of the agent on node {OWN} may not change node {FOREIGN}"
    assert message in agent.refusal(path(FOREIGN), taints(TAINT))
    assert message in agent.refusal(f"{path(FOREIGN)}/status", conditions(CONDITION), kind=STRATEGIC)
    agent.changes(path(FOREIGN), taints(TAINT), node=FOREIGN)
    assert f"on node {FOREIGN} may not change node {OWN}" in agent.refusal(path(OWN), taints(TAINT), node=FOREIGN)


def test_a_token_that_names_no_node_changes_none(agent: RestrictedAccount) -> None:
    """Such as one of `kubectl create token`, or of a Secret."""
    assert "the token does not name a node" in agent.refusal(path(OWN), taints(TAINT), node="")
    assert "the token does not name a node" in agent.refusal(
        CONTROL, {"data": {"recent-evictions": f"1.0 {OWN}\n"}}, node=""
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"labels": {"pool": "mine"}}}, "not metadata.labels"),
        ({"metadata": {"annotations": {"a": "b"}}}, "not metadata.annotations"),
        ({"metadata": {"finalizers": ["example.com/stay"]}}, "not metadata.finalizers"),
        ({"spec": {"unschedulable": True}}, "not spec.unschedulable"),
        ({"spec": {"providerID": "x://y"}, "metadata": {"labels": {"a": "b"}}}, "metadata.labels, spec.providerID"),
        (taints({"key": "mine", "effect": "NoExecute"}), "only the taint interference.crane.io"),
        (taints({**TAINT, "effect": "NoExecute"}), "only with the effect PreferNoSchedule"),
    ],
)
def test_an_agent_changes_only_its_taint(agent: RestrictedAccount, change: dict[str, Any], words: str) -> None:
    assert words in agent.refusal(path(OWN), change)


def test_an_agent_may_not_remove_the_taint_of_another_writer(cluster: ApiServer, agent: RestrictedAccount) -> None:
    cluster.ask("PATCH", path(OWN), taints(OTHER_TAINT), headers=MERGE)
    assert "only the taint interference.crane.io" in agent.refusal(path(OWN), taints(TAINT))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (conditions({"type": "Ready", "status": "False"}), "only the condition interference-identified"),
        (conditions({"type": "Mine", "status": "True"}), "only the condition interference-identified"),
        ({"status": {"capacity": {"cpu": "400"}}}, "not status.capacity"),
        ({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}, "not status.addresses"),
        ({"metadata": {"labels": {"pool": "mine"}}}, "not metadata.labels"),
    ],
)
def test_an_agent_changes_only_its_condition(agent: RestrictedAccount, change: dict[str, Any], words: str) -> None:
    assert words in agent.refusal(f"{path(OWN)}/status", change, kind=STRATEGIC)


@pytest.mark.parametrize("change", [{"metadata": {"labels": None}}, {"spec": {"unschedulable": None}}])
def test_an_agent_removes_no_other_field(cluster: ApiServer, agent: RestrictedAccount, change: dict[str, Any]) -> None:
    there = {"metadata": {"labels": {"pool": "mine"}}, "spec": {"unschedulable": True}}
    assert cluster.ask("PATCH", path(OWN), there, headers=MERGE).ok
    assert "an agent changes only its taint" in agent.refusal(path(OWN), change)
    assert cluster.ask("PATCH", path(OWN), {"spec": {"unschedulable": None}}, headers=MERGE).ok


def test_an_agent_removes_no_condition_of_another_writer(agent: RestrictedAccount) -> None:
    change = conditions({"type": "Ready", "$patch": "delete"})
    assert "only the condition" in agent.refusal(f"{path(OWN)}/status", change, kind=STRATEGIC)


def test_a_taint_that_an_operator_set_with_another_effect_stays_possible(
    cluster: ApiServer, agent: RestrictedAccount
) -> None:
    theirs = {**TAINT, "effect": "NoExecute"}
    cluster.ask("PATCH", path(OWN), taints(theirs), headers=MERGE)
    agent.changes(path(OWN), taints(theirs, TAINT))
    agent.changes(path(OWN), taints(theirs))


def test_an_agent_neither_creates_nor_deletes_nodes(agent: RestrictedAccount) -> None:
    assert "may not change node" in agent.refused("DELETE", path(OWN))
    assert "may not change node" in agent.refused("POST", "/api/v1/nodes", {"metadata": {"name": "restricted-3"}})
    assert "does not name a node" in agent.refused("DELETE", path(OWN), node="")


def test_an_agent_spends_the_budget_of_its_own_node(cluster: ApiServer, agent: RestrictedAccount) -> None:
    """And returns it."""
    key = "recent-evictions"
    cluster.ask("PATCH", CONTROL, {"data": {key: f"1.0 {FOREIGN}\n"}}, headers=MERGE)
    agent.changes(CONTROL, {"data": {key: f"1.0 {FOREIGN}\n2.0 {OWN}\n"}})
    assert "adds evictions of this node only" in agent.refusal(CONTROL, {"data": {key: f"1.0 {FOREIGN}\n9.0 x{OWN}\n"}})
    agent.changes(CONTROL, {"data": {key: f"1.0 {FOREIGN}\n"}})
    cluster.ask("PATCH", CONTROL, {"data": {key: f"1.0 {FOREIGN}"}}, headers=MERGE)  # without a newline at the end
    agent.changes(CONTROL, {"data": {key: f"1.0 {FOREIGN}\n2.0 {OWN}\n"}})
    cluster.ask("PATCH", CONTROL, {"data": {key: f"2.0 {OWN}\nno eviction\n"}}, headers=MERGE)
    agent.changes(CONTROL, {"data": {key: ""}})
    agent.changes(CONTROL, {"data": {key: None}})


def managed(at: float, *, key: str = "recent-evictions", **fields: str) -> dict[str, Any]:
    """An entry of the managed fields by which the agents have changed a key at a time (unix seconds)."""
    moment = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    owned = {"fieldsType": "FieldsV1", "fieldsV1": {"f:data": {f"f:{key}": {}}}}
    return {"manager": MANAGER, "operation": "Update", "apiVersion": "v1", "time": moment, **owned, **fields}


def test_an_agent_removes_evictions_of_other_nodes_when_they_do_not_count(
    cluster: ApiServer, agent: RestrictedAccount
) -> None:
    """By the clock of the API server, which the managed fields contain; other managed fields do not help."""
    key, now = "recent-evictions", time.time()
    as_agent, recent = f"{CONTROL}?fieldManager={MANAGER}", f"{now:.6f} {FOREIGN}\n"
    others = f"{now - 110:.6f} {FOREIGN}\n{recent}{now + 110:.6f} {FOREIGN}\n"
    own = f"{now:.6f} {OWN}\n"
    operator = managed(now, manager="operator", key="enforcement")

    cluster.ask("PATCH", CONTROL, {"data": {key: others}}, headers=MERGE)
    assert f"only with the field manager {MANAGER}" in agent.refusal(CONTROL, {"data": {key: recent + own}})
    changes = [
        *((as_agent, {"data": {key: text}}) for text in (own, "", None)),
        *(
            (where, {"data": {key: text}, "metadata": {"managedFields": [operator, *fields]}})
            for where in (CONTROL, as_agent)
            for text in (own, "", None)
            for fields in (
                [managed(now + 120)],
                [managed(now + 120), managed(now, manager="other")],
                [managed(now + 120, manager=f"{number}") for number in range(20)],
            )
        ),
    ]
    for where, change in changes:
        words = "a minute after them" if where is as_agent else f"with the field manager {MANAGER}"
        assert f"removes evictions of other nodes only {words}" in agent.refusal(where, change), change
    agent.changes(as_agent, {"data": {key: recent + own}})
    agent.changes(as_agent, {"data": {key: recent}})


@pytest.mark.parametrize(
    "planted",
    [
        managed(1.6e9, key="enforcement"),
        managed(1.6e9),
        managed(1.6e9, apiVersion="v2"),
        managed(1.6e9, subresource="status"),
    ],
)
def test_managed_fields_of_an_earlier_request_do_not_help(
    cluster: ApiServer, agent: RestrictedAccount, planted: dict[str, Any]
) -> None:
    """An update that changes no value keeps their times, and an apply has an entry of its own. They do not keep other
    agents from removing evictions."""
    key, now = "recent-evictions", time.time()
    lines = f"{now - 110:.6f} {FOREIGN}\n", f"{now:.6f} {FOREIGN}\n"
    cluster.ask("PATCH", CONTROL, {"data": {key: "".join(lines)}}, headers=MERGE)
    agent.changes(CONTROL, {"metadata": {"managedFields": [managed(now, manager="other", key="enforcement"), planted]}})
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "data": {key: f"{now:.6f} {OWN}\n"}}
    words = "removes evictions of other nodes only a minute after them"
    assert words in agent.refusal(f"{CONTROL}?fieldManager={MANAGER}&force=true", applied, kind=APPLY)
    assert words in agent.refusal(f"{CONTROL}?fieldManager={MANAGER}", {"data": {key: ""}})
    agent.changes(f"{CONTROL}?fieldManager={MANAGER}", {"data": {key: lines[1]}})


def test_an_agent_does_not_remove_the_managed_fields(cluster: ApiServer, agent: RestrictedAccount) -> None:
    """Without them, the API server records no update. Agents add evictions also if others have removed them."""
    for changed in ({}, {"data": {"recent-evictions": f"{time.time():.6f} {OWN}\n"}}):
        change = {**changed, "metadata": {"managedFields": [dict[str, Any]()]}}
        assert "does not remove the managed fields" in agent.refusal(CONTROL, change)
    key, as_agent, line = (
        "recent-evictions",
        f"{CONTROL}?fieldManager={MANAGER}",
        f"{time.time() - 110:.6f} {FOREIGN}\n",
    )
    without = {"data": {key: line}, "metadata": {"managedFields": [dict[str, Any]()]}}
    assert cluster.ask("PATCH", CONTROL, without, headers=MERGE).ok
    agent.changes(as_agent, {"data": {key: f"{line}2.0 {OWN}\n"}})
    assert "only if there are managed fields: kubectl apply" in agent.refusal(as_agent, {"data": {key: ""}})
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"nodes-at-once": "5%"}}
    assert cluster.ask("PATCH", f"{CONTROL}?fieldManager=operator&force=true", applied, headers=APPLY).ok
    agent.changes(as_agent, {"data": {key: ""}})


@pytest.mark.parametrize(
    "change",
    [
        {"data": {"enforcement": "restore"}},
        {"data": {"evictions-per-minute": "1000"}},
        {"data": {"nodes-at-once": None}},
        {"binaryData": {"x": "eA=="}},
        {"immutable": True},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"labels": None}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["example.com/stay"]}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}},
    ],
)
def test_an_agent_changes_nothing_else_of_the_budget(agent: RestrictedAccount, change: dict[str, Any]) -> None:
    """The brake and the limits are for operators. An immutable ConfigMap would disable the brake, and one with an owner
    that does not exist would be deleted."""
    assert "only the key recent-evictions" in agent.refusal(CONTROL, change)


def test_an_agent_neither_creates_nor_deletes_configmaps(agent: RestrictedAccount) -> None:
    message = "the request is not an update of the eviction budget"
    assert message in agent.refused("DELETE", CONTROL)
    body = {"metadata": {"name": "other"}, "data": {"recent-evictions": ""}}
    assert message in agent.refused("POST", CONTROL.rpartition("/")[0], body)


def test_large_objects_stay_below_the_cost_limit_of_expressions(cluster: ApiServer, agent: RestrictedAccount) -> None:
    """A request whose evaluation costs more is refused."""
    images = [{"names": [f"registry.example.com/{n}@sha256:{n:064}"], "sizeBytes": n} for n in range(100)]
    large = {"metadata": {"annotations": {f"example.com/{n}": "x" * 10_000 for n in range(20)}}}
    assert cluster.ask("PATCH", path(FOREIGN), {**large, **taints(OTHER_TAINT)}, headers=MERGE).ok
    assert cluster.ask("PATCH", f"{path(FOREIGN)}/status", {"status": {"images": images}}, headers=MERGE).ok
    agent.changes(path(FOREIGN), taints(OTHER_TAINT, TAINT), node=FOREIGN)
    agent.changes(f"{path(FOREIGN)}/status", conditions(CONDITION), node=FOREIGN, kind=STRATEGIC)
    lines = [f"17000000{n:02}.{n:06} a-node-with-a-long-name-{n:06}.example.com\n" for n in range(300)]
    cluster.ask("PATCH", CONTROL, {"data": {"recent-evictions": "".join(lines)}}, headers=MERGE)
    for left in (lines, lines[150:], []):
        text = "".join([*left, f"{time.time():.6f} {OWN}\n"])
        agent.changes(f"{CONTROL}?fieldManager={MANAGER}", {"data": {"recent-evictions": text}})


def test_kubelets_and_operators_change_what_they_did_before(cluster: ApiServer, agent: RestrictedAccount) -> None:
    """The policies match only the agents' account."""
    change = {"metadata": {"labels": {"pool": "other"}}, **taints(OTHER_TAINT)}
    assert cluster.ask("PATCH", path(OWN), change, headers=MERGE).ok
    kubelet = {"Impersonate-User": f"system:node:{OWN}", "Impersonate-Group": "system:masters"}
    for status in ("False", "True"):
        heartbeat = conditions({"type": "Ready", "status": status})
        headers = {**STRATEGIC, **kubelet}
        assert cluster.ask("PATCH", f"{path(OWN)}/status", heartbeat, headers=headers).ok
    assert cluster.ask("PATCH", CONTROL, {"data": {"enforcement": "off"}}, headers=MERGE).ok


# --- the QoS Resource Manager ----------------------------------------------------------------------------------------


def test_a_manager_publishes_the_resources_of_its_own_node(cluster: ApiServer, manager: RestrictedAccount) -> None:
    resource = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
    for amount in ("1500.000", "0.000"):
        status = {"status": {"capacity": {resource: amount}, "allocatable": {resource: amount}}}
        manager.changes(f"{path(OWN)}/status", status)
    nothing = {"status": {"capacity": {resource: None}, "allocatable": {resource: None}}}
    manager.changes(f"{path(OWN)}/status", nothing)
    assert f"may not change node {FOREIGN}" in manager.refusal(f"{path(FOREIGN)}/status", status)
    assert "the token does not name a node" in manager.refusal(f"{path(OWN)}/status", status, node="")
    assert cluster.ask("PATCH", f"{path(OWN)}/status", {"status": {"capacity": {"cpu": "8"}}}, headers=MERGE).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"status": {"capacity": {"cpu": "400"}}}, "not those of the kubelet"),
        ({"status": {"allocatable": {"memory": "1Ti"}}}, "not those of the kubelet"),
        ({"status": {"capacity": {"pods": None}}}, "not those of the kubelet"),
        ({"status": {"allocatable": {"pods": None}}}, "not those of the kubelet"),
        (conditions({"type": "Ready", "status": "False"}), "not status.conditions"),
        ({"status": {"conditions": None}}, "not status.conditions"),
        ({"metadata": {"labels": {"a": "b"}}}, "not metadata.labels"),
    ],
)
def test_a_manager_changes_only_resources_with_a_domain(
    manager: RestrictedAccount, change: dict[str, Any], words: str
) -> None:
    assert words in manager.refusal(f"{path(OWN)}/status", change, kind=STRATEGIC)


def test_a_manager_changes_no_node_outside_its_status(manager: RestrictedAccount) -> None:
    """RBAC does not grant these requests; the policy refuses them also if an administrator grants them."""
    assert "not spec.unschedulable" in manager.refusal(path(OWN), {"spec": {"unschedulable": True}})
    assert "may not change node" in manager.refused("DELETE", path(OWN))
    assert "may not change node" in manager.refused("POST", "/api/v1/nodes", {"metadata": {"name": "restricted-3"}})


# --- the service -----------------------------------------------------------------------------------------------------

THRESHOLDS = "scheduling.koordinator.sh/usage-thresholds"


@pytest.fixture(scope="module")
def service(cluster: ApiServer, nodes: None) -> Iterator[RestrictedAccount]:
    """The service, with more rights by RBAC than it has."""
    rendered = charted({"nodeRestriction": True})
    policy = [each for each in rendered if each["kind"].startswith("ValidatingAdmissionPolicy")]
    account = RestrictedAccount(cluster, "load-watcher/load-watcher")
    cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "load-watcher"}})  # 409 if it exists
    cluster.ask("POST", "/api/v1/namespaces/load-watcher/serviceaccounts", {"metadata": {"name": "load-watcher"}})
    with installed(cluster, policy, account):
        yield account


def annotated(**values: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {name.replace("__", THRESHOLDS): value for name, value in values.items()}}}


def test_the_service_changes_the_usage_thresholds_of_any_node(cluster: ApiServer, service: RestrictedAccount) -> None:
    """Also of one that has no other annotation; and removes them."""
    for node in (OWN, FOREIGN):
        for value in ('{"usageThresholds": {"cpu": 50}}', None):
            service.changes(path(node), annotated(__=value))
    assert cluster.ask("PATCH", path(OWN), annotated(theirs="x"), headers=MERGE).ok
    service.changes(path(OWN), annotated(__="{}"))
    service.changes(path(OWN), annotated(__=None))


def test_the_service_writes_its_marks_beside_the_taints_of_others(
    cluster: ApiServer, service: RestrictedAccount
) -> None:
    """And removes them, also when it removes the last taint."""
    marks = [{"key": key, "effect": EFFECT} for key in KEYS]
    score = {"metadata": {"annotations": {ANNOTATION_KEY: "40"}}}
    for others in ([], [OTHER_TAINT]):
        assert cluster.ask("PATCH", path(OWN), {"spec": {"taints": others}}, headers=MERGE).ok
        service.changes(path(OWN), {"spec": {"taints": [*others, *marks]}} | score)
        service.changes(path(OWN), {"spec": {"taints": others}, "metadata": {"annotations": {ANNOTATION_KEY: None}}})
    assert "only the taints" in service.refusal(path(OWN), {"spec": {"taints": marks}}), "that of another is removed"
    assert cluster.ask("PATCH", path(OWN), {"spec": {"taints": []}}, headers=MERGE).ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (annotated(theirs="y"), f"only the annotations {THRESHOLDS}, {ANNOTATION_KEY}"),
        (annotated(theirs=None), f"only the annotations {THRESHOLDS}"),
        (annotated(mine="y", __="{}"), f"only the annotations {THRESHOLDS}"),
        ({"metadata": {"labels": {"pool": "mine"}}}, "not metadata.labels"),
        ({"spec": {"unschedulable": True}}, "not spec.unschedulable"),
        (taints({"key": "mine", "effect": "NoExecute"}), "only the taints"),
        (taints({"key": "mine", "effect": EFFECT}), "only the taints"),
        (taints({"key": KEYS[0], "effect": "NoSchedule"}), "only the taints"),
    ],
)
def test_the_service_changes_nothing_else_of_a_node(
    cluster: ApiServer, service: RestrictedAccount, change: dict[str, Any], words: str
) -> None:
    assert cluster.ask("PATCH", path(OWN), annotated(theirs="x"), headers=MERGE).ok
    assert words in service.refusal(path(OWN), change)
    assert "the service changes only" in service.refused("DELETE", path(OWN))


def test_tokens_of_pods_name_their_node(cluster: ApiServer, agent: RestrictedAccount) -> None:
    """The claim that the policies read."""
    payload = cluster.account_token(agent.name, node=OWN).split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert OWN == claims["kubernetes.io"]["node"]["name"]
