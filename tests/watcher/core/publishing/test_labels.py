"""The labels of nodes as columns, restricted to labels that group nodes."""

from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import publish, small_fleet, snapshot_of
from watcher.core.publishing.labels import labels_document

ZONE = "topology.kubernetes.io/zone"
FLEET = {
    "node-1": {"pool": "web", ZONE: "a", "kubernetes.io/hostname": "node-1"},
    "node-2": {"pool": "web", ZONE: "b", "kubernetes.io/hostname": "node-2"},
    "node-3": {"pool": "ci", "kubernetes.io/hostname": "node-3"},
}


def test_labels_are_values_and_an_index_per_node():
    """Well-known ones first; null without the label. A label with a different value for each node is left out."""
    document = labels_document(sorted(FLEET), lambda node: FLEET.get(node, {}), reason="unknown")
    assert [(ZONE, ["a", "b"], [0, 1, None]), ("pool", ["ci", "web"], [1, 1, 0])] == [
        (each.name, each.values, each.nodes) for each in document.labels
    ]
    assert (["kubernetes.io/hostname"], "") == (document.left_out, document.reason)


def test_a_label_of_a_single_node_is_kept():
    """A fleet of one node has labels, too."""
    document = labels_document(["a"], lambda _node: {"pool": "web"}, reason="unknown")
    assert ["pool"] == [each.name for each in document.labels]


def test_without_labels_the_reason_is_given():
    """It names the source of labels."""
    assert ([], "unknown") == (
        labels_document(["a"], lambda _node: {}, reason="unknown").labels,
        labels_document(["a"], lambda _node: {}, reason="unknown").reason,
    )


def test_the_etag_changes_only_with_the_labels():
    """Not with each tick."""
    service = FakeService(labels=FLEET)
    with Live(service) as live:
        answer = live.ask("/api/v1/labels")
        assert ["node-1", "node-2", "node-3"] == answer.json()["nodes"]
        headers = {"If-None-Match": answer.headers["ETag"]}
        service.published = publish(snapshot_of(small_fleet()), tag="t2")
        assert 304 == live.ask("/api/v1/labels", headers=headers).status
        service.labels = {**FLEET, "node-3": {"pool": "web"}}
        service.published = publish(snapshot_of(small_fleet()), tag="t3")
        assert 200 == live.ask("/api/v1/labels", headers=headers).status
        service.labels = {}
        service.published = publish(snapshot_of(small_fleet()), tag="t4")
        assert "Kubernetes API" in live.ask("/api/v1/labels").json()["reason"]
