"""Reduce a case to the parts without which an undocumented difference disappears."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.originals.frame import Case, CaseComparison, Original, Outcome

ROUNDS = 60
CANDIDATES = 120  # of a round: one start of the original's program answers all of them


def smallest_outcome(original: Original, comparison: CaseComparison, program: Path, found: Outcome) -> Outcome:
    """The outcome of the smallest case that still has an undocumented difference of the same kind."""
    kind = _kind(found)

    def outcomes_of(cases: Sequence[Case]) -> Iterator[Outcome | None]:
        for case, answer in zip(cases, comparison.ask_original(program, cases), strict=True):
            matching = (each for each in comparison.compare(case, answer) if _kind(each) == kind)
            yield next((each for each in matching if original.is_undocumented(each)), None)

    return reduce_case(found, comparison.is_valid, outcomes_of)


def reduce_case(
    found: Outcome, is_valid: Callable[[Case], bool], outcomes_of: Callable[[Sequence[Case]], Iterator[Outcome | None]]
) -> Outcome:
    """Remove one part of the case at a time, large parts first, while `outcomes_of` returns an outcome."""
    for _ in range(ROUNDS):
        candidates = [case for path in _parts(found.case) if is_valid(case := _without(found.case, path))]
        candidates.sort(key=_size)
        for start in range(0, len(candidates), CANDIDATES):
            if smaller := next(filter(None, outcomes_of(candidates[start : start + CANDIDATES])), None):
                found = smaller
                break
        else:
            return found
    return found


def _kind(outcome: Outcome) -> tuple[str, bool, bool]:
    return outcome.check, _is_error(outcome.original), _is_error(outcome.product)


def _is_error(answer: Any) -> bool:
    return isinstance(answer, dict) and "error" in answer


def _size(case: Case) -> int:
    return len(json.dumps(case))


def _parts(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all parts below the top level of a JSON value."""
    keys: Sequence[Any] = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        if at:
            yield (*at, key)
        yield from _parts(value[key], (*at, key))


def _without(case: Case, path: tuple[Any, ...]) -> Case:
    reduced = copy.deepcopy(case)
    part: Any = reduced
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    return reduced
