"""The copy of an informer: after any failures of server and connection, it becomes equal to the server's objects."""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.fakes.kube import NODES, Asked, FakeKube, line
from tests.fakes.kube import PODS as FAKE_PODS
from tests.waiting import eventually
from tests.watcher.platform.kube.watching import count, same, watched
from watcher.core.kubernetes.errors import KubeForbidden, KubeGone, KubeNoApi
from watcher.core.kubernetes.objects import NODES as NODE_RESOURCE
from watcher.core.kubernetes.objects import PODS, CustomObject, Node, Pod
from watcher.core.kubernetes.wire import Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess
from watcher.platform.kube.informer import NOTIFY_BATCH, Informer
from watcher.platform.kube.parameters import Selector

POLICIES = "ensurance.crane.io/v1alpha1/nodeqoss"


def test_a_list_is_followed_by_changes():
    """Each change once, in order, with the earlier object; one list is enough."""
    changes: list[tuple[str, bool, bool]] = []
    with FakeKube() as server:
        server.node("a", cpu="4000m")
        server.node("b")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            assert {"a", "b"} == set(informer.objects)
            server.node("c")
            server.node("a", cpu="8")
            server.delete(NODES, "b")
            await eventually(same(informer, server), what="the copy to follow")
            assert "8" == informer.objects["a"].status.capacity["cpu"]

        watched(server, check, on_change=lambda name, old, new: changes.append((name, old is None, new is None)))

    assert [("a", True, False), ("b", True, False)] == sorted(changes[:2])
    assert [("c", True, False), ("a", False, False), ("b", False, True)] == changes[2:]
    assert 1 == count(server, "list")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_after_any_sequence_of_events_the_copy_equals_the_server(seed: int):
    """Changes, cut connections, expired versions, refusals and short watches in any order: no deleted object remains,
    none is missing."""
    chance = random.Random(seed)
    mirror: dict[str, Node] = {}

    def follow(name: str, old: Node | None, new: Node | None) -> None:
        assert mirror.get(name) == old
        mirror.pop(name, None) if new is None else mirror.__setitem__(name, new)

    with FakeKube() as server:

        def happen() -> None:
            what = chance.choice(["put"] * 6 + ["delete"] * 4 + ["cut", "compact", "fault", "quiet"])
            names = sorted(server.names(NODES))
            if what == "put" or (what == "delete" and not names):
                server.node(f"n{chance.randrange(12)}", cpu=str(chance.randrange(1, 64)))
            elif what == "delete":
                server.delete(NODES, chance.choice(names))
            elif what == "cut":
                server.drop_connections()
            elif what == "compact":
                server.compact()
            elif what == "fault":
                code = chance.choice([401, 403, 410, 429, 500, 503])
                server.fault = lambda _: web.Response(status=code, text="no")
            else:
                server.fault = lambda _: None

        async def check(informer: Informer[Node]) -> None:
            for _ in range(60):
                happen()
                await asyncio.sleep(chance.choice([0, 0, 0.001, 0.01]))
            server.fault = lambda _: None
            await eventually(same(informer, server), what="the copy to be the server's state")
            assert mirror == dict(informer.objects)

        watched(server, check, on_change=follow, watch_seconds=1)


def test_objects_deleted_during_an_outage_are_removed_after_a_relist():
    """The version was compacted: 410 as an event, then a new list."""
    with FakeKube() as server:
        server.node("stays")
        server.node("goes")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            server.fault = lambda _: web.Response(status=503)
            server.drop_connections()
            server.delete(NODES, "goes")
            server.compact()
            server.fault = lambda asked: None
            await eventually(lambda: {"stays"} == set(informer.objects), what="the ghost to go")

        watched(server, check)

    assert 2 <= count(server, "list")


def test_a_lost_connection_continues_at_the_last_version():
    """Without another list, and with the changes made meanwhile."""
    with FakeKube() as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            await eventually(lambda: count(server, "watch") == 1, what="the watch")
            server.drop_connections()
            server.node("b")
            await eventually(same(informer, server), what="the copy to follow")

        watched(server, check)

    assert 1 == count(server, "list")


