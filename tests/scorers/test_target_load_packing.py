"""The curve of TargetLoadPacking: golden cases, and what holds for every curve."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.target_load_packing import packing_scores

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "target_load_packing.json").read_text())["vectors"]


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["id"])
def test_golden(case):
    """What upstream's tests and the worked examples of seed and KEP say."""
    predicted = case["expected"]["predicted_percent"]
    array = np.array([np.nan if predicted is None else predicted])
    assert packing_scores(array, target=case["inputs"]["args"]["target_utilization"]) == [case["expected"]["score"]]


@given(st.floats(1, 99), st.lists(st.one_of(st.just(float("nan")), st.floats(0, 200)), min_size=1, max_size=20))
def test_scores_stay_in_range_and_peak_at_the_target(target, predicted):
    """Integers 0 to 100; 100 at the target, rising before it and falling after; 0 above 100 percent and for NaN."""
    array = np.sort(predicted)
    scores = packing_scores(array, target=target)
    assert ((scores >= 0) & (scores <= 100) & (scores == np.round(scores))).all()
    assert packing_scores(np.array([target]), target=target) == [100]
    assert (scores[np.isnan(array) | (array > 100)] == 0).all()
    assert (np.diff(scores[array <= target]) >= 0).all()
    assert (np.diff(scores[array > target]) <= 0).all()
