"""The report as text: lines as they come, for a terminal or a pipe, and one JSON document for programs.

One line a result, with its cure below it. On a terminal the lines are coloured and laid out to its width, and one that
moves says that something is still being asked; elsewhere a line is a line, whatever its length.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from watcher.platform.checks.results import Report, Result, Status, count

NAME_WIDTH = 12
STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red", Status.SKIPPED: "dim"}


def as_json(report: Report) -> str:
    """The whole report: `{"version", "status", "counts", "checks": [{"name", "status", "what", "cure"}]}`."""
    document = {
        "version": report.version,
        "status": worst(report).value,
        "counts": {status.value: number for status, number in report.counts.items()},
        "checks": [
            {"name": each.check, "status": each.status.value, "what": each.what, "cure": each.cure}
            for each in report.results
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=2)


def worst(report: Report) -> Status:
    """What the report comes down to: fail, warn or ok."""
    counts = report.counts
    return next((status for status in (Status.FAIL, Status.WARN) if counts[status]), Status.OK)


def summary(report: Report) -> str:
    """The last line."""
    counts = report.counts
    told = [f"{counts[Status.OK]} ok", count(counts[Status.WARN], "warning"), f"{counts[Status.FAIL]} failed"]
    return ", ".join([*told, f"{counts[Status.SKIPPED]} skipped"])


class Printer:
    """Prints results as they come; a context, so that the moving line is gone at its end."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._waiting = self._console.status("looking …") if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._waiting is not None:
            self._waiting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._waiting is not None:
            self._waiting.stop()

    def tell(self, result: Result) -> None:
        """Print one result."""
        if not self._console.is_terminal:
            self._plain(f"{result.status.value:<7} {result.check:<{NAME_WIDTH}} {result.what}")
            if result.cure:
                self._plain(f"{'':<7} {'':<{NAME_WIDTH}} cure: {result.cure}")
            return
        row = Table.grid(padding=(0, 1))
        row.add_column(width=7)
        row.add_column(width=NAME_WIDTH)
        row.add_column(overflow="fold", ratio=1)
        row.add_row(Text(result.status.value, STYLES[result.status]), Text(result.check), Text(result.what))
        if result.cure:
            row.add_row("", "", Text.assemble(("cure: ", "cyan"), result.cure))
        self._console.print(row)

    def close(self, report: Report) -> None:
        """Print what it comes down to."""
        if self._console.is_terminal:
            self._console.print(Padding(Text(summary(report), STYLES[worst(report)]), (1, 0, 0, 0)))
        else:
            self._plain(summary(report))

    def _plain(self, line: str) -> None:
        """A line as it is: rich would wrap it at 80 characters."""
        self._console.file.write(line + "\n")
        self._console.file.flush()
