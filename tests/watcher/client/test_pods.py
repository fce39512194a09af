"""Pods through both clients: equal from both, renewed beside the nodes, and without an effect on these."""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.fakes.pods import many_pods, publish_pods, small_pods
from tests.fakes.service import FakeService, Live
from tests.waiting import eventually
from tests.watcher.client.test_client import beside, reported, run
from watcher.client import InProcessClient, PodColumns, WatcherError, to_pods
from watcher.core.pods.published import PublishedPods


def in_process(service: FakeService, **options: Any) -> InProcessClient:
    return beside(lambda: service.published, pods=service, **options)


def same(one: Any, other: Any) -> bool:
    """Equal except for the time of receipt."""
    if isinstance(one, PodColumns):
        names = {each.name for each in fields(PodColumns)} - {"received", "age_at_receipt"}
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and one and isinstance(one[0], np.ndarray):
        return all(same(mine, yours) for mine, yours in zip(one, other, strict=True))
    return bool(np.array_equal(one, other, equal_nan=True)) if isinstance(one, np.ndarray) else bool(one == other)


def test_both_clients_return_the_same_pods() -> None:
    """Over HTTP and in the process, thousands of pods; each client requests the collection of pods."""
    service = FakeService(pods=publish_pods(many_pods(5_000)))
    with Live(service) as live:

        async def story() -> None:
            over_http, inside = reported(live), in_process(service)
            assert same(await over_http.refresh_pods(), await inside.refresh_pods())
            assert 2 == service.wanted
            await over_http.close()
            await inside.close()

        run(story)


@pytest.mark.parametrize("count", [0, 5_000], ids=["three pods", "thousands"])
def test_both_clients_return_the_same_minutes(count: int) -> None:
    """Readings with more digits than the document."""
    readings = {pod: (node, cores / 3, memory / 3) for pod, (node, cores, memory) in many_pods(count or 3).items()}
    service = FakeService(pods=publish_pods(readings))
    with Live(service) as live:

        async def story() -> None:
            over_http, inside = reported(live, minutes=True), in_process(service, minutes=True)
            pods = await over_http.refresh_pods()
            assert same(pods, await inside.refresh_pods())
            assert pods.recent is not None
            assert (15, len(pods.pods)) == pods.recent[0].shape
            assert len(np.unique(pods.recent[0][-1])) > 1
            await over_http.close()
            await inside.close()

        run(story)


async def test_minutes_are_read_only_arrays() -> None:
    """Three minutes of three pods, the last ones of fifteen rows."""
    service = FakeService(pods=publish_pods(small_pods()))
    assert (await in_process(service).refresh_pods()).recent is None
    pods = await in_process(service, minutes=True).refresh_pods()
    assert pods.recent is not None
    cores, memory = pods.recent
    assert [[0.25, 1.5, 0.0]] * 3 == cores[-3:].tolist()
    assert np.isnan(cores[:-3]).all()
    assert [2.0**30, 2.0**31] == memory[-1, :2].tolist()
    assert np.isnan(memory[:, 2]).all()
    assert [False, False] == [each.flags.writeable for each in pods.recent]


async def test_pods_are_read_only_arrays() -> None:
    """Found by name and by node; NaN for unknown values."""
    pods = await in_process(FakeService(pods=publish_pods(small_pods()))).refresh_pods()
    assert (("a", "web-0"), ("a", "web-1"), ("b", "job")) == pods.pods
    assert 1 == pods.row["a", "web-1"]
    assert {"node-1": [0], "node-2": [1, 2]} == {node: rows.tolist() for node, rows in pods.on_node.items()}
    assert [0.25, 1.5, 0.0] == pods.cores.tolist()
    np.testing.assert_array_equal([2**30, 2**31, np.nan], pods.memory)
    assert [1_700_000_000.0] * 3 == pods.sampled.tolist()
    cores, memory = pods.average["5m"]
    assert [0.25, 1.5, 0.0] == cores.tolist()
    np.testing.assert_array_equal([2**30, 2**31, np.nan], memory)
    assert np.isnan(pods.average["15m"][0]).all()
    assert (60.0, 120.0, "rss") == (pods.every_s, pods.cores_span_s, pods.memory_kind)
    with pytest.raises(ValueError, match="read-only"):
        pods.cores[0] = 1.0


def test_an_unchanged_list_is_not_sent_again() -> None:
    """304: the copy stays, with its current age."""
    service = FakeService(pods=publish_pods(small_pods(), age_s=10.0))
    with Live(service) as live:

        async def story() -> None:
            client = reported(live, monotonic=lambda: service.clock)
            first = await client.refresh_pods()
            service.clock += 30.0
            second = await client.refresh_pods()
            assert first.cores is second.cores
            assert 40.0 <= client.latest_pods().age(service.clock) <= 42.0
            service.pods = publish_pods({("a", "other"): ("node-1", 1.0, 1.0)}, tag="p2", monotonic=service.clock)
            assert (("a", "other"),) == (await client.refresh_pods()).pods
            await client.close()

        run(story)


