"""The fake Kubernetes API and the real one must respond equally to the same requests in the same order.

Compared are the values that the client reads: codes, reasons, causes, names, the presence of versions, and the used
fields of objects. Messages are compared without uids and versions.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import requests

from tests.fakes.kube import FakeKube
from tests.real.kube import ApiServer
from watcher.core.kubernetes.objects import CustomObject
from watcher.core.kubernetes.wire import Resource

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]


@dataclass(frozen=True)
class Question:
    """A request; {budgets} in its path and {group} in its body are where the server has PodDisruptionBudgets."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    token: str = ""


MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NODE, PODS = "/api/v1/nodes/cmp-1", "/api/v1/namespaces/cmp/pods"
METRICS = Resource("slo.koordinator.sh", "v1alpha1", "nodemetrics", CustomObject)
NAMESPACE = Question("POST", "/api/v1/namespaces", {"metadata": {"name": "cmp"}})
UNSTABLE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|uid-\d+|in scheme \".*\"|User \"\w+\"")


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    """A pod that a server accepts."""
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "main", "image": "x"}]}}


def metric(name: str) -> dict[str, Any]:
    """A NodeMetric."""
    return {"apiVersion": METRICS.group_version, "kind": "NodeMetric", "metadata": {"name": name}}


def eviction(name: str, version: str = "policy/v1", **options: Any) -> Question:
    """An Eviction."""
    body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name, "namespace": "cmp"}}
    return Question("POST", f"{PODS}/{name}/eviction", {**body, "deleteOptions": options})


def binding(name: str) -> Question:
    """A binding to the node cmp-1."""
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"kind": "Node", "name": "cmp-1"},
    }
    return Question("POST", f"{PODS}/{name}/binding", body)


def patch(path: str, body: Any, content_type: str = MERGE) -> Question:
    """A patch."""
    return Question("PATCH", path, body, content_type)


def budget(allowed: int) -> list[Question]:
    """A budget for the pods with the label app=web, with the status that its controller would write."""
    status = {"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1 - allowed, "expectedPods": 1}
    return [
        Question(
            "POST",
            "{budgets}",
            {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}},
        ),
        patch("{budgets}/b/status", {"status": {**status, "disruptionsAllowed": allowed}}),
    ]


RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
HOT = {"type": "Hot", "status": "True", "reason": "r", "message": "m"}

