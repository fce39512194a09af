"""One copy for all followers of the same objects of a cluster in the process: a new follower gets all objects, and one
that leaves does not affect others."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunService
from tests.fakes.kube import NODES as FAKE_NODES
from tests.fakes.kube import FakeKube
from tests.waiting import eventually, wait_for
from tests.watcher.platform.kube.watching import count, same
from tests.watcher.sources.metrics_server.test_provider import at, two_nodes
from watcher.core.kubernetes.errors import KubeForbidden
from watcher.core.kubernetes.objects import NODES, Node
from watcher.platform.kube.credentials import AccessFinder, KubeAccess
from watcher.platform.kube.informer import NOTIFY_BATCH
from watcher.platform.kube.shared_informer import SharedInformer


class Follower:
    """A shared informer of the server's nodes, and a copy made from its notifications."""

    def __init__(self, access: Callable[[], KubeAccess]) -> None:
        self.nodes: dict[str, Node] = {}
        self.reported = 0
        self.informer = SharedInformer(access, NODES, on_change=self.note)

    def note(self, name: str, old: Node | None, new: Node | None) -> None:
        assert self.nodes.get(name) == old
        assert old != new
        self.reported += 1
        self.nodes.pop(name, None) if new is None else self.nodes.__setitem__(name, new)

    def is_true(self, server: FakeKube) -> bool:
        return same(self.informer, server)() and self.nodes == dict(self.informer.objects)


def shared(server: FakeKube, work: Callable[[Callable[[], KubeAccess]], Awaitable[Any]]) -> None:
    """Run `work` with access to the server; it must close all that it starts."""

    async def inside() -> None:
        async with asyncio.timeout(120):
            await work(partial(KubeAccess, server.url, "a test", token=server.token))
        assert {asyncio.current_task()} == asyncio.all_tasks()

    asyncio.run(inside())


def test_one_list_and_one_watch_serve_all_followers():
    """Concurrent ones, successive ones, and while some leave; the list and watch end with the last one."""
    with FakeKube() as server:
        server.node("a")
        server.node("b")

        async def work(access: Callable[[], KubeAccess]) -> None:
            first, second, late = (Follower(access) for _ in range(3))
            quiet = SharedInformer(access, NODES)  # a follower without callbacks
            for each in (first.informer, second.informer, quiet):
                await each.start()
            await asyncio.gather(first.informer.wait(), second.informer.wait(), quiet.wait())
            assert {"a", "b"} == set(first.nodes) == set(second.nodes) == set(quiet.objects)
            await first.informer.close()
            await first.informer.close()  # within its own limit
            await late.informer.start()
            await late.informer.wait()
            assert {"a", "b"} == set(late.nodes)
            server.node("c")
            server.delete(FAKE_NODES, "a")
            await eventually(lambda: second.is_true(server) and late.is_true(server), what="both to follow")
            assert {"a", "b"} == set(first.nodes)
            assert (1, 1) == (count(server, "list"), count(server, "watch"))
            for each in (second.informer, quiet, late.informer):
                await each.close()
            again = Follower(access)
            await again.informer.start()
            await again.informer.wait()
            assert 2 == count(server, "list")
            await again.informer.close()

        shared(server, work)


def test_a_follower_that_joins_during_changes_gets_each_object_once():
    """Existing objects are delivered in batches; an object that changes or is deleted meanwhile is not delivered in its
    old state."""
    with FakeKube() as server:
        for i in range(3 * NOTIFY_BATCH):
            server.node(f"n{i:04}")

        async def work(access: Callable[[], KubeAccess]) -> None:
            first, late = Follower(access), Follower(access)
            await first.informer.start()
            await first.informer.wait()
            await late.informer.start()
            await asyncio.sleep(0)  # one turn of the event loop
            assert NOTIFY_BATCH == late.reported < len(late.informer.objects)
            assert not late.informer.synced.is_set()
            names = sorted(set(late.informer.objects) - set(late.nodes))
            copy = late.informer._copy
            assert copy is not None
            changed = copy.informer.objects[names[1]]
            copy.informer._put(names[0], None)  # as from a watch, at this moment
            copy.informer._put(names[1], Node(changed.metadata))
            assert NOTIFY_BATCH + 1 == late.reported
            await late.informer.wait()
            assert late.nodes == dict(late.informer.objects) == first.nodes
            assert 3 * NOTIFY_BATCH - 1 == late.reported
            await first.informer.close()
            await late.informer.close()

        shared(server, work)


def test_a_follower_that_leaves_gets_no_more_objects():
    """It does not delay the others."""
    with FakeKube() as server:
        for i in range(2 * NOTIFY_BATCH):
            server.node(f"n{i:04}")

        async def work(access: Callable[[], KubeAccess]) -> None:
            first, late = Follower(access), Follower(access)
            await first.informer.start()
            await first.informer.wait()
            await late.informer.start()
            await late.informer.close()
            server.node("new")
            await eventually(lambda: first.is_true(server), what="the other to follow")
            assert not late.reported
            await first.informer.close()

        shared(server, work)


def test_a_follower_whose_leaving_is_cancelled_still_leaves():
    """For example a reload that the end of the service cancels."""
    with FakeKube() as server:
        server.node("a")

        async def work(access: Callable[[], KubeAccess]) -> None:
            follower = Follower(access)
            await follower.informer.start()
            await follower.informer.wait()
            leaving = asyncio.create_task(follower.informer.close())
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
            assert leaving.cancelled()

        shared(server, work)


