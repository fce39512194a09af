"""One row of `make faults`, which shows that the program works."""

from pathlib import Path

import pytest

from tests.faults import truth
from tests.faults.rows import ROWS
from tests.faults.running import run

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_a_service_that_was_killed_serves_true_values_again(tmp_path: Path):
    (row,) = (each for each in ROWS if each.name == "kill -9")
    outcome = run(row, tmp_path)
    assert [] == outcome.problems
    assert outcome.line().startswith("|kill -9|")
    assert "status" in outcome.signs


def test_old_load_is_not_a_possible_average():
    """After ten minutes and after an hour, most nodes have another load."""
    now = 1_800_000_000.0
    for ago in (600.0, 3600.0):
        old = [node for node in truth.NODES if node != truth.HOT and _is_possible(node, at=now, value_of=now - ago)]
        assert len(old) <= 2


def _is_possible(node: str, *, at: float, value_of: float) -> bool:
    lowest, highest = truth.possible_averages(node, 300.0, at - 40.0, at)
    value, _ = truth.possible_averages(node, 300.0, value_of - 5.0, value_of)
    return lowest - 1.5 <= value <= highest + 1.5