SCRIPTS: dict[str, list[Question]] = {
    "nodes": [
        Question("GET", NODE),
        Question("POST", "/api/v1/nodes", {"metadata": {"name": "cmp-1"}}),
        Question("POST", "/api/v1/nodes", {"metadata": {"name": "cmp-1"}}),
        patch(f"{NODE}/status", {"status": {"capacity": {"cpu": "15800m", "x.io/y": "4000"}}}),
        patch(NODE, {"status": {"capacity": {"cpu": "1"}}, "metadata": {"labels": {"a": "1"}}}),
        patch(NODE, {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}}),
        patch(NODE, {"spec": {"taints": [{"key": "l", "effect": "NoSchedule", "value": "v"}]}}, STRATEGIC),
        patch(NODE, {"metadata": {"resourceVersion": "1"}, "spec": {"taints": []}}),
        patch(NODE, {"spec": {"taints": []}}, "application/json"),
        patch(NODE, [{"op": "add", "path": "/metadata/labels/b", "value": "2"}], JSON_PATCH),
        patch(NODE, {"metadata": {"labels": {"a": None}}}),
        patch(f"{NODE}/status", {"status": {"conditions": [HOT]}}, STRATEGIC),
        patch(f"{NODE}/status", {"status": {"conditions": [{**HOT, "type": "Ready"}]}}, STRATEGIC),
        patch(f"{NODE}/status", {"status": {"conditions": [{**HOT, "status": "False"}]}}, STRATEGIC),
        patch("/api/v1/nodes/nope", {}),
        Question("GET", NODE),
        Question("GET", "/api/v1/nodes", token="nobody"),
        Question("DELETE", NODE),
    ],
    "lists": [
        *(Question("POST", PODS, pod(name, labels={"n": name})) for name in ("a", "b", "c")),
        Question("GET", PODS),
        Question("GET", f"{PODS}?limit=2"),
        Question("GET", f"{PODS}?limit=2&labelSelector=n"),
        Question("GET", f"{PODS}?labelSelector=n%20in%20(a,c),n!%3Dc"),
        Question("GET", f"{PODS}?labelSelector=!n"),
        Question("GET", f"{PODS}?fieldSelector=metadata.name%3Db"),
        Question("GET", f"{PODS}?fieldSelector=status.phase!%3DPending"),
        Question("GET", f"{PODS}?fieldSelector=spec.nodeName%3D"),
        Question("GET", f"{PODS}?fieldSelector=spec.colour%3Dred"),
        Question("GET", f"{PODS}/nope"),
        Question("GET", "/api/v1/oddities"),
        Question("GET", "/apis/absent.example.com/v1/things"),
        Question("GET", f"{PODS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Db"),
        *(Question("DELETE", f"{PODS}/{name}") for name in ("a", "b", "c")),
        Question("GET", PODS),
    ],
    "custom": [
        Question("POST", METRICS.path, metric("n1")),
        Question("POST", METRICS.path, metric("n1")),
        Question("GET", METRICS.path),
        Question("GET", METRICS.path_of("n1")),
        Question("GET", METRICS.path_of("n2")),
        patch(METRICS.path_of("n1"), {"metadata": {"labels": {"a": "1"}}}),
        patch(METRICS.path_of("n1"), {"metadata": {"labels": {"b": "1"}}}, STRATEGIC),
        patch(METRICS.path_of("n1", "status"), {"status": {"phase": "x"}, "spec": {"nodeName": "no"}}),
        patch(METRICS.path_of("n1"), {"status": {"phase": "y"}, "spec": {"nodeName": "yes"}}),
        patch(METRICS.path_of("n1"), {"metadata": {"resourceVersion": "1"}}),
        Question("GET", f"{METRICS.path}?fieldSelector=metadata.name%3Dn1"),
        Question("GET", f"{METRICS.path}?fieldSelector=spec.nodeName%3Dn1"),
        Question("GET", f"{METRICS.path}?watch=1&timeoutSeconds=1"),
        Question("DELETE", METRICS.path_of("n1")),
    ],
    "evictions": [
        Question("POST", "/api/v1/nodes", {"metadata": {"name": "cmp-1"}}),
        eviction("nope"),
        *(Question("POST", PODS, pod(name, labels={"app": "web"})) for name in ("a", "pending", "unbound")),
        binding("a"),
        binding("a"),
        binding("nope"),
        binding("pending"),
        patch(f"{PODS}/a/status", {"status": RUNNING}),
        eviction("a", preconditions={"uid": "0b5f"}),
        *budget(0),
        eviction("a"),
        eviction("a", preconditions={"uid": "0b5f"}),
        eviction("pending", gracePeriodSeconds=7),
        eviction("unbound"),
        Question("GET", f"{PODS}/unbound"),
        patch("{budgets}/b/status", {"status": {"disruptionsAllowed": 1}}),
        eviction("a", preconditions={"uid": "0b5f"}),
        eviction("a"),  # the disruption is subtracted from the budget
        patch("{budgets}/b/status", {"status": {"disruptionsAllowed": 1}}),
        eviction("a"),
        eviction("a"),
        Question("GET", f"{PODS}/a"),
        Question("DELETE", f"{PODS}/a?gracePeriodSeconds=0"),
        Question("DELETE", f"{PODS}/pending?gracePeriodSeconds=0"),
        Question("GET", f"{PODS}/a"),
        Question("GET", f"{PODS}/pending"),
        Question("DELETE", "{budgets}/b"),
        Question("DELETE", NODE),
    ],
}


