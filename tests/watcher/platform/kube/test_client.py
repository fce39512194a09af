"""Requests to the API other than watches: selections, single objects, changes, and the meaning of responses."""

from collections.abc import Awaitable
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tests.fakes.kube import NODES as FAKE_NODES
from tests.fakes.kube import PODS as FAKE_PODS
from tests.fakes.kube import FakeKube
from tests.fakes.kube_rules import status_object
from tests.watcher.platform.kube.asking import asked
from watcher.core.kubernetes.errors import (
    KubeConflict,
    KubeForbidden,
    KubeNoApi,
    KubeNotFound,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.objects import NODES, PODS, CustomObject
from watcher.core.kubernetes.wire import MinimalMetadata, Resource, key_of
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.parameters import PatchKind, Selector

NODE_METRICS = "slo.koordinator.sh/v1alpha1/nodemetrics"


class Typed(msgspec.Struct, frozen=True):
    """A custom resource with one declared number."""

    class Spec(msgspec.Struct, frozen=True):
        seconds: int = 0

    metadata: MinimalMetadata = MinimalMetadata()
    spec: Spec = Spec()


CUSTOM = Resource("slo.koordinator.sh", "v1alpha1", "nodemetrics", CustomObject)
TYPED = Resource("slo.koordinator.sh", "v1alpha1", "nodemetrics", Typed)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (Selector(), ["default/a", "default/b", "shop/c"]),
        (Selector(fields="spec.nodeName=node-1"), ["default/a", "shop/c"]),
        (Selector(fields="spec.nodeName=node-1,status.phase!=Failed"), ["default/a"]),
        (Selector(labels="app in (web, api),tier!=test"), ["default/a"]),
        (Selector(fields="metadata.namespace=shop", labels="!app"), ["shop/c"]),
        (Selector(labels="app=web", namespace="default"), ["default/a", "default/b"]),
    ],
    ids=["all", "a node's", "and not failed", "labels", "both", "a namespace's"],
)
def test_the_server_applies_the_selection(selector: Selector, names: list[str]):
    """Only selected objects are transferred, page by page."""
    with FakeKube() as server:
        server.pod("a", node="node-1", metadata={"labels": {"app": "web"}})
        server.pod("b", node="node-2", metadata={"labels": {"app": "web", "tier": "test"}})
        server.pod("shop/c", node="node-1", phase="Failed")
        listing = asked(server, lambda client: client.list(PODS, selector=selector, page=2))
    assert names == sorted(map(key_of, listing.items))


def test_a_selection_that_the_server_does_not_support_is_an_error():
    """With the message of the server."""
    with FakeKube() as server, pytest.raises(KubeRefused, match="field label not supported"):
        asked(server, lambda client: client.list(PODS, selector=Selector(fields="spec.colour=red")))


def test_an_object_is_read_by_name():
    """A missing object and a missing kind are different errors."""
    with FakeKube() as server:
        server.pod("shop/web", node="node-1")
        assert "node-1" == asked(server, lambda client: client.get(PODS, "shop/web")).spec.node_name
        with pytest.raises(KubeNotFound, match='pods "api" not found') as caught:
            asked(server, lambda client: client.get(PODS, "shop/api"))
    assert not isinstance(caught.value, KubeNoApi)


def test_a_custom_resource_is_read_as_json_or_by_type():
    """As its reader declares it."""
    with FakeKube() as server:
        server.define(NODE_METRICS, "NodeMetric")
        server.put(NODE_METRICS, "node-1", spec={"seconds": 60, "more": [1]})
        assert {"seconds": 60, "more": [1]} == asked(server, lambda client: client.get(CUSTOM, "node-1")).spec
        (typed,) = asked(server, lambda client: client.list(TYPED)).items
    assert 60 == typed.spec.seconds


def test_a_custom_resource_that_is_not_installed_has_its_own_error():
    """For lists and single objects."""
    with FakeKube() as server:
        for ask in (lambda client: client.list(CUSTOM), lambda client: client.get(CUSTOM, "node-1")):
            with pytest.raises(KubeNoApi, match=r"nodemetrics\.slo\.koordinator\.sh") as caught:
                asked(server, ask)
            assert "Check that this cluster serves slo.koordinator.sh/v1alpha1." == caught.value.hint


def test_an_object_of_another_type_does_not_affect_others():
    """A definition may check less than the readers need."""
    with FakeKube() as server:
        server.define(NODE_METRICS, "NodeMetric")
        server.put(NODE_METRICS, "good", spec={"seconds": 60})
        server.put(NODE_METRICS, "bad", spec={"seconds": "soon"})
        listing = asked(server, lambda client: client.list(TYPED))
    assert ["good"] == [key_of(item) for item in listing.items]
    assert ["bad"] == list(listing.unread)
    assert "Expected `int`, got `str` - at `$.spec.seconds`" == listing.unread["bad"]


# --- changes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change", "labels"),
    [
        (PatchKind.MERGE, {"metadata": {"labels": {"b": "2", "a": None}}}, {"b": "2"}),
        (PatchKind.STRATEGIC, {"metadata": {"labels": {"b": "2"}}}, {"a": "1", "b": "2"}),
        (PatchKind.JSON, [{"op": "replace", "path": "/metadata/labels/a", "value": "3"}], {"a": "3"}),
    ],
)
def test_the_three_kinds_of_patches(kind: PatchKind, change: Any, labels: dict[str, str]):
    """The result is the changed object."""
    with FakeKube() as server:
        server.node("n", metadata={"labels": {"a": "1"}})
        node = asked(server, lambda client: client.patch(NODES, "n", change, kind=kind))
        assert labels == node.metadata.labels == server.content(FAKE_NODES, "n")["metadata"]["labels"]


