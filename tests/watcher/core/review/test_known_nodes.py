"""New node names beyond the limit are left out; the rest of a fetch is not changed."""

from __future__ import annotations

import numpy as np

from watcher.core.review.known_nodes import refusal, refused_names, restored_within, without_nodes
from watcher.core.windows.records import SampleBlock, TickRecord
from watcher.model import METRIC_BY_KEY, SeriesBatch

CPU = METRIC_BY_KEY["CPU"]


def test_known_nodes_and_those_of_the_cluster_are_never_refused() -> None:
    """Also if the limit is below their number."""
    names = ["a", "b", "new-1", "new-2", "new-3", "of-cluster"]
    assert refused_names(names, known=("a", "b"), cluster=("of-cluster", "other"), most=6) == {"new-3"}
    assert refused_names(names, known=("a", "b"), cluster=("of-cluster",), most=1) == {"new-1", "new-2", "new-3"}
    assert refused_names(names, known=names, cluster=(), most=1) == frozenset()


def test_the_series_of_other_nodes_keep_their_samples_and_devices() -> None:
    batch = SeriesBatch(
        CPU,
        ("a", "x", "b"),
        np.array([0, 0, 1, 2, 2]),
        np.array([1.0, 2.0, 1.0, 1.0, 2.0]),
        np.array([10.0, 11.0, 50.0, 20.0, 21.0]),
        devices=("d1", "d2", "d3"),
    )
    kept = without_nodes(batch, {"x"})
    assert (kept.nodes, kept.devices, kept.sharers) == (("a", "b"), ("d1", "d3"), ())
    assert kept.series.tolist() == [0, 0, 1, 1]
    assert kept.value.tolist() == [10.0, 11.0, 20.0, 21.0]
    assert without_nodes(batch, {"y"}) is batch


def test_the_reason_names_the_cause() -> None:
    text = refusal(5_000, {"10.0.0.1", "10.0.0.2"}, most=10_240)
    assert text.startswith("5,000 new node names in a fetch, such as 10.0.0.1, 10.0.0.2: 2 are left out")
    assert "Is node_label right?" in text


def test_of_stored_samples_the_nodes_with_the_newest_are_restored() -> None:
    """A database from before the limit may have more names."""
    old = SampleBlock(CPU.name, 0, ("a", "b"), np.ones((4, 2)), np.zeros((4, 2), dtype=np.uint16))
    new = SampleBlock(CPU.name, 4, ("c", "a"), np.ones((4, 2)) * 2, np.zeros((4, 2), dtype=np.uint16))
    restored = TickRecord(8.0, 8.0, "S", 15, (), {}, (old, new))
    kept, others = restored_within(restored, most=2)
    assert others == 1
    assert [(block.first_slot, block.nodes) for block in kept.blocks] == [(0, ("a",)), (4, ("c", "a"))]
    assert kept.blocks[0].values.shape == (4, 1)
    assert restored_within(restored, most=3) == (restored, 0)