def reported(answer: requests.Response) -> Any:
    """The values of a response that the client reads, without those that differ each time."""
    if "json" not in answer.headers["Content-Type"]:
        return answer.status_code, answer.text
    lines = [json.loads(line) for line in answer.text.splitlines() if line.strip()]
    if len(lines) == 1 and "kind" in lines[0]:
        return answer.status_code, shape(lines[0])
    return answer.status_code, [(line["type"], shape(line["object"])) for line in lines]


def shape(content: dict[str, Any]) -> Any:
    """The same of an object, a list or a Status."""
    kind, metadata = content.get("kind", ""), content.get("metadata", {})
    if kind == "Status" and content["status"] == "Success":
        return "Success"
    if kind == "Status":
        details = content.get("details", {})
        causes = [cause["reason"] for cause in details.get("causes", [])]
        message = UNSTABLE.sub("…", content["message"])
        return kind, content["code"], content["reason"], message, details.get("name", ""), causes
    if kind.endswith("List"):
        more = bool(metadata.get("continue")), metadata.get("remainingItemCount")
        return kind, content["apiVersion"], bool(metadata["resourceVersion"]), more, [*map(shape, content["items"])]
    spec, status = content.get("spec", {}), content.get("status", {})
    return {
        "kind": (kind, content.get("apiVersion", "")),
        "metadata": [metadata.get(each) for each in ("name", "namespace", "labels", "deletionGracePeriodSeconds")],
        "known": all(metadata.get(each) for each in ("uid", "resourceVersion", "creationTimestamp")),
        "leaves": "deletionTimestamp" in metadata,
        "spec": [spec.get(each) for each in ("nodeName", "taints", "unschedulable", "minAvailable")],
        "status": [status.get(each) for each in ("phase", "capacity", "disruptionsAllowed")],
        "conditions": sorted((each["type"], each["status"]) for each in status.get("conditions", [])),
    }


def transcript(name: str, ask: Callable[[Question], requests.Response]) -> list[Any]:
    """All requests of a script with their responses; of a deletion only the code, because the client ignores the
    rest."""
    ask(NAMESPACE)
    answers = [(question, ask(question)) for question in SCRIPTS[name]]
    return [
        (question, answer.status_code if question.method == "DELETE" else reported(answer))
        for question, answer in answers
    ]


def ask_real(server: ApiServer, question: Question) -> requests.Response:
    """As the administrator, or as a user without rights."""
    headers = {"Content-Type": question.content_type}
    if question.token:
        headers["Authorization"] = f"Bearer {server.nobodys}"
    path = question.path.replace("{budgets}", "/apis/policy/v1/namespaces/cmp/poddisruptionbudgets")
    return server.ask(question.method, path, question.body, headers=headers)


def ask_fake(server: FakeKube, question: Question) -> requests.Response:
    """The same of the fake."""
    path = question.path.replace("{budgets}", "/apis/policy/v1/namespaces/cmp/poddisruptionbudgets")
    server.forbidden = {("list", "v1/nodes")} if question.token else set()
    data = None if question.body is None else json.dumps(question.body)
    headers = {"Content-Type": question.content_type}
    return requests.request(question.method, server.url + path, data=data, headers=headers, timeout=30)


def test_custom_resources_of_the_fake_equal_those_of_the_real_server(apiserver: ApiServer):
    """With patches, of which one kind is refused."""
    apiserver.define(METRICS, "NodeMetric")
    real = transcript("custom", lambda question: ask_real(apiserver, question))
    with FakeKube(token="") as server:
        server.define("slo.koordinator.sh/v1alpha1/nodemetrics", "NodeMetric")
        fake = transcript("custom", lambda question: ask_fake(server, question))
    assert real == fake


@pytest.mark.parametrize("name", ["nodes", "lists", "evictions"])
def test_the_fake_responds_like_the_real_server(apiserver: ApiServer, name: str):
    """Request by request."""
    real = transcript(name, lambda question: ask_real(apiserver, question))
    with FakeKube(token="") as server:
        fake = transcript(name, lambda question: ask_fake(server, question))
    for (question, expected), (_, answer) in zip(real, fake, strict=True):
        assert expected == answer, question
