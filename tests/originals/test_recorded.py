"""Answers of the originals to recorded cases: load-watcher gives them again, apart from documented differences. The
files are written by `python -m tests.originals --record`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.originals.__main__ import NAMES, load
from tests.originals.frame import CaseComparison, Original
from tests.originals.recording import LIMIT, read_records, recorded_file

RECORDED = [name for name in NAMES if recorded_file(name).exists()]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without the warnings about invalid annotations, of which the cases have many."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def recorded_comparisons() -> Iterator[tuple[str, CaseComparison, Original]]:
    for name in RECORDED:
        original = load(name)
        for comparison in original.comparisons:
            if isinstance(comparison, CaseComparison):
                yield name, comparison, original


@pytest.mark.parametrize(
    ("name", "comparison", "original"),
    [pytest.param(*each, id=f"{each[0]}-{each[1].name}") for each in recorded_comparisons()],
)
def test_answers_equal_those_of_the_original(name: str, comparison: CaseComparison, original: Original):
    records = read_records(recorded_file(name))[comparison.name]
    outcomes = [each for case, answer in records for each in comparison.compare(case, answer)]
    differing = [each for each in outcomes if original.is_undocumented(each)]
    assert not differing, f"{differing[0].check} {differing[0].subject}: {differing[0]}"
    equal = Counter(each.check for each in outcomes if each.equal)
    assert equal.keys() == {each.check for each in outcomes}
    assert len(records) >= 20


@pytest.mark.parametrize("name", RECORDED)
def test_files_are_small(name: str):
    assert recorded_file(name).stat().st_size <= LIMIT
