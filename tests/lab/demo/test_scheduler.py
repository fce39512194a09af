"""The simulated scheduler: how it reaches the extender, which node it selects, and the cluster in the scorers'
table."""

from __future__ import annotations

import asyncio

import pytest

from lab.demo.scheduler import SimulatedApi, chosen, image_points, reachable
from lab.fleet.cluster import SimulatedCluster
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.wire import HostPriority
from tests.scorers.simulated_cluster import pod
from watcher.core.kubernetes.errors import KubeConflict
from watcher.core.kubernetes.objects import Node, Pod

BEGUN = 1_795_000_000.0


def test_a_service_on_all_addresses_is_reached_at_loopback() -> None:
    """Scheme and port stay; other addresses are unchanged. tests/watcher/platform/net/test_listening.py has hosts."""
    assert reachable("http://0.0.0.0:2020") == "http://127.0.0.1:2020"
    assert reachable("https://[::]:1") == "https://127.0.0.1:1"
    for address in ("http://127.0.0.1:2020", "http://[::1]:2020", "http://192.0.2.7:80"):
        assert reachable(address) == address


def test_the_highest_score_wins_and_equal_scores_are_decided_at_random() -> None:
    """For a pod always in the same way, in any order of the response."""
    scores = [HostPriority("a", 3), HostPriority("b", 7), HostPriority("c", 7)]
    taken = {uid: chosen(scores, pod(uid=uid)) for uid in map(str, range(40))}
    assert set(taken.values()) == {("b", 7), ("c", 7)}
    assert all(chosen(scores[::-1], pod(uid=uid)) == found for uid, found in taken.items())


def test_a_large_image_outweighs_a_small_difference_of_scores() -> None:
    """As by ImageLocality: on some nodes, for some workloads, so that the extender does not always decide."""
    scores = [HostPriority(f"node-{number}", 50) for number in range(60)]
    small, large = (image_points(scores, pod(name=name), most=30) for name in ("lint-7-abc", "training-8-def"))
    assert set(small.values()) == {0}
    assert set(large.values()) == {0, 30}
    assert 10 < sum(1 for each in large.values() if each) < 35
    assert large == image_points(scores, pod(name="training-9-ghi"), most=30)


async def test_the_scorers_table_follows_the_simulated_cluster() -> None:
    """Existing objects are reported in several turns of the event loop, then each change; a binding is refused as by
    the API."""
    cluster = SimulatedCluster(60, seed=1, speed=24.0, begun=BEGUN)
    api, table = SimulatedApi(cluster, now=lambda: BEGUN + 5.0), ClusterTable()
    turns = 0

    def node_changed(name: str, _old: Node | None, new: Node | None) -> None:
        table.set_node(name, new)

    def pod_changed(_key: str, old: Pod | None, new: Pod | None) -> None:
        table.set_pod(old, new, now=BEGUN)

    await api.start(on_node=node_changed, on_pod=pod_changed, on_node_metric=None)
    cluster.advance(BEGUN)  # a pod that is created while the others are listed
    while not api.synced.is_set():
        turns += 1
        await asyncio.sleep(0)
    assert int(table.pods.sum()) + len(cluster.waiting()) == len(cluster.pods())
    (waiting,) = cluster.waiting()
    key = f"{waiting.metadata.namespace}/{waiting.metadata.name}"
    node = cluster.fitting_nodes(key)[0]
    before = int(table.pods[table.row[node]])
    assert api.pod(key) == waiting
    await api.bind(key, node=node, uid=waiting.metadata.uid)
    assert int(table.pods[table.row[node]]) == before + 1
    with pytest.raises(KubeConflict):
        await api.bind(key, node=node, uid=waiting.metadata.uid)
    await api.close()
    reported = int(table.pods.sum())
    cluster.advance(BEGUN + 3600.0)  # changes after the end are not reported: pods were replaced
    assert int(table.pods.sum()) == reported
    assert turns > 10
    assert set(table.row) == set(cluster.nodes)
