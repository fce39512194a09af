"""GET /api/v1/trend: responses, queries of the store, and errors."""

import numpy as np

from tests.fakes.service import FakeService, Live
from watcher.core.koordinator.report import Capacity
from watcher.model import Operator
from watcher.store.codec import Grid
from watcher.store.errors import StoreError

NOW = 1_700_000_001  # of FakeService
PATH = "/api/v1/trend"
FIRST = NOW // 300 * 300 - 900


def minutes(*times: int) -> Grid:
    """Of node-1 and node-2 at 20 and 40 % of CPU."""
    values = np.array([[[20.0, 40.0]]] * len(times), dtype=np.float32)
    columns = (("instance:node_cpu:ratio", Operator.AVG),)
    return Grid(np.array(times, dtype=np.int64), columns, ("node-1", "node-2"), values)


def test_the_means_of_the_last_day() -> None:
    sizes = {"node-1": Capacity(3000, 1), "node-2": Capacity(1000, 1)}
    service = FakeService(grids=[minutes(FIRST, FIRST + 300)], sizes=sizes)
    with Live(service) as live:
        document = live.ask(PATH).json()
    assert [{"window": "5m", "start": NOW - 86_400, "end": NOW}] == service.asked
    assert {
        "start": NOW - 86_400,
        "end": NOW,
        "step": 300,
        "window": "5m",
        "weighted": True,
        "reason": "",
        "time": [FIRST, FIRST + 300],
        "nodes": [2, 2],
        "cpu": [25.0, 25.0],
        "memory": [None, None],
    } == document


def test_the_store_is_read_again_after_a_while_and_the_etag_changes_with_the_means() -> None:
    service = FakeService(grids=[minutes(FIRST)])
    with Live(service) as live:
        first = live.ask(PATH)
        etag = {"If-None-Match": first.headers["ETag"]}
        assert 304 == live.ask(PATH, headers=etag).status
        assert 1 == len(service.asked)
        service.clock += 20
        assert 304 == live.ask(PATH, headers=etag).status
        assert 2 == len(service.asked)
        service.clock += 20
        service.grids = [minutes(FIRST + 300)]
        second = live.ask(PATH, headers=etag)
    assert (200, [FIRST, FIRST + 300]) == (second.status, second.json()["time"])


def test_without_means_the_reason_is_given() -> None:
    with Live(FakeService()) as live:
        document = live.ask(PATH).json()
        assert 400 == live.ask(f"{PATH}?window=5m").status
    assert ([], False) == (document["time"], document["weighted"])
    assert document["reason"].startswith("no windows are stored yet")


def test_a_store_that_cannot_be_read_is_an_error() -> None:
    with Live(FakeService(history_error=StoreError("the disk is gone", hint="check it"))) as live:
        answer = live.ask(PATH)
    assert (503, "history_unavailable", "check it") == (answer.status, answer.error["code"], answer.error["hint"])
