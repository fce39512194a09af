"""Recorded cases of the originals: load-watcher gives the same answers, apart from documented differences.

`python -m tests.originals --record` writes the files.
"""

from __future__ import annotations

import logging
from collections import Counter
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
    "katalyst": "## Katalyst",
    "koordinator": "## Koordinator",
    "trimaran": "## Trimaran",
}
EXPLAINED = {
    "katalyst": {
        "cpu: bound nodes": 547,
        "cpu: first pool": 92,
        "cpu: late pools": 132,
        "cpu: no CPUs for shared pods": 18,
        "cpu: odd CPUs": 70,
        "cpu: order of pools": 4,
        "cpu: preferred number of NUMA nodes": 2,
        "cpu: quantity of a sidecar": 73,
        "cpu: sum of requests": 7,
        "memory: no NUMA nodes for shared pods": 198,
        "memory: nodes of reclaimed pods": 80,
        "memory: quantity of shared memory": 392,
    },
}
"""The number of recorded outcomes that each class explains. A class that puts a rule of the original in place of a rule
of the product would also explain faults in this rule; they change the number."""
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


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPLAINED)
def test_a_class_explains_the_same_number_of_outcomes(name: str):
    found = Counter(result for outcome, result in outcomes(name) if not outcome.equal)
    assert found == EXPLAINED[name], "after --record: check the new differences, then update EXPLAINED"


@pytest.mark.parametrize("name", RECORDED)
def test_files_are_small(name: str):
    assert recorded_file(name).stat().st_size <= LIMIT
