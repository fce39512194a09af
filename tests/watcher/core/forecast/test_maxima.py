import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.forecast.maxima import decode, encode, span_maxima


@pytest.mark.parametrize(
    ("percent", "code"),
    [(0.0, 1), (1e-6, 2), (100 / 254, 2), (100 / 254 + 0.001, 3), (50.0, 128), (100.0, 255), (-3.0, 1), (104.0, 255)],
)
def test_codes(percent: float, code: int):
    assert code == encode(np.array([percent]))[0]


def test_a_slot_without_a_sample_is_code_0():
    assert [0, 1] == encode(np.array([np.nan, 0.0])).tolist()
    assert np.isnan(decode(np.array([0], dtype=np.uint8))[0])


@given(st.floats(0, 100))
def test_a_stored_maximum_is_at_most_a_step_above_the_value_and_never_below(percent: float):
    stored = float(decode(encode(np.array([percent])))[0])
    assert percent - 1e-8 <= stored < percent + 100 / 254


@given(st.lists(st.integers(0, 255), min_size=1, max_size=60), st.integers(1, 30))
def test_spans_are_those_of_a_plain_loop(codes: list[int], length: int):
    wanted = []
    for start in range(len(codes) - length + 1):
        span = codes[start : start + length]
        wanted.append(max(span) if 2 * sum(code > 0 for code in span) >= length else 0)
    found = span_maxima(np.array(codes, dtype=np.uint8)[:, None], length)
    assert wanted == found[:, 0].tolist()


def test_fewer_slots_than_a_span_give_no_rows():
    assert (0, 3) == span_maxima(np.ones((5, 3), dtype=np.uint8), 6).shape
