"""Results of checks: a status, one line of text, and a cure.

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
    """Status of a result. `warn`: works with limits; `skipped`: could not be checked, or does not apply."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report. `what` is the finding, `cure` the action to take ("" for none), `check` the name of the
    check, which the examination fills in.
    """

    status: Status
    what: str
    cure: str = ""
    check: str = ""


def ok(what: str) -> Result:
    return Result(Status.OK, what)


def warn(what: str, cure: str) -> Result:
    """Return a result for something that works with limits."""
    return Result(Status.WARN, what, cure)


def fail(what: str, cure: str) -> Result:
    """Return a result for something that does not work, or will stop working soon."""
    return Result(Status.FAIL, what, cure)


def skipped(why: str, cure: str = "") -> Result:
    """Return a result for something that was not checked."""
    return Result(Status.SKIPPED, why, cure)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all checks, in the order of the checks."""

    version: str
    results: Sequence[Result]

    @property
    def counts(self) -> Mapping[Status, int]:
        """Number of results by status, including zeros."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in Status}

    @property
    def exit_code(self) -> int:
        """1 if a result failed, otherwise 0; warnings do not count as failures."""
        return SOMETHING_FAILED if self.counts[Status.FAIL] else ALL_WELL


def some(names: Sequence[str]) -> str:
    """Format the first five names and the number of the others: "a, b, c, d, e and 3 more"."""
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def some_of(names: Sequence[str], of: Sequence[object]) -> str:
    """Format the first nodes, with their share of all nodes `of`: "a, b (2 of 3 nodes)"."""
    return f"{some(names)} ({len(names)} of {count(len(of), 'node')})"


def count(number: int, noun: str) -> str:
    """Format a number with its noun: "1 node", "3 nodes"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")
