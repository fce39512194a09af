"""Recorded answers of Crane, compared without Go."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.originals.crane.classes import CLASSES
from tests.originals.crane.compare import ORIGINAL, CraneComparison
from tests.originals.frame import DifferenceClass, Outcome
from tests.originals.recording import read_records

PAGE = Path(__file__).parents[3] / "docs" / "differences.md"
RECORDS = read_records("crane")
COMPARISONS = [each for each in ORIGINAL.comparisons if isinstance(each, CraneComparison)]


@cache
def outcomes(name: str) -> tuple[tuple[Outcome, str], ...]:
    """The outcomes of a comparison with the names of the classes that explain them; "" if equal, "undocumented"."""
    comparison = next(each for each in COMPARISONS if each.name == name)
    return tuple(
        (outcome, "" if outcome.equal else each.name if (each := ORIGINAL.class_of(outcome)) else "undocumented")
        for case, answer in RECORDS[name]
        for outcome in comparison.compare(case, answer)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_every_difference_is_documented(name: str):
    assert len(outcomes(name)) > 40
    assert [outcome for outcome, explained in outcomes(name) if explained == "undocumented"] == []


@pytest.mark.slow
def test_the_records_have_every_documented_difference():
    found = {explained for name in RECORDS for _, explained in outcomes(name)}
    assert {each.name for each in CLASSES} == found - {""}


@pytest.mark.parametrize("each", CLASSES, ids=lambda each: each.name)
def test_the_page_has_the_difference_and_its_place(each: DifferenceClass):
    section = PAGE.read_text().partition("## Crane")[2].partition("\n## ")[0].casefold()
    (row,) = (line for line in section.splitlines() if line.startswith(f"| {each.name.casefold()}"))
    assert each.citation.partition(", ")[0].removeprefix("pkg/ensurance/") in row
