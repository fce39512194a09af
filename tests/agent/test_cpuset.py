"""Sets of CPUs as text."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import cpuset
from tests.agent.qrm.vectors import cases


@cases("cpuset_text")
def test_golden(case: dict[str, Any]):
    if case.get("error"):
        with pytest.raises(ValueError, match="neither a number nor a range"):
            cpuset.parse(case["text"])
    else:
        assert cpuset.parse(case["text"]) == frozenset(case["cpus"])
        assert cpuset.text(case["cpus"]) == case["text"]


@given(st.frozensets(st.integers(0, 300)))
def test_round_trip(cpus: frozenset[int]):
    assert cpuset.parse(cpuset.text(cpus)) == cpus


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3-1", "ends before it begins"),
        ("-1", "neither a number nor a range"),
        ("1-", "neither a number nor a range"),
        ("0-2-4", "neither a number nor a range"),
        ("٣", "neither a number nor a range"),
        ("0-99999999999", "is greater than"),
        (",", "neither a number nor a range"),
        ("x" * 10_000, "xxx…"),
    ],
)
def test_bad_text_is_refused_with_its_reason(text: str, reason: str):
    with pytest.raises(ValueError, match=reason) as raised:
        cpuset.parse(text)
    if len(text) < 100:
        assert repr(text) in str(raised.value)


def test_a_text_with_a_trailing_newline_is_read():
    assert cpuset.parse("0-3\n") == {0, 1, 2, 3}
    assert cpuset.parse("\n") == frozenset()