def test_a_change_of_an_old_version_is_a_conflict():
    """Otherwise, changes in between would be lost."""
    with FakeKube() as server:
        server.node("n")
        change = {"metadata": {"resourceVersion": "7", "labels": {"a": "1"}}}
        with pytest.raises(KubeConflict, match="the object has been modified"):
            asked(server, lambda client: client.patch(NODES, "n", change, kind=PatchKind.MERGE))
        assert "labels" not in server.content(FAKE_NODES, "n")["metadata"]


def test_the_status_is_changed_through_its_subresource():
    """A patch of the object does not change its status, and the reverse."""
    with FakeKube() as server:
        server.node("n", cpu="4")
        change = {"metadata": {"labels": {"a": "1"}}, "status": {"capacity": {"gpu": "4000"}}}

        def change_it(subresource: str) -> dict[str, Any]:
            kind = PatchKind.MERGE
            asked(server, lambda client: client.patch(NODES, "n", change, kind=kind, subresource=subresource))
            return server.content(FAKE_NODES, "n")

        before = change_it("")
        after = change_it("status")
    assert ({"cpu": "4", "memory": "8Gi"}, {"a": "1"}) == (before["status"]["capacity"], before["metadata"]["labels"])
    assert {"cpu": "4", "memory": "8Gi", "gpu": "4k"} == after["status"]["capacity"]


def test_a_missing_right_is_named_with_its_subresource():
    """As a Role has to state it."""
    with FakeKube(forbidden={("patch", "v1/nodes/status")}) as server:
        server.node("n")
        with pytest.raises(KubeForbidden) as caught:
            asked(server, lambda c: c.patch(NODES, "n", {}, kind=PatchKind.MERGE, subresource="status"))
    assert 'resources: ["nodes/status"], verbs: ["patch"]' in caught.value.hint


def test_an_invalid_name_is_not_requested():
    """It could be the path of another object."""
    with FakeKube() as server, pytest.raises(KubeRefused, match="is not a valid name"):
        asked(server, lambda client: client.get(PODS, "shop/../../v1/nodes"))
    assert [] == server.asked


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        ({"Retry-After": "7"}, {}, 7.0),
        ({}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, {"retryAfterSeconds": 3}, 3.0),
        ({"Retry-After": "0"}, {}, None),
        ({"Retry-After": "nan"}, {}, None),
        ({"Retry-After": "-1"}, {"causes": [{"reason": "DisruptionBudget"}]}, None),
        ({"Retry-After": "1e300"}, {}, 3600.0),
    ],
)
def test_the_wait_and_its_reasons_are_read_from_header_or_status(
    headers: dict[str, str], details: dict[str, Any], seconds: float | None
):
    """Values that are not a number of seconds are ignored."""
    answer = status_object(429, "slow down", **details)
    with FakeKube(fault=lambda _: web.json_response(answer, status=429, headers=headers)) as server:
        server.node("n")
        with pytest.raises(KubeUnreachable, match="slow down") as caught:
            asked(server, lambda client: client.get(NODES, "n"))
    assert seconds == caught.value.retry_after
    assert tuple(cause["reason"] for cause in details.get("causes", ())) == caught.value.causes


def test_a_long_refusal_in_pieces_is_read_to_its_end():
    """A proxy may send it in any number of parts."""
    answer = msgspec.json.encode(status_object(409, "x" * 3000, name="web", kind="pods"))

    with FakeKube(fault=lambda _: web.Response(body=answer, status=409, headers={"Connection": "close"})) as server:
        server.put(FAKE_PODS, "web", spec={})
        with pytest.raises(KubeConflict, match=r"409 Conflict\): xxx"):
            asked(server, lambda client: client.get(PODS, "default/web"))


@pytest.mark.parametrize(("verb", "allowed"), [("list", False), ("watch", True)])
def test_rights_are_checked_before_they_are_used(verb: str, allowed: bool):
    """By verb, group and resource. Any authenticated client may check its rights."""
    with FakeKube(forbidden={("list", FAKE_NODES), ("create", f"{FAKE_PODS}/eviction")}) as server:
        assert allowed is asked(server, lambda client: client.is_allowed(verb, NODES))
        assert not asked(server, lambda client: client.is_allowed("create", PODS, subresource="eviction"))
    (question, _) = (each for each in server.asked if each.verb == "create")
    expected = {"verb": verb, "group": "", "version": "v1", "resource": "nodes", "subresource": ""}
    assert expected == question.body["spec"]["resourceAttributes"]


async def test_an_unauthenticated_client_gets_an_error_about_its_rights():
    """401 is an error, not the response that the right is missing."""
    with FakeKube(token="another") as server:
        server.token = "changed"
        client = KubeClient(lambda: KubeAccess(server.url, "a test", token="a-token"))
        with pytest.raises(KubeUnauthorized):
            await closing(client, client.is_allowed("list", NODES))


async def closing(client: KubeClient, question: Awaitable[bool]) -> bool:
    try:
        return await question
    finally:
        await client.close()