@pytest.mark.slow
def test_a_bookmark_advances_the_version():
    """A watch that ended continues at its bookmark, which changes of other resources advanced."""
    with FakeKube() as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            server.put("v1/pods", "p")
            await eventually(lambda: count(server, "watch") >= 2, what="the next watch")

        watched(server, check, watch_seconds=1)

    first, second, *_ = (int(a.parameters["resourceVersion"]) for a in server.asked if a.verb == "watch")
    assert first + 1 == second
    assert {"true"} == {a.parameters["allowWatchBookmarks"] for a in server.asked if a.verb == "watch"}


@pytest.mark.slow
def test_a_watch_without_events_is_followed_by_a_list():
    """It may wait for a version that a restored etcd does not have yet."""
    with FakeKube(bookmarks=False) as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: count(server, "list") >= 2, what="another list")
            await informer.wait()

        watched(server, check, watch_seconds=1)


def test_requests_to_a_failing_server_have_growing_delays():
    """Also if each list succeeds and each watch is refused."""
    with FakeKube(forbidden={("watch", NODES)}) as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            await eventually(lambda: informer.error, what="the refusal")
            assert isinstance(informer.error, KubeForbidden)
            assert "verb watch on nodes" in informer.error.hint
            assert {"a"} == set(informer.objects)
            await eventually(lambda: count(server, "watch") == 3, what="both short delays to pass")
            await asyncio.sleep(0.3)  # time in which a loop without delays would send a request

        watched(server, check, delays=(0.01, 0.02, 60.0))

    assert 3 == count(server, "list") == count(server, "watch")


def test_watches_that_end_at_once_have_delays():
    """A proxy that closes each response after its head."""
    ended: list[Asked] = []

    def fault(asked: Asked) -> web.Response | None:
        if asked.verb == "list":
            return None
        ended.append(asked)
        return web.Response(body=b"")

    with FakeKube(fault=fault) as server:

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: len(ended) == 2, what="two watches")
            await asyncio.sleep(0.3)  # time in which a loop without delays would send a request

        watched(server, check, delays=(0.05, 60.0))

    assert 2 == len(ended)


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"<html>login</html>\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":{"metadata":7}}\n',
        b'{"type":"ADDED","object":{"metadata":{"name":"gho',
        line("ERROR", {"kind": "Status", "code": 504, "reason": "Timeout", "message": "too large"}),
        b"x" * (5 << 20),
    ],
    ids=["html", "no object", "wrong type", "broken off", "error", "endless line"],
)
def test_an_invalid_response_of_a_watch_causes_a_relist(body: bytes):
    """The copy stays, and is updated afterwards."""
    odd = [body]

    def fault(asked: Asked) -> web.Response | None:
        return web.Response(body=odd.pop()) if asked.verb == "watch" and odd else None

    with FakeKube(fault=fault) as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: not odd and count(server, "watch") > 1, what="the next watch")
            server.node("b")
            await eventually(same(informer, server), what="the copy to follow")

        watched(server, check)


def test_a_watch_that_ends_within_a_line_needs_no_relist():
    """It is a lost connection like any other: the incomplete object is requested again."""
    odd = [b'{"type":"ADDED","object":{"metadata":{"name":"gho']
    with FakeKube(
        fault=lambda asked: web.Response(body=odd.pop()) if asked.verb == "watch" and odd else None
    ) as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: count(server, "watch") == 2, what="the next watch")
            server.node("b")
            await eventually(same(informer, server), what="the copy to follow")

        watched(server, check)

    assert 1 == count(server, "list")


def test_an_object_of_the_maximum_size_of_etcd_is_read_from_a_watch():
    """1.5 MiB in one line; aiohttp's own limit is a third of that."""
    with FakeKube() as server:

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: count(server, "watch") == 1, what="the watch")
            server.put(NODES, "large", metadata={"annotations": {"x": "y" * (3 << 19)}})
            await eventually(same(informer, server), what="the copy to follow")

        watched(server, check)

    assert 1 == count(server, "list")


# --- selections, custom resources, invalid objects -------------------------------------------------------------------


