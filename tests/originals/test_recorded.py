"""Recorded cases of the originals: load-watcher gives the same answers, apart from documented differences.

`python -m tests.originals --record` writes the files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.originals.__main__ import NAMES, load
from tests.originals.frame import CaseComparison, Outcome
from tests.originals.recording import LIMIT, read_records, recorded_file

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "differences.md"
SECTIONS = {
    "crane": "## Crane",
    "koordinator": "## Koordinator",
    "trimaran": "## Trimaran",
}
RECORDED = [name for name in NAMES if recorded_file(name).exists()]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without the warnings about invalid annotations, of which the cases have many."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@cache
def outcomes(name: str) -> list[tuple[Outcome, str]]:
    """The outcomes of the recorded cases with "equal", "undocumented", or the name of the class."""
    original, records, found = load(name), read_records(name), []
    for comparison in original.comparisons:
        if isinstance(comparison, CaseComparison):
            for case, answer in records[comparison.name]:
                for outcome in comparison.compare(case, answer):
                    explaining = None if outcome.equal else original.class_of(outcome)
                    result = explaining.name if explaining else "equal" if outcome.equal else "undocumented"
                    found.append((outcome, result))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
def test_answers_equal_those_of_the_original(name: str):
    differing = [outcome for outcome, result in outcomes(name) if result == "undocumented"]
    assert not differing, f"{differing[0].check} {differing[0].subject}: {differing[0]}"
    checks = {outcome.check for outcome, _ in outcomes(name)}
    assert {outcome.check for outcome, result in outcomes(name) if result == "equal"} == checks
    assert sum(result == "equal" for _, result in outcomes(name)) > 100


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_each_documented_class_is_recorded_and_on_the_page(name: str):
    classes = {each.name for each in load(name).classes}
    assert {result for _, result in outcomes(name)} - {"equal"} == classes
    section = PAGE.read_text().partition(SECTIONS[name])[2].partition("\n## ")[0].casefold()
    assert [each for each in classes if each.casefold() not in section] == []


@pytest.mark.parametrize("name", RECORDED)
def test_files_are_small(name: str):
    assert recorded_file(name).stat().st_size <= LIMIT