def test_a_failure_is_reported_to_all_and_a_new_follower_causes_a_retry():
    """The new follower does not get an earlier error, and the others get the list at the same time."""
    with FakeKube(forbidden={("list", FAKE_NODES)}) as server:
        server.node("a")

        async def work(access: Callable[[], KubeAccess]) -> None:
            first, second, late = (Follower(access) for _ in range(3))
            for each in (first, second):
                await each.informer.start()
                with pytest.raises(KubeForbidden):
                    await each.informer.wait()
            assert first.informer.error is second.informer.error is not None
            server.forbidden.clear()
            await late.informer.start()
            await late.informer.wait()
            await eventually(lambda: first.is_true(server) and second.is_true(server), what="the others' nodes")
            await eventually(lambda: not first.informer.error and not late.informer.error, what="the trouble to end")
            for each in (first, second, late):
                await each.informer.close()

        shared(server, work)


def test_an_exception_of_one_follower_does_not_affect_others(caplog: pytest.LogCaptureFixture):
    """It is logged, for the list and for changes."""

    def refuse(name: str, _old: Node | None, _new: Node | None) -> None:
        raise ValueError(name)

    with FakeKube() as server, caplog.at_level(logging.ERROR):
        server.node("a")

        async def work(access: Callable[[], KubeAccess]) -> None:
            good, late = Follower(access), Follower(access)
            await good.informer.start()
            await good.informer.wait()
            bad = SharedInformer(access, NODES, on_change=refuse)
            await bad.start()
            await late.informer.start()
            await bad.wait()
            server.node("b")
            await eventually(lambda: good.is_true(server) and late.is_true(server), what="the others to follow")
            for each in (good.informer, bad, late.informer):
                await each.close()

        shared(server, work)
    reported = [record.getMessage() for record in caplog.records]
    assert [f"a listener failed on a change of nodes {name}" for name in ("a", "b")] == reported


def test_another_access_to_the_cluster_has_its_own_copy():
    """It may be another cluster."""
    with FakeKube() as one, FakeKube() as other:
        one.node("a")
        other.node("b")

        async def work(access: Callable[[], KubeAccess]) -> None:
            here = Follower(access)
            there = Follower(partial(KubeAccess, other.url, "another", token=other.token))
            for each in (here, there):
                await each.informer.start()
                await each.informer.wait()
            assert ({"a"}, {"b"}) == (set(here.nodes), set(there.nodes))
            await here.informer.close()
            other.node("c")
            await eventually(lambda: there.is_true(other), what="the other to follow")
            await there.informer.close()

        shared(one, work)


def test_a_kubeconfig_is_the_same_until_it_is_written(tmp_path: Path):
    """A replaced file may lead to another cluster."""
    file, other = tmp_path / "config", tmp_path / "other"
    nothing = AccessFinder.of(file)
    assert nothing == AccessFinder.of(file)
    file.write_text("one")
    before = AccessFinder.of(file)
    assert before == AccessFinder.of(file)
    assert hash(before) == hash(AccessFinder.of(file))
    assert before not in (nothing, AccessFinder.of(file, "production"))
    other.write_text("two")
    other.replace(file)
    assert before != AccessFinder.of(file)
    assert AccessFinder.of(None) == AccessFinder.of(None)


# --- in a service ----------------------------------------------------------------------------------------------------

CONFIG = """
[provider]
name = "metrics-server"
[refresh]
resolution = "1s"
[kubernetes]
kubeconfig = "{kubeconfig}"
node_names = "on"
node_label = "{label}"
[scheduler.default]
plugins = [ {{ name = "TargetLoadPacking" }} ]
"""


@pytest.mark.slow
def test_a_service_lists_and_watches_nodes_once(run_service: RunService, tmp_path: Path):
    """For names, the source and the scheduling plug-ins together, also when a reload restarts two of them."""
    with FakeKube() as server:
        two_nodes(server)
        for name in ("a", "b"):
            server.usage(name, time=at(time.time() - 5), cpu="1")
        file = server.kubeconfig(tmp_path / "kubeconfig")
        service = run_service(config=CONFIG.format(kubeconfig=file, label="rack"))

        def ranked() -> set[str]:
            answer = service.get("/scheduler/cluster")
            return {each["name"] for each in answer.json()["nodes"]} if answer.status == 200 else set()

        wait_for(lambda: service.get("/watcher").status == 200, what="the first answer")
        wait_for(lambda: ranked() == {"a", "b"}, what="the scheduler's nodes")
        service.config_file.write_text(CONFIG.format(kubeconfig=file, label="other"))
        os.kill(service.pid, signal.SIGHUP)
        wait_for(lambda: "settings reloaded" in service.log(), what="the reload")
        server.node("c")
        server.usage("c", time=at(time.time()), cpu="2")
        wait_for(lambda: "c" in ranked(), what="the new node in the scheduler")
        wait_for(lambda: service.get("/watcher/c").status == 200, what="the new node in the source")
        assert 0 == service.stop()

    asked = [each.verb for each in server.asked if each.resource == FAKE_NODES]
    assert ["list", "watch"] == asked
