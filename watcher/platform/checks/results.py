"""What a check found: how it stands, in one line, and what to do about it.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

ALL_WELL = 0
SOMETHING_FAILED = 1
NAMED_AT_MOST = 5


class Status(StrEnum):
    """How it stands. `warn` works, though less well than it could; `skipped` could not be looked at, or need not be."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `what` says what was found, `cure` what to do about it ("" where nothing is to be done);
    `check` is the name of the check that found it, which the examination fills in."""

    status: Status
    what: str
    cure: str = ""
    check: str = ""


def ok(what: str) -> Result:
    """It is as it should be."""
    return Result(Status.OK, what)


def warn(what: str, cure: str) -> Result:
    """It works, and could do better."""
    return Result(Status.WARN, what, cure)


def fail(what: str, cure: str) -> Result:
    """It does not work, or soon will not."""
    return Result(Status.FAIL, what, cure)


def skipped(why: str, cure: str = "") -> Result:
    """It was not looked at."""
    return Result(Status.SKIPPED, why, cure)


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found, in the order of the checks."""

    version: str
    results: Sequence[Result]

    @property
    def counts(self) -> Mapping[Status, int]:
        """How many results there are of each status, all four of them."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in Status}

    @property
    def exit_code(self) -> int:
        """0 all well, 1 something failed. A warning is no failure."""
        return SOMETHING_FAILED if self.counts[Status.FAIL] else ALL_WELL


def some(names: Sequence[str]) -> str:
    """A few of these names, and how many more there are."""
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def some_of(names: Sequence[str], of: Sequence[object]) -> str:
    """A few of these nodes, and how many they are of all: "a, b (2 of 3 nodes)"."""
    return f"{some(names)} ({len(names)} of {count(len(of), 'node')})"


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 node", "3 nodes"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
