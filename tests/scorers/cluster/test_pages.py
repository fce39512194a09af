"""The nodes and pods that the scorers know, as `load-watcher record` reads them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from scorers.cluster.pages import AT_ONCE, ClusterHandler
from scorers.cluster.table import ClusterTable
from tests.fakes.service import Live, Protection
from tests.scorers.simulated_cluster import NOW, node, pod, stamp, table
from watcher.core.pods.observed import ClusterSnapshot, SnapshotNode, SnapshotPod

GIB = 2**30


class Served:
    def __init__(self, of: ClusterTable, *, protection: Protection | None = None) -> None:
        self.is_whole = True
        answers = ClusterHandler(of, now=lambda: NOW, is_whole=lambda: self.is_whole)
        self.live = Live(routes=answers.routes(), protection=protection)

    def ask(self) -> ClusterSnapshot:
        answer = self.live.ask("/scheduler/cluster")
        assert answer.status == 200, answer.body
        return msgspec.json.decode(answer.body, type=ClusterSnapshot)


def a_cluster() -> ClusterTable:
    web = pod(
        "web",
        node="b",
        containers=[{"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2"}}],
        scheduled=NOW - 30,
        metadata={
            "creationTimestamp": stamp(NOW - 40),
            "ownerReferences": [
                {"kind": "Node", "name": "other"},
                {"kind": "ReplicaSet", "name": "web-1", "controller": True},
            ],
        },
        priority=7,
    )
    waiting, gone = pod("waiting"), pod("gone", node="nowhere", scheduled=NOW - 5)
    made = table(
        [
            node("b", {"cpu": "4", "memory": "8Gi", "pods": "20"}, {"cpu": "3900m", "memory": "7Gi", "pods": "19"}),
            node("a", {"cpu": "2", "memory": "4Gi"}),
            node("odd", {"cpu": "0"}),
        ],
        [web, waiting, gone, pod("plain", node="a")],
    )
    made.reserve(pod("reserved"), "a", now=NOW, until=NOW + 5)
    return made


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(a_cluster())
    with made.live:
        yield made


def test_the_page_has_nodes_and_pods_as_a_trace_has_them(served: Served) -> None:
    """It has pods that are bound, not pods that wait or are reserved, and nodes with a capacity."""
    seen = served.ask()
    assert NOW == seen.time
    assert [
        SnapshotNode("a", 2.0, 4 * GIB, 2.0, 4 * GIB, None),
        SnapshotNode("b", 4.0, 8 * GIB, 3.9, 7 * GIB, 19),
    ] == seen.nodes
    web = SnapshotPod(
        *("web", "default", "web", "b"),
        bound=NOW - 30,
        created=NOW - 40,
        cores=1.5,
        bytes=GIB,
        cores_limit=2.0,
        priority=7,
        owner="ReplicaSet/web-1",
    )
    assert [SnapshotPod("gone", "default", "gone", "nowhere", NOW - 5)] == [
        each for each in seen.pods if each.uid == "gone"
    ]
    assert [SnapshotPod("plain", "default", "plain", "a", NOW), web] == [
        each for each in seen.pods if each.uid != "gone"
    ]


def test_the_page_has_all_of_many_pods() -> None:
    many = 2 * AT_ONCE + 1
    made = Served(table([node("a", {"cpu": "2", "memory": "4Gi"})], [pod(f"p{i}", node="a") for i in range(many)]))
    with made.live:
        assert many == len(made.ask().pods)


def test_the_page_is_empty_until_all_objects_are_listed(served: Served) -> None:
    """A recorder would take the missing objects for deleted ones."""
    served.is_whole = False
    answer = served.live.ask("/scheduler/cluster")
    assert (503, "not_ready") == (answer.status, answer.error["code"])


def test_the_page_requires_the_token() -> None:
    made = Served(table([]), protection=Protection(token="secret"))
    with made.live:
        assert 401 == made.live.ask("/scheduler/cluster").status
