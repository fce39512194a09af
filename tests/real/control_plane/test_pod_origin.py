"""Which fields that the components read a user can write: docs/concepts/trust.md, tested by a user who may only create
pods; and podOrigin of the chart, which refuses fields that only a kubelet or the DaemonSet controller writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.deploy.rendering import Manifest, charted
from tests.real.control_plane.manifests import apply_all, delete_all
from tests.real.control_plane.objects import make_node, read
from tests.real.kube import ApiServer
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

NAMESPACE, NODE = "origin", "origin-1"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
TENANT = {"Impersonate-User": "tenant", "Impersonate-Group": "system:authenticated"}
EDITOR = {**TENANT, "Impersonate-User": "editor"}
KUBELET = {"Impersonate-User": f"system:node:{NODE}", "Impersonate-Group": "system:nodes"}
CONTROLLERS = ("system:serviceaccount:kube-system:daemon-set-controller", "system:kube-controller-manager")
MERGE = {"Content-Type": "application/merge-patch+json"}
OF_NODE = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n", "controller": True}
OF_DAEMON_SET = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cni", "uid": "d", "controller": True}
MIRROR = "kubernetes.io/config.mirror"
PINNED = {"nodeName": NODE}

REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "config.source": ({"annotations": {"kubernetes.io/config.source": "file"}}, {}, "config.source"),
    "config.hash": ({"annotations": {"kubernetes.io/config.hash": "v"}}, {}, "config.hash"),
    "config.mirror": ({"annotations": {MIRROR: "v"}}, PINNED, "config.mirror"),
    "`Node`": ({"ownerReferences": [OF_NODE]}, {}, "a Node owns"),
    "`DaemonSet`": ({"ownerReferences": [OF_DAEMON_SET]}, {}, "a DaemonSet owns"),
}
"""By the row of the table: metadata and spec of a pod that the policy refuses, and words of its message."""
OPEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "other owners": ({"ownerReferences": [{**OF_DAEMON_SET, "kind": "ReplicaSet"}]}, {}),
    "pod-template-hash": ({"labels": {"pod-template-hash": "7d9c"}}, {}),
    "controller-revision-hash": ({"labels": {"controller-revision-hash": "7d9c"}}, {}),
    "skip_qrm_admit": ({"annotations": {"katalyst.kubewharf.io/skip_qrm_admit": "true"}}, {}),
    "reserve-pod": ({"annotations": {"scheduling.koordinator.sh/reserve-pod": "true"}}, {}),
    "pod-role": ({"annotations": {"kubernetes.io/pod-role": "etl", "koordinator.sh/qosClass": "LSE"}}, {}),
    "spec.nodeName": ({}, PINNED),
    "spec.priority": ({}, {"priorityClassName": "system-node-critical"}),
    "requests": ({}, {"containers": [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "900"}}}]}),
}
"""What a user who may create pods can write, also with the policy."""
RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}


def body(name: str, metadata: dict[str, Any] | None = None, spec: dict[str, Any] | None = None) -> dict[str, Any]:
    """A pod that the Pod Security level "restricted" admits."""
    whole = {"containers": [{"name": "main", "image": "x"}], **(spec or {})}
    security = {**RESTRICTED, "seccompProfile": {"type": "RuntimeDefault"}}
    containers = [{**each, "securityContext": security} for each in whole["containers"]]
    return {"metadata": {"name": name, **(metadata or {})}, "spec": {**whole, "containers": containers}}


@pytest.fixture(scope="module")
def api(cluster: ApiServer) -> Iterator[ApiServer]:
    """A namespace with Pod Security "restricted", a user who may create pods in it, and one who may change them too."""
    make_node(cluster, NODE)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.make("/api/v1/namespaces", metadata={"name": NAMESPACE, "labels": labels})
    for user, verbs in (("tenant", ["create"]), ("editor", ["create", "patch"])):
        grant(cluster, user, verbs)
    kubelet = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}]
    cluster.make("/apis/rbac.authorization.k8s.io/v1/clusterroles", metadata={"name": "a-kubelet"}, rules=kubelet)
    cluster.make(
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        metadata={"name": "a-kubelet"},
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "a-kubelet"},
        subjects=[{"kind": "User", "name": user} for user in (KUBELET["Impersonate-User"], *CONTROLLERS)],
    )
    yield cluster
    for path in ("clusterroles", "clusterrolebindings"):
        cluster.ask("DELETE", f"/apis/rbac.authorization.k8s.io/v1/{path}/a-kubelet")
    cluster.ask("DELETE", f"{PODS}?gracePeriodSeconds=0")
    cluster.ask("DELETE", f"/api/v1/nodes/{NODE}")


def grant(api: ApiServer, user: str, verbs: list[str]) -> None:
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": verbs}]
    api.make(f"{root}/roles", metadata={"name": user}, rules=rules)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user}
    subjects = [{"kind": "User", "name": user}]
    api.make(f"{root}/rolebindings", metadata={"name": user}, roleRef=reference, subjects=subjects)


def create(api: ApiServer, pod: dict[str, Any], user: dict[str, str] = TENANT) -> requests.Response:
    answer = api.ask("POST", PODS, pod, headers=user)
    if answer.ok:
        assert api.ask("DELETE", f"{PODS}/{pod['metadata']['name']}?gracePeriodSeconds=0").ok
    return answer


@pytest.fixture(scope="module")
def policy(api: ApiServer) -> Iterator[list[Manifest]]:
    rendered = charted({"podOrigin": True})
    policies = [each for each in rendered if each["kind"].startswith("ValidatingAdmissionPolicy")]
    apply_all(api, policies)
    try:
        wait_for(lambda: not create(api, body("probe", *REFUSED["`Node`"][:2])).ok, what="the policy to be enforced")
        yield policies
    finally:
        delete_all(api, policies)
        wait_for(lambda: create(api, body("probe", *REFUSED["`Node`"][:2])).ok, what="the policy to be gone")


def test_the_table_of_the_page_has_each_tested_input() -> None:
    page = (REPOSITORY / "docs/concepts/trust.md").read_text()
    inputs = " ".join(re.findall(r"^\|([^|]+)\|", page, re.MULTILINE))
    assert [row for row in (*REFUSED, *OPEN) if row not in inputs] == []


def test_without_the_policy_a_user_who_may_create_pods_writes_all_of_them(api: ApiServer) -> None:
    tried = {**{row: (metadata, spec) for row, (metadata, spec, _) in REFUSED.items()}, **OPEN}
    for row, (metadata, spec) in tried.items():
        answer = create(api, body("free", metadata, spec))
        assert answer.ok, f"{row}: {answer.text}"
        found = answer.json()
        for part, values in metadata.items():
            assert values == found["metadata"][part] or values.items() <= found["metadata"][part].items(), row


def test_uid_times_and_status_are_those_of_the_api_server(api: ApiServer) -> None:
    """A value in the request is ignored."""
    metadata = {
        "uid": "victim",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
    }
    running = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0, "state": {"running": {}}}
    status = {"phase": "Running", "startTime": "2001-01-01T00:00:00Z", "containerStatuses": [running]}
    found = create(api, {**body("forger", metadata), "status": status}).json()
    assert "victim" != found["metadata"]["uid"]
    assert "2001" not in str(found["metadata"])
    assert ("Pending", None) == (found["status"]["phase"], found["status"].get("containerStatuses"))


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (f"{PODS}/there/status", {"status": {"phase": "Failed"}}),
        (f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": {"a": "b"}}}),
        (f"/api/v1/nodes/{NODE}/status", {"status": {"allocatable": {"cpu": "1"}}}),
        ("/api/v1/namespaces/default/configmaps/agent-control", {"data": {"recent-evictions": ""}}),
        (f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/cni", {"metadata": {"labels": {"a": "b"}}}),
    ],
)
@pytest.mark.parametrize("user", [TENANT, EDITOR], ids=["tenant", "editor"])
def test_other_fields_need_rights_that_no_tenant_has(
    api: ApiServer, path: str, change: dict[str, Any], user: dict[str, str]
) -> None:
    assert 403 == api.ask("PATCH", path, change, headers={**user, **MERGE}).status_code


def test_the_policy_refuses_fields_that_only_a_kubelet_or_a_controller_writes(
    api: ApiServer, policy: list[Manifest]
) -> None:
    """When a pod is created, and when it is changed; other changes are allowed, and existing values stay."""
    for row, (metadata, spec, words) in REFUSED.items():
        answer = create(api, body("forger", metadata, spec))
        assert 403 == answer.status_code, f"{row}: {answer.text}"
        assert words in answer.json()["message"]
        assert "load-watcher-pod-origin" in answer.json()["message"]
    for row, (metadata, spec) in OPEN.items():
        answer = create(api, body("free", metadata, spec))
        assert answer.ok, f"{row}: {answer.text}"
    assert api.ask("POST", PODS, body("later"), headers=EDITOR).ok
    try:
        for metadata, spec, words in REFUSED.values():
            if not spec:  # whether a pod is a mirror pod cannot be changed
                answer = api.ask("PATCH", f"{PODS}/later", {"metadata": metadata}, headers={**EDITOR, **MERGE})
                assert 403 == answer.status_code, answer.text
                assert words in answer.json()["message"]
        kept = {"metadata": {"labels": {"a": "b"}}}
        assert api.ask("PATCH", f"{PODS}/later", kept, headers={**EDITOR, **MERGE}).ok
    finally:
        api.ask("DELETE", f"{PODS}/later?gracePeriodSeconds=0")


def test_the_policy_allows_kubelets_and_the_daemonset_controller(api: ApiServer, policy: list[Manifest]) -> None:
    annotations = {MIRROR: "v", "kubernetes.io/config.hash": "v", "kubernetes.io/config.source": "file"}
    node = {**OF_NODE, "uid": read(api, NODE)["metadata"]["uid"]}
    mirror = body("mirror", {"annotations": annotations, "ownerReferences": [node]}, PINNED)
    made = api.ask("POST", PODS, mirror, headers=KUBELET)
    assert made.ok, made.text
    change: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}}
    assert api.ask("PATCH", f"{PODS}/mirror", change, headers={**EDITOR, **MERGE}).ok, "existing values stay"
    flags = {"blockOwnerDeletion": not node.get("blockOwnerDeletion", False)}
    for owner, allowed in (({**node, **flags}, True), ({**node, "uid": "other"}, False)):
        change = {"metadata": {"ownerReferences": [owner]}}
        answer = api.ask("PATCH", f"{PODS}/mirror", change, headers={**EDITOR, **MERGE})
        assert allowed is answer.ok, answer.text
    assert api.ask("DELETE", f"{PODS}/mirror?gracePeriodSeconds=0").ok
    for user in CONTROLLERS:
        made = create(api, body("daemon", {"ownerReferences": [OF_DAEMON_SET]}), {"Impersonate-User": user})
        assert made.ok, made.text
