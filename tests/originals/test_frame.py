"""The frame of the comparisons, with an original that doubles a number."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.originals.__main__ import compare
from tests.originals.frame import Case, CaseComparison, DifferenceClass, Original, Outcome, explained_by
from tests.originals.recording import read_file, record
from tests.originals.shrinking import smallest_outcome

PROGRAM = Path("program")


class Doubling(CaseComparison):
    """The product is wrong for 13, and on purpose does not double negative numbers."""

    name = "doubling"
    default_cases = 200

    def generate(self, source: random.Random) -> Case:
        numbers = [source.randint(-20, 20) for _ in range(source.randint(1, 5))]
        return {"numbers": numbers, "note": {"text": source.choice("ab")}}

    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[Any]:
        assert program == PROGRAM
        return [[2 * number for number in case["numbers"]] for case in cases]

    def compare(self, case: Case, original: Any) -> Iterator[Outcome]:
        for position, (theirs, number) in enumerate(zip(original, case["numbers"], strict=True)):
            yield Outcome("double", case, theirs, self.ask_product(number), subject=str(position))

    def ask_product(self, number: int) -> int:
        return 27 if number == 13 else 2 * max(0, number)


class Correct(Doubling):
    """The same without the fault."""

    def ask_product(self, number: int) -> int:
        return 2 * max(0, number)


def with_positive(case: Case, outcome: Outcome) -> Case:
    case["numbers"] = [abs(number) for number in case["numbers"]]
    return case


def answer(case: Case, outcome: Outcome) -> int:
    sign = -1 if outcome.case["numbers"][int(outcome.subject)] < 0 else 1
    doubled: int = sign * 2 * case["numbers"][int(outcome.subject)]
    return doubled


NEGATIVE = DifferenceClass(
    "negative numbers", "double.go:1", "they are not numbers", explained_by(answer, with_positive)
)


def original(comparison: CaseComparison, *classes: DifferenceClass) -> Original:
    return Original("doubler", "example.com/doubler v1", (comparison,), classes)


def test_an_undocumented_difference_is_counted_and_printed_with_a_small_case(capsys: pytest.CaptureFixture[str]):
    count = compare(original(Doubling(), NEGATIVE), PROGRAM, seed=1)
    printed = capsys.readouterr().out
    assert count > 0
    assert "doubler: example.com/doubler v1, seed 1" in printed
    assert 'case: {"numbers": [13], "note": {}}' in printed
    assert "original: 26" in printed
    assert "product:  27" in printed


def test_documented_differences_are_counted_with_citation_and_reason(capsys: pytest.CaptureFixture[str]):
    assert compare(original(Correct(), NEGATIVE), PROGRAM, seed=1, cases=50) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    cases = Correct().cases(1, 50)
    negative = sum(number < 0 for case in cases for number in case["numbers"])
    total = sum(len(case["numbers"]) for case in cases)
    assert f"{negative} x negative numbers" in lines
    assert ["double", str(total), str(total - negative), str(negative), "0"] in [line.split() for line in lines]
    assert "original: double.go:1" in lines
    assert "reason: they are not numbers" in lines


def test_without_a_class_a_difference_is_undocumented():
    assert compare(original(Correct()), PROGRAM, seed=1, cases=50) > 0


def test_a_class_explains_only_differences_that_its_change_removes():
    known = original(Correct(), NEGATIVE)
    case = {"numbers": [-3, 4]}
    assert known.class_of(Outcome("double", case, -6, 0, subject="0")) is NEGATIVE
    assert known.class_of(Outcome("double", case, -7, 0, subject="0")) is None
    assert known.class_of(Outcome("double", case, 9, 8, subject="1")) is None


def test_a_class_is_limited_to_its_checks():
    limited = DifferenceClass("all", "double.go:1", "a reason", lambda _: True, ("halve",))
    known = original(Correct(), limited)
    assert known.class_of(Outcome("double", {}, 1, 2)) is None
    assert known.class_of(Outcome("halve", {}, 1, 2)) is limited


def test_changes_are_tried_together():
    def with_sign(case: Case, outcome: Outcome) -> Case:
        return {**case, "signed": True}

    def with_product(case: Case, outcome: Outcome) -> Any:
        return case["numbers"] if case.get("signed") else None

    both = explained_by(with_product, with_positive, with_sign)
    assert both(Outcome("double", {"numbers": [-1]}, [1], 0))
    assert not both(Outcome("double", {"numbers": [-1]}, [2], 0))
    assert not both(Outcome("double", {"numbers": [1]}, [1], 0))  # the change does not apply


def test_a_seed_determines_the_cases():
    comparison = Doubling()
    assert comparison.cases(7, 20) == comparison.cases(7, 20)
    assert comparison.cases(7, 10) == comparison.cases(7, 20)[:10]
    assert comparison.cases(7, 20) != comparison.cases(8, 20)


def test_a_reduced_case_keeps_its_kind_of_difference():
    class Careful(Doubling):
        def is_valid(self, case: Case) -> bool:
            return "text" in case["note"]

    known = original(Careful())
    case = {"numbers": [2, 13, 5], "note": {"text": "a", "more": [1, 2]}}
    found = next(each for each in Careful().compare(case, [4, 26, 10]) if not each.equal)
    smallest = smallest_outcome(known, Careful(), PROGRAM, found)
    assert smallest.case == {"numbers": [13], "note": {"text": "a"}}


def test_recorded_cases_cover_each_class_and_value(tmp_path: Path):
    comparison, path = Correct(), tmp_path / "recorded.json.gz"
    known = original(comparison, NEGATIVE)
    message = record(known, PROGRAM, path, cases=100)
    records = read_file(path)["doubling"]
    assert message == f"{path}: {len(records)} cases of doubling, {path.stat().st_size} bytes"
    assert 3 <= len(records) < 100
    assert {case["note"]["text"] for case, _ in records} == {"a", "b"}
    outcomes = [each for case, found in records for each in comparison.compare(case, found)]
    assert {each.equal for each in outcomes} == {True, False}
    assert not any(map(known.is_undocumented, outcomes))