def test_an_object_that_leaves_the_selection_is_removed():
    """A pod that is bound to this node is added; one whose label is removed is deleted."""
    with FakeKube() as server:
        server.pod("mine", node="node-1", metadata={"labels": {"app": "web"}})
        server.pod("other", node="node-2", metadata={"labels": {"app": "web"}})
        server.pod("pending", phase="Pending", metadata={"labels": {"app": "web"}})

        async def check(informer: Informer[Pod]) -> None:
            await informer.wait()
            assert {"default/mine"} == set(informer.objects)
            server.pod("pending", node="node-1", metadata={"labels": {"app": "web"}})
            await eventually(lambda: "default/pending" in informer.objects, what="the pod that was bound")
            server.pod("mine", node="node-1")
            await eventually(lambda: {"default/pending"} == set(informer.objects), what="the other one to leave")

        selector = Selector(fields="spec.nodeName=node-1", labels="app=web")
        watched(server, check, resource=PODS, selector=selector)

    assert 1 == count(server, "list")


def test_a_custom_resource_that_is_installed_later_is_listed():
    """Until then there are no objects and an error that names it. When it is removed, so are the objects."""
    changes: list[tuple[str, bool]] = []
    with FakeKube() as server:

        async def check(informer: Informer[CustomObject]) -> None:
            with pytest.raises(KubeNoApi):
                await informer.wait()
            server.define(POLICIES, "NodeQOS")
            server.put(POLICIES, "p", spec={"rules": []})
            await eventually(lambda: {"p"} == set(informer.objects), what="the policy")
            await eventually(lambda: informer.error is None, what="the watch to be open")
            server.undefine(POLICIES)
            server.drop_connections()
            await eventually(lambda: not informer.objects and informer.error, what="the policy to go")
            assert isinstance(informer.error, KubeNoApi)

        resource = Resource("ensurance.crane.io", "v1alpha1", "nodeqoss", CustomObject)
        follow: Callable[..., None] = lambda name, old, new: changes.append((name, new is not None))  # noqa: E731
        watched(server, check, resource=resource, on_change=follow)

    assert [("p", True), ("p", False)] == changes


def test_a_404_of_a_proxy_removes_no_objects():
    """Only the API server can state that the kind does not exist."""
    with FakeKube() as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            server.fault = lambda _: web.Response(status=404, text="<html>no such page</html>")
            server.drop_connections()
            await eventually(lambda: informer.error, what="the refusal")
            assert {"a"} == set(informer.objects)

        watched(server, check)


def test_a_server_that_ends_during_a_watch_is_logged_in_plain_text(caplog: pytest.LogCaptureFixture):
    """aiohttp's message has the representation of another exception."""
    with FakeKube() as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            await eventually(lambda: count(server, "watch"), what="the watch")
            await asyncio.to_thread(server.__exit__)
            await eventually(lambda: informer.error, what="the end of the watch")
            await asyncio.to_thread(server.__enter__)

        watched(server, check)

    first = next(each for each in caplog.messages if "cannot watch nodes" in each)
    assert first.endswith("the request for nodes: the connection ended within the response")


def test_other_tasks_run_while_a_long_list_is_delivered():
    """A cluster has tens of thousands of pods."""
    turns = 0
    reported: list[int] = []

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with FakeKube() as server:
        for i in range(3 * NOTIFY_BATCH):
            server.node(f"n{i}")

        async def check(informer: Informer[Node]) -> None:
            other = asyncio.create_task(take_turns())
            await informer.wait()
            assert same(informer, server)()
            other.cancel()

        watched(server, check, on_change=lambda _name, _old, _new: reported.append(turns))
    assert len(reported) == 3 * NOTIFY_BATCH
    assert max(reported.count(turn) for turn in set(reported)) == NOTIFY_BATCH


def test_retry_now_skips_the_delay():
    """A waiting caller gets the result of the new attempt."""
    with FakeKube(forbidden={("list", NODES)}) as server:
        server.node("a")

        async def check(informer: Informer[Node]) -> None:
            for attempt in (1, 2):
                with pytest.raises(KubeForbidden):
                    await informer.wait()
                assert attempt == count(server, "list")
                informer.retry_now()
            server.forbidden.clear()
            informer.retry_now()
            await eventually(lambda: informer.synced.is_set(), what="the list")
            await eventually(lambda: not informer.error, what="the watch")
            informer.retry_now()  # without an error, there is no delay to skip
            await informer.wait()
            assert same(informer, server)()

        watched(server, check, delays=(3600.0,))


