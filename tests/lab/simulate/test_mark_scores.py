"""What kube-scheduler makes of taints and annotations."""

from __future__ import annotations

import numpy as np
import pytest

from lab.simulate.mark_scores import node_metadata, taint_toleration


@pytest.mark.parametrize(
    ("taints", "scores"),
    [([0, 0], [100, 100]), ([1, 1], [0, 0]), ([0, 1, 3], [100, 67, 0]), ([2, 3], [34, 0]), ([], [])],
)
def test_taints_count_relative_to_the_most_tainted_feasible_node(taints: list[int], scores: list[int]):
    """Go divides integers before it subtracts: 100 - 100 * 1 / 3 is 67."""
    assert scores == taint_toleration(np.array(taints, dtype=np.int64)).tolist()


@pytest.mark.parametrize(
    ("values", "scores"),
    [([70, 70], [1, 1]), ([40, 41], [1, 100]), ([0, 50, 100], [1, 50, 100]), ([-1, 40, 80], [1, 50, 100]), ([], [])],
)
def test_the_annotations_of_feasible_nodes_span_all_scores(values: list[int], scores: list[int]):
    """A node without the annotation counts as 0."""
    assert scores == node_metadata(np.array(values, dtype=np.int64)).tolist()
