"""The difference between this machine's clock and that of the API server, by the Date of a response."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watcher.platform.kube.responses import seconds_ahead

NOON = 1700049600.0  # 2023-11-15T12:00:00Z
DATE = "Wed, 15 Nov 2023 12:00:00 GMT"


@pytest.mark.parametrize(
    ("date", "now", "ahead"),
    [
        (DATE, NOON, 0.0),
        (DATE, NOON + 4.9, 0.0),  # the header has whole seconds, and the response took some time
        (DATE, NOON - 4.9, 0.0),
        (DATE, NOON + 61.0, 61.0),
        (DATE, NOON - 7200.0, -7200.0),
        (None, NOON, 0.0),
        ("", NOON, 0.0),
        ("yesterday", NOON, 0.0),
    ],
)
def test_a_difference_beyond_the_resolution_of_the_header_counts(date: str | None, now: float, ahead: float):
    assert ahead == seconds_ahead(date, now=now)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.text() | st.from_regex(r"\w{3}, \d{2} \w{3} \d{1,6} \d{2}:\d{2}:\d{2} [-+]?\w{3,4}"))
def test_any_header_is_accepted(date: str):
    assert math.isfinite(seconds_ahead(date, now=NOON))