def test_an_object_of_another_type_is_left_out_and_logged_once(caplog: pytest.LogCaptureFixture):
    """In a list and in a watch, until it is valid or deleted."""
    bad: dict[str, Any] = {"status": {"startTime": "yesterday"}}
    with FakeKube() as server, caplog.at_level(logging.WARNING, "watcher.platform.kube.informer"):
        server.pod("good")
        server.pod("listed", **bad)

        async def check(informer: Informer[Pod]) -> None:
            await informer.wait()
            assert {"default/good"} == set(informer.objects)
            assert {"default/listed"} == set(informer.undecodable)
            server.pod("good", **bad)
            server.pod("good", **bad)
            server.pod("listed")
            await eventually(lambda: {"default/good"} == set(informer.undecodable), what="the news")
            assert {"default/listed"} == set(informer.objects)
            server.delete(FAKE_PODS, "default/good")
            await eventually(lambda: not informer.undecodable, what="it to go")

        watched(server, check, resource=PODS)

    reported = [record.getMessage().partition(", which cannot be decoded")[0] for record in caplog.records]
    assert ["ignoring pods default/listed", "ignoring pods default/good"] == reported
    assert 1 == count(server, "list")


def test_the_wait_of_the_server_is_kept():
    """It is longer than the informer's first delay."""
    busy = [web.Response(status=429, headers={"Retry-After": "3600"}), web.Response(status=429)]
    with FakeKube(fault=lambda _: busy.pop() if busy else None) as server:

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: len(server.asked) == 2, what="the second question")
            await asyncio.sleep(0.3)  # time in which it would send a request

        watched(server, check)

    assert 2 == len(server.asked)


def test_an_exception_in_a_callback_is_logged(caplog: pytest.LogCaptureFixture):
    """With the object; the informer continues."""
    with FakeKube() as server, caplog.at_level(logging.ERROR):
        server.node("a")
        watched(server, lambda informer: informer.wait(), on_change=lambda *_: 1 / 0)

    assert "a listener failed on a change of nodes a" in caplog.text


@pytest.mark.slow
def test_the_begin_and_the_end_of_a_failure_are_logged_once(caplog: pytest.LogCaptureFixture):
    with FakeKube() as server, caplog.at_level(logging.INFO, "watcher.platform.kube.informer"):

        async def check(informer: Informer[Node]) -> None:
            await informer.wait()
            server.fault = lambda _: web.Response(status=503)
            server.drop_connections()
            before = len(server.asked)
            await eventually(lambda: len(server.asked) > before + 4, what="some tries")
            server.fault = lambda _: None
            await eventually(lambda: informer.error is None, what="the end of it")

        watched(server, check)

    assert ["WARNING", "INFO"] == [record.levelname for record in caplog.records]


async def test_a_list_is_read_in_pages_and_at_once_if_they_expire():
    """410 for `continue`: it is requested again without pages."""
    with FakeKube() as server:
        for number in range(7):
            server.node(f"n{number}")

        async def check() -> None:
            client = KubeClient(lambda: KubeAccess(server.url, "a test", token=server.token))
            try:
                assert 7 == len((await client.list(NODE_RESOURCE, page=3)).items)
                assert 3 == len(server.asked)
                server.fault = lambda a: server.compact() if "continue" in a.parameters else None
                assert 7 == len((await client.list(NODE_RESOURCE, page=3)).items)
                assert "limit" not in server.asked[-1].parameters
                with pytest.raises(KubeGone):
                    async for _ in client.watch(NODE_RESOURCE, since="1", seconds=1):
                        pass
            finally:
                await client.close()

        await check()


def test_closing_is_fast_during_a_wait():
    """No task remains. Closing without a start is valid."""
    with FakeKube(delay=30.0) as server:

        async def check(informer: Informer[Node]) -> None:
            await eventually(lambda: server.asked, what="a question on its way")
            async with asyncio.timeout(2):
                await informer.close()
            assert {asyncio.current_task()} == asyncio.all_tasks()
            await informer.close()

        watched(server, check)
