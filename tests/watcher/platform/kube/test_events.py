"""Events are written where kubectl looks for them."""

import pytest

from tests.fakes.kube import CONFIG_MAPS as MAPS
from tests.fakes.kube import EVENTS, NODES, FakeKube
from tests.watcher.platform.kube.asking import asked
from watcher.core.kubernetes.errors import KubeConflict, KubeForbidden, KubeNotFound
from watcher.core.kubernetes.objects import CONFIG_MAPS
from watcher.core.kubernetes.objects import NODES as NODES_OF_THE_API
from watcher.platform.kube.events import EventSource, EventSubject, report
from watcher.platform.kube.parameters import PatchKind

BY = EventSource(component="load-watcher-agent", host="node-1")


@pytest.mark.parametrize(
    ("about", "namespace", "involved"),
    [
        (
            EventSubject("Pod", "shop/web-0", "u1"),
            "shop",
            {"kind": "Pod", "namespace": "shop", "name": "web-0", "uid": "u1"},
        ),
        (EventSubject("Node", "node-1"), "default", {"kind": "Node", "name": "node-1", "uid": "node-1"}),
    ],
    ids=["pod", "node"],
)
def test_an_event_is_in_the_namespace_of_its_object(about: EventSubject, namespace: str, involved: dict[str, str]):
    with FakeKube() as server:
        asked(
            server,
            lambda client: report(
                client, about, reason="Evicted", message="x" * 2000, warning=True, by=BY, now=1_700_000_000.5
            ),
        )
        (name,) = server.names(EVENTS)
        event = server.content(EVENTS, name)
    assert name.startswith(f"{namespace}/{involved['name']}.")
    assert {"apiVersion": "v1", **involved} == event["involvedObject"]
    assert ("Warning", "Evicted", "2023-11-14T22:13:20Z") == (event["type"], event["reason"], event["lastTimestamp"])
    assert 1024 >= len(event["message"].encode())


def test_a_missing_right_is_logged_with_its_rule():
    with FakeKube(forbidden={("create", "v1/events")}) as server, pytest.raises(KubeForbidden) as refused:
        asked(
            server,
            lambda client: report(
                client, EventSubject("Node", "n"), reason="A", message="b", warning=False, by=BY, now=1.0
            ),
        )
    assert '{apiGroups: [""], resources: ["events"], verbs: ["create"]}' in refused.value.hint


def test_objects_are_counted_with_a_limit_of_one():
    with FakeKube() as server:
        assert 0 == asked(server, lambda client: client.count(NODES_OF_THE_API))
        for number in range(7):
            server.node(f"n{number}")
        assert 7 == asked(server, lambda client: client.count(NODES_OF_THE_API))
        assert {"limit": "1"} == [each for each in server.asked if each.resource == NODES][-1].parameters


def test_a_config_map_is_only_changed_in_its_newest_version():
    async def two_at_once(client):
        read = await client.get(CONFIG_MAPS, "lw/limits")
        change = {"metadata": {"resourceVersion": read.metadata.resource_version}, "data": {"a": "2"}}
        new = await client.patch(CONFIG_MAPS, "lw/limits", change, kind=PatchKind.MERGE)
        assert {"a": "2", "b": "1"} == new.data
        with pytest.raises(KubeConflict):
            await client.patch(CONFIG_MAPS, "lw/limits", change | {"data": {"a": "3"}}, kind=PatchKind.MERGE)
        with pytest.raises(KubeNotFound):
            await client.get(CONFIG_MAPS, "lw/none")

    with FakeKube() as server:
        server.put(MAPS, "lw/limits", data={"a": "1", "b": "1"})
        asked(server, two_at_once)
