"""Output of the report: text lines as the results arrive, or one JSON document.

Each result is one line, with its fix on the next line. On a terminal the lines are coloured and fitted to its width,
with a spinner while checks run; otherwise lines are never wrapped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from watcher.core.messages import visible
from watcher.platform.checks.results import CheckResult, CheckStatus, DoctorReport, count

NAME_WIDTH = 12
STYLES = {CheckStatus.OK: "green", CheckStatus.WARN: "yellow", CheckStatus.FAIL: "bold red", CheckStatus.SKIPPED: "dim"}


ALL = frozenset(CheckStatus)
PROBLEMS = frozenset({CheckStatus.WARN, CheckStatus.FAIL})


def as_document(report: DoctorReport, *, shown: Collection[CheckStatus] = ALL) -> dict[str, Any]:
    """The report as `{"version", "status", "counts", "checks": [{"name", "status", "what", "cure"}]}`; the counts
    include results with a status that is not in `shown`."""
    return {
        "version": report.version,
        "status": worst(report).value,
        "counts": {status.value: number for status, number in report.counts.items()},
        "checks": [
            {"name": each.check, "status": each.status.value, "what": each.what, "cure": each.cure}
            for each in report.results
            if each.status in shown
        ],
    }


def worst(report: DoctorReport) -> CheckStatus:
    """Return the overall status: FAIL if a result failed, otherwise WARN if there is a warning, otherwise OK."""
    counts = report.counts
    return next((status for status in (CheckStatus.FAIL, CheckStatus.WARN) if counts[status]), CheckStatus.OK)


def summary(report: DoctorReport) -> str:
    """Return the last line of the report: the number of results by status."""
    counts = report.counts
    message = [
        f"{counts[CheckStatus.OK]} ok",
        count(counts[CheckStatus.WARN], "warning"),
        f"{counts[CheckStatus.FAIL]} failed",
    ]
    return ", ".join([*message, f"{counts[CheckStatus.SKIPPED]} skipped"])


class Printer:
    """Prints results as they arrive; a context manager that removes the spinner at its end."""

    def __init__(self, console: Console | None = None, *, shown: Collection[CheckStatus] = ALL) -> None:
        self._shown = shown
        self._console = console or Console(highlight=False)
        self._waiting = self._console.status("checking …") if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._waiting is not None:
            self._waiting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._waiting is not None:
            self._waiting.stop()

    def tell(self, result: CheckResult) -> None:
        """Print one result, and its fix on the next line, if results with its status are shown."""
        if result.status not in self._shown:
            return
        result = replace(result, what=visible(result.what), cure=visible(result.cure))
        if not self._console.is_terminal:
            self._plain(f"{result.status.value:<7} {result.check:<{NAME_WIDTH}} {result.what}")
            if result.cure:
                self._plain(f"{'':<7} {'':<{NAME_WIDTH}} fix: {result.cure}")
            return
        row = Table.grid(padding=(0, 1))
        row.add_column(width=7)
        row.add_column(width=NAME_WIDTH)
        row.add_column(overflow="fold", ratio=1)
        row.add_row(Text(result.status.value, STYLES[result.status]), Text(result.check), Text(result.what))
        if result.cure:
            row.add_row("", "", Text.assemble(("fix: ", "cyan"), result.cure))
        self._console.print(row)

    def close(self, report: DoctorReport) -> None:
        """Print the summary line of the report."""
        if self._console.is_terminal:
            self._console.print(Padding(Text(summary(report), STYLES[worst(report)]), (1, 0, 0, 0)))
        else:
            self._plain(summary(report))

    def _plain(self, line: str) -> None:
        """Write a line without rich, which would wrap it at 80 characters."""
        self._console.file.write(line + "\n")
        self._console.file.flush()
