"""Results of checks: a status, one line of text, and a fix.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from watcher.core.messages import shorten_names

ALL_WELL = 0
SOMETHING_FAILED = 1


class CheckStatus(StrEnum):
    """Status of a result. `warn`: works with limits; `skipped`: could not be checked, or does not apply."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report. `what` is the finding, `cure` the action to take ("" for none), `check` the name of the
    check, which the examination fills in.
    """

    status: CheckStatus
    what: str
    cure: str = ""
    check: str = ""


def ok(what: str) -> CheckResult:
    return CheckResult(CheckStatus.OK, what)


def warn(what: str, cure: str) -> CheckResult:
    """Return a result for something that works with limits."""
    return CheckResult(CheckStatus.WARN, what, cure)


def fail(what: str, cure: str) -> CheckResult:
    """Return a result for something that does not work, or will stop working soon."""
    return CheckResult(CheckStatus.FAIL, what, cure)


def skipped(why: str) -> CheckResult:
    """Return a result for something that was not checked. It has no fix, because nothing is known to be wrong."""
    return CheckResult(CheckStatus.SKIPPED, why)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The results of all checks, in the order of the checks."""

    version: str
    results: Sequence[CheckResult]

    @property
    def counts(self) -> Mapping[CheckStatus, int]:
        """Number of results by status, including zeros."""
        counted = Counter(result.status for result in self.results)
        return {status: counted[status] for status in CheckStatus}

    @property
    def exit_code(self) -> int:
        """1 if a result failed, otherwise 0; warnings do not count as failures."""
        return SOMETHING_FAILED if self.counts[CheckStatus.FAIL] else ALL_WELL


def shorten_nodes(names: Sequence[str], of: Sequence[object]) -> str:
    """Format the first nodes, with their share of all nodes `of`: "a, b (2 of 3 nodes)"."""
    return f"{shorten_names(names)} ({len(names)} of {count(len(of), 'node')})"


def count(number: int, noun: str) -> str:
    """Format a number with its noun: "1 node", "5,000 nodes"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