def test_a_client_in_the_process_copies_a_list_once() -> None:
    """With fifty thousand pods, a copy takes a tenth of a second."""
    service = FakeService(pods=publish_pods(small_pods()))

    async def story() -> None:
        client = in_process(service)
        first = await client.refresh_pods()
        assert first is await client.refresh_pods()
        service.pods = publish_pods(small_pods(), tag="p2")
        assert first is not await client.refresh_pods()
        await client.close()

    run(story)


def test_a_client_that_keeps_pods_renews_them_with_the_nodes() -> None:
    """From the first list of the watcher on."""
    service = FakeService()
    with Live(service) as live:

        async def story() -> None:
            async with reported(live, pods=True, interval=0.02) as client:
                assert 3 == len(client.latest().nodes)
                with pytest.raises(WatcherError) as failure:
                    client.latest_pods()
                assert "no_pods" == failure.value.code
                service.pods = publish_pods(small_pods())
                await eventually(lambda: len(client.latest_pods().pods) == 3, what="pods", ignoring=(WatcherError,))

        run(story)


def test_a_failure_of_pods_does_not_affect_the_nodes_and_the_reverse(caplog) -> None:
    """Each with one line in the log when it begins, and one when it ends."""
    caplog.set_level(logging.INFO, logger="watcher.client")
    service = FakeService(published=None, pods=publish_pods(small_pods()))

    async def story() -> None:
        published = FakeService().published
        async with in_process(service, interval=0.01) as client:
            assert 3 == len(client.latest_pods().pods)
            with pytest.raises(WatcherError):
                client.latest()
            service.published, service.pods, service.no_pods = published, None, "the series are gone"
            await eventually(lambda: client.latest().nodes, what="nodes", ignoring=(WatcherError,))
            await eventually(lambda: "cannot get pods" in caplog.text, what="the line in the log")
            assert 3 == len(client.latest_pods().pods)

    run(story)
    lines = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert [
        "cannot get nodes from the watcher",
        "getting nodes from the watcher works again",
        "cannot get pods from the watcher",
    ] == lines
    assert "the series are gone" in caplog.text


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"pods": None}, "no_pods"),
        ({"pods": publish_pods({})}, "no_pods"),
        ({"pods": publish_pods(small_pods(), age_s=301.0)}, "stale"),
    ],
    ids=["none", "empty", "old"],
)
def test_both_clients_fail_with_the_same_codes(change, code) -> None:
    """Those of the API."""
    service = FakeService(**change)
    with Live(service) as live:

        async def story() -> None:
            for client in (reported(live), in_process(service)):
                with pytest.raises(WatcherError) as failure:
                    await client.refresh_pods()
                assert code == failure.value.code
                await client.close()

        run(story)


def test_a_client_that_does_not_keep_pods_has_its_own_error() -> None:
    """Not the one for pods that are not available yet."""

    async def story() -> None:
        client = beside(lambda: FakeService().published)
        with pytest.raises(WatcherError, match="stores no copy of pods"):
            client.latest_pods()
        with pytest.raises(WatcherError, match="stores no copy of pods"):
            await client.refresh_pods()
        await client.close()

    run(story)


@pytest.mark.parametrize("column", ["namespace", "node", "time", "cores", "bytes"])
def test_columns_of_different_lengths_are_an_error(column) -> None:
    document = publish_pods(small_pods()).document()
    getattr(document, column).pop()
    with pytest.raises(WatcherError) as failure:
        to_pods(document, received=0.0, age_at_receipt=0.0)
    assert "malformed" == failure.value.code


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"timestamp": 1', msgspec.json.encode(publish_pods(small_pods()).document())[:-1]],
    ids=["empty", "list", "object", "cut", "almost"],
)
def test_a_body_that_is_not_a_document_is_an_error(body) -> None:
    """The copy stays."""
    service = FakeService(pods=publish_pods(small_pods()))
    with Live(service) as live:

        async def story() -> None:
            client = reported(live)
            kept = await client.refresh_pods()
            service.pods = _Broken(body)
            with pytest.raises(WatcherError) as failure:
                await client.refresh_pods()
            assert "malformed" == failure.value.code
            assert kept is client.latest_pods()
            await client.close()

        run(story)


class _Broken(PublishedPods):
    """Published pods with another body."""

    def __init__(self, body: bytes) -> None:
        self.__dict__.update(publish_pods(small_pods(), tag="broken").__dict__)
        self._body = body

    def body(self, *_: Any, **__: Any) -> bytes:
        return self._body
