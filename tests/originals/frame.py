"""What a comparison with an original consists of. `tests/originals/NAME/compare.py` defines `ORIGINAL`.

An original is a module folder with a Go program (`go.mod`, `go.sum`, `main.go`), its comparisons, and the documented
classes of differences. A comparison yields outcomes: the answer of the original and the answer of the product to the
same question. A `CaseComparison` generates random cases, can reduce a case, and can record cases.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import msgspec

Case = dict[str, Any]
"""A case as JSON."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Both answers to one question; equal answers compare equal. `check` is a line of the report. `subject` is the part
    of the case that the answers are about (for example the name of a node), `context` further data for the classes."""

    check: str
    case: Case
    original: Any
    product: Any
    subject: str = ""
    context: Any = None

    @property
    def equal(self) -> bool:
        return bool(self.original == self.product)


@dataclass(frozen=True, slots=True)
class DifferenceClass:
    """A documented class of differences; docs/reference/differences.md contains its `name`. `citation` is a place in
    the compared version of the original (file:line, issue or pull request). `explains` returns whether the class
    explains exactly this difference; it is called only for unequal outcomes of the `checks`, by default of all."""

    name: str
    citation: str
    reason: str
    explains: Callable[[Outcome], bool]
    checks: tuple[str, ...] = ()


Change = Callable[[Case, Outcome], Case]
"""Changes a copy of a case so that the product answers the changed case as the original answers the case. It returns
the case unchanged where the difference cannot occur."""


def explained_by(answer: Callable[[Case, Outcome], Any], change: Change, *others: Change) -> Callable[[Outcome], bool]:
    """Return whether the change, if necessary together with other changes, removes the difference: `answer` is the
    product's answer for a changed case, comparable with that of the outcome."""

    def explains(outcome: Outcome) -> bool:
        for size in range(len(others) + 1):
            for together in combinations(others, size):
                changed = outcome.case
                for each in (*together, change):
                    before, changed = changed, each(copy_of(changed), outcome)
                    if changed == before:
                        break
                else:
                    if answer(changed, outcome) == outcome.original:
                        return True
        return False

    return explains


def copy_of(case: Case) -> Case:
    """A deep copy; cases are JSON."""
    copied: Case = msgspec.json.decode(msgspec.json.encode(case))
    return copied


class Comparison(Protocol):
    """Outcomes for a seed. The same seed and number of cases give the same cases."""

    @property
    def name(self) -> str: ...

    @property
    def default_cases(self) -> int: ...

    def outcomes(self, program: Path, *, seed: int, cases: int) -> Iterator[Outcome]: ...


class CaseComparison(ABC):
    """A comparison of independent random cases."""

    name: str
    default_cases: int

    @abstractmethod
    def generate(self, source: random.Random) -> Case:
        """A random case."""

    @abstractmethod
    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[Any]:
        """The answers of the original as JSON, in the order of the cases."""

    @abstractmethod
    def compare(self, case: Case, original: Any) -> Iterator[Outcome]:
        """The outcomes of a case, given the answer of the original."""

    def is_valid(self, case: Case) -> bool:
        """Whether a reduced case is still a case that both sides accept."""
        return True

    def cases(self, seed: int, number: int) -> list[Case]:
        """Cases of a seed; a greater number only adds cases."""
        return [self.generate(random.Random(f"{self.name} {seed} {index}")) for index in range(number)]

    def outcomes(self, program: Path, *, seed: int, cases: int) -> Iterator[Outcome]:
        """The outcomes of all cases of a seed."""
        generated = self.cases(seed, cases)
        for case, answer in zip(generated, self.ask_original(program, generated), strict=True):
            yield from self.compare(case, answer)


@dataclass(frozen=True, slots=True)
class Original:
    """An original. `name` is its folder and its Go program, `version` the Go module and its version. The first class
    that explains a difference counts it."""

    name: str
    version: str
    comparisons: tuple[Comparison, ...]
    classes: tuple[DifferenceClass, ...]

    def class_of(self, outcome: Outcome) -> DifferenceClass | None:
        """The documented class of an unequal outcome, None if it is not documented."""
        found = (each for each in self.classes if not each.checks or outcome.check in each.checks)
        return next((each for each in found if each.explains(outcome)), None)

    def is_undocumented(self, outcome: Outcome) -> bool:
        return not outcome.equal and self.class_of(outcome) is None
