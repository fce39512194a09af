"""What is asked of the API besides watching: selections, single objects, changes, and what the answers mean."""

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
    """A custom resource of which one number is read."""

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
def test_a_selection_is_the_servers(selector: Selector, names: list[str]):
    """Only what was selected crosses the wire, page by page."""
    with FakeKube() as server:
        server.pod("a", node="node-1", metadata={"labels": {"app": "web"}})
        server.pod("b", node="node-2", metadata={"labels": {"app": "web", "tier": "test"}})
        server.pod("shop/c", node="node-1", phase="Failed")
        listing = asked(server, lambda client: client.list(PODS, selector=selector, page=2))
    assert names == sorted(map(key_of, listing.items))


def test_a_selection_that_the_server_does_not_know_is_told():
    """With the server's own words."""
    with FakeKube() as server, pytest.raises(KubeRefused, match="field label not supported"):
        asked(server, lambda client: client.list(PODS, selector=Selector(fields="spec.colour=red")))


def test_one_object_by_its_name():
    """And that it is absent is not that its kind is."""
    with FakeKube() as server:
        server.pod("shop/web", node="node-1")
        assert "node-1" == asked(server, lambda client: client.get(PODS, "shop/web")).spec.node_name
        with pytest.raises(KubeNotFound, match='pods "api" not found') as caught:
            asked(server, lambda client: client.get(PODS, "shop/api"))
    assert not isinstance(caught.value, KubeNoApi)


def test_a_custom_resource_as_json_and_by_type():
    """Whichever the reader declares."""
    with FakeKube() as server:
        server.define(NODE_METRICS, "NodeMetric")
        server.put(NODE_METRICS, "node-1", spec={"seconds": 60, "more": [1]})
        assert {"seconds": 60, "more": [1]} == asked(server, lambda client: client.get(CUSTOM, "node-1")).spec
        (typed,) = asked(server, lambda client: client.list(TYPED)).items
    assert 60 == typed.spec.seconds


def test_a_custom_resource_that_is_not_installed_is_a_case_by_itself():
    """For lists and single objects alike."""
    with FakeKube() as server:
        for ask in (lambda client: client.list(CUSTOM), lambda client: client.get(CUSTOM, "node-1")):
            with pytest.raises(KubeNoApi, match=r"nodemetrics\.slo\.koordinator\.sh") as caught:
                asked(server, ask)
            assert "Check that this cluster serves slo.koordinator.sh/v1alpha1." == caught.value.hint


def test_an_object_that_does_not_fit_its_type_costs_no_other():
    """A definition may check less than its readers need."""
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
def test_three_ways_to_say_a_change(kind: PatchKind, change: Any, labels: dict[str, str]):
    """And the object comes back as it is then."""
    with FakeKube() as server:
        server.node("n", metadata={"labels": {"a": "1"}})
        node = asked(server, lambda client: client.patch(NODES, "n", change, kind=kind))
        assert labels == node.metadata.labels == server.content(FAKE_NODES, "n")["metadata"]["labels"]


def test_a_change_of_an_old_version_is_a_conflict():
    """What lies between would be lost."""
    with FakeKube() as server:
        server.node("n")
        change = {"metadata": {"resourceVersion": "7", "labels": {"a": "1"}}}
        with pytest.raises(KubeConflict, match="the object has been modified"):
            asked(server, lambda client: client.patch(NODES, "n", change, kind=PatchKind.MERGE))
        assert "labels" not in server.content(FAKE_NODES, "n")["metadata"]


def test_the_status_is_changed_through_its_own_door():
    """A patch of the object leaves its status alone, and one of the status all the rest."""
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


def test_what_lacks_for_a_change_is_named_with_its_subresource():
    """As a role has to have it."""
    with FakeKube(forbidden={("patch", "v1/nodes/status")}) as server:
        server.node("n")
        with pytest.raises(KubeForbidden) as caught:
            asked(server, lambda c: c.patch(NODES, "n", {}, kind=PatchKind.MERGE, subresource="status"))
    assert 'resources: ["nodes/status"], verbs: ["patch"]' in caught.value.hint


def test_a_name_that_is_none_is_not_asked_for():
    """It might lead to another object."""
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
def test_how_long_to_wait_and_why_is_read_where_it_is_said(
    headers: dict[str, str], details: dict[str, Any], seconds: float | None
):
    """In the header or in the Status; what is no number of seconds is no answer."""
    answer = status_object(429, "slow down", **details)
    with FakeKube(fault=lambda _: web.json_response(answer, status=429, headers=headers)) as server:
        server.node("n")
        with pytest.raises(KubeUnreachable, match="slow down") as caught:
            asked(server, lambda client: client.get(NODES, "n"))
    assert seconds == caught.value.retry_after
    assert tuple(cause["reason"] for cause in details.get("causes", ())) == caught.value.causes


def test_a_long_refusal_in_pieces_is_read_to_its_end():
    """A proxy may send it in as many pieces as it likes."""
    answer = msgspec.json.encode(status_object(409, "x" * 3000, name="web", kind="pods"))

    with FakeKube(fault=lambda _: web.Response(body=answer, status=409, headers={"Connection": "close"})) as server:
        server.put(FAKE_PODS, "web", spec={})
        with pytest.raises(KubeConflict, match=r"409 Conflict\): xxx"):
            asked(server, lambda client: client.get(PODS, "default/web"))


@pytest.mark.parametrize(("verb", "allowed"), [("list", False), ("watch", True)])
def test_rights_are_asked_for_before_they_are_used(verb: str, allowed: bool):
    """By verb, group and resource; whoever is known may ask, whatever else is forbidden."""
    with FakeKube(forbidden={("list", FAKE_NODES), ("create", f"{FAKE_PODS}/eviction")}) as server:
        assert allowed is asked(server, lambda client: client.is_allowed(verb, NODES))
        assert not asked(server, lambda client: client.is_allowed("create", PODS, subresource="eviction"))
    (question, _) = (each for each in server.asked if each.verb == "create")
    expected = {"verb": verb, "group": "", "version": "v1", "resource": "nodes", "subresource": ""}
    assert expected == question.body["spec"]["resourceAttributes"]


async def test_who_is_not_known_has_no_rights():
    """401 is an error, and not a no."""
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
