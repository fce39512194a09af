"""Compare load-watcher with the original implementations: `python -m tests.originals [NAME ...] [--seed N]`.

The exit status is 1 if a difference is outside the documented classes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.originals.frame import CaseComparison, Comparison, DifferenceClass, Original, Outcome
from tests.originals.programs import program
from tests.originals.recording import record
from tests.originals.shrinking import smallest_outcome

HERE = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in HERE.glob("*/compare.py")))
SHOWN = 3  # undocumented differences of a check that are printed


def load(name: str) -> Original:
    """The original with this name."""
    original: Original = importlib.import_module(f"tests.originals.{name}.compare").ORIGINAL
    return original


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(NAMES)):
        parser.error(f"unknown original: {', '.join(unknown)} (known: {', '.join(NAMES)})")
    logging.disable(logging.WARNING)  # invalid annotations are part of the cases
    undocumented = 0
    for name in options.names or NAMES:
        original = load(name)
        executable = program(name)
        if options.record:
            print(record(original, executable, cases=options.cases), flush=True)
            continue
        undocumented += _compare(original, executable, seed=options.seed, cases=options.cases)
    if undocumented:
        print(f"{undocumented} differences are outside the documented classes", file=sys.stderr)
    return int(undocumented > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.originals", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)} [default: all]")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random cases [default: 1]")
    parser.add_argument("--cases", type=int, help="number of cases of each comparison [default: set by the comparison]")
    parser.add_argument("--record", action="store_true", help="write the recorded cases of the tests, then exit")
    return parser


def _compare(original: Original, executable: Path, *, seed: int, cases: int | None) -> int:
    """Print the table of an original and its undocumented differences; return how many there are."""
    print(f"{original.name}: {original.version}, seed {seed}", flush=True)
    undocumented = 0
    for comparison in original.comparisons:
        started = time.monotonic()
        number = cases or comparison.default_cases
        tally = Tally(original)
        for outcome in comparison.outcomes(executable, seed=seed, cases=number):
            tally.add(outcome)
        print(f"  {comparison.name}: {number} cases, {time.monotonic() - started:.1f} s")
        print("\n".join(f"    {line}" for line in tally.lines()), flush=True)
        for found in tally.unexplained():
            print("\n".join(f"    {line}" for line in _difference(original, comparison, executable, found)), flush=True)
        undocumented += tally.undocumented.total()
    print()
    return undocumented


class Tally:
    """Counts of the outcomes of a comparison by check."""

    def __init__(self, original: Original) -> None:
        self._original = original
        self._compared: Counter[str] = Counter()
        self._equal: Counter[str] = Counter()
        self._explained: Counter[tuple[str, str]] = Counter()
        self._classes: dict[str, DifferenceClass] = {}
        self._found: dict[str, list[Outcome]] = {}
        self.undocumented: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        self._compared[outcome.check] += 1
        if outcome.equal:
            self._equal[outcome.check] += 1
        elif explaining := self._original.class_of(outcome):
            self._explained[outcome.check, explaining.name] += 1
            self._classes[explaining.name] = explaining
        else:
            self.undocumented[outcome.check] += 1
            self._found.setdefault(outcome.check, []).append(outcome)

    def lines(self) -> Iterator[str]:
        """The table: a line for each check, followed by its classes."""
        width = max(map(len, self._compared), default=0)
        yield f"{'':{width}}  {'compared':>9} {'equal':>9} {'documented':>11} {'other':>9}"
        for check, number in self._compared.items():
            explained = {name: count for (of, name), count in self._explained.items() if of == check}
            counts = f"{number:>9} {self._equal[check]:>9} {sum(explained.values()):>11} {self.undocumented[check]:>9}"
            yield f"{check:{width}}  {counts}"
            yield from (f"    {count} x {name}" for name, count in sorted(explained.items()))
        for name, each in sorted(self._classes.items()):
            yield f"{name}:"
            yield f"    original: {each.citation}"
            yield f"    reason: {each.reason}"

    def unexplained(self) -> Iterator[Outcome]:
        """Undocumented differences with the smallest cases, a few for each check."""
        for found in self._found.values():
            yield from sorted(found, key=lambda outcome: len(json.dumps(outcome.case)))[:SHOWN]


def _difference(original: Original, comparison: Comparison, executable: Path, found: Outcome) -> Iterator[str]:
    if isinstance(comparison, CaseComparison):
        found = smallest_outcome(original, comparison, executable, found)
    yield f"UNDOCUMENTED: {found.check} {found.subject}".rstrip()
    yield f"    original: {json.dumps(found.original)}"
    yield f"    product:  {json.dumps(found.product)}"
    yield f"    case: {json.dumps(found.case)}"


if __name__ == "__main__":
    sys.exit(main())
