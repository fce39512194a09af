"""Kubernetes' durations, which have the format of Go."""

from __future__ import annotations

import pytest

from watcher.core.kubernetes.times import read_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300.0),
        ("5m0s", 300.0),
        ("1h30m0s", 5400.0),
        ("1.5h", 5400.0),
        (".5m", 30.0),
        ("1s5m", 301.0),
        ("300000ms", 300.0),
        ("10.062s", 10.062),
        ("1500µs", 0.0015),
        ("0", 0.0),
        ("0s", 0.0),
    ],
)
def test_durations_are_read_in_the_format_of_go(text: str, seconds: float) -> None:
    """All units, fractions and orders."""
    assert read_duration(text) == pytest.approx(seconds, rel=1e-12, abs=0.0)


@pytest.mark.parametrize("text", ["", "5", "m", ".s", "-5m", "5 m", "5m\n", "5mm", "1e3s", "٣s", "1d", "9" * 13 + "s"])
def test_invalid_and_negative_durations_are_errors(text: str) -> None:
    assert read_duration(text) is None
