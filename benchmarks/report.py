"""Tables of measurements: the measured quantity, the numbers, the goal, and whether it was reached."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

REACHED, MISSED = "reached", "**missed**"


@dataclass
class Table:
    """A Markdown table with a text column followed by number columns, a title above, and notes below."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Append a row. Raises ValueError for a wrong number of cells."""
        if len(cells) != len(self.columns):
            raise ValueError(f"a row of {len(cells)} cells in a table of {len(self.columns)} columns: {cells}")
        self.rows.append(cells)

    def markdown(self) -> str:
        """Return the table as text, with aligned columns for reading in a terminal."""
        grid = [list(self.columns), *map(list, self.rows)]
        widths = [max(len(row[column]) for row in grid) for column in range(len(self.columns))]
        lines = [
            "| " + " | ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) + " |"
            for cells in grid
        ]
        rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
        body = [f"**{self.title}**", "", lines[0], rule, *lines[1:]]
        return "\n".join([*body, *(f"\n{note}" for note in self.notes)]) + "\n"


def amount(value: float | None, unit: str = "") -> str:
    """Format a number with at least three significant digits and the unit; "–" for None."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{text} {unit}".rstrip()


def at_least(value: float | None, goal: float, unit: str = "×") -> str:
    """Return the goal as text, and whether `value` reaches it."""
    return _goal(f"≥ {goal:g}{unit}", None if value is None else value >= goal)


def at_most(value: float | None, goal: float, unit: str) -> str:
    """Return the goal as text, and whether `value` stays within it."""
    return _goal(f"≤ {goal:g} {unit}", None if value is None else value <= goal)


def _goal(text: str, reached: bool | None) -> str:
    return text if reached is None else f"{text}: {REACHED if reached else MISSED}"


def machine() -> str:
    """Return one line with the date, the machine, and the versions."""
    facts = [
        f"{os.cpu_count()} cores of {_processor()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        _version(["go", "version"], words=slice(2, 3)),
        f"commit {_version(['git', 'rev-parse', '--short', 'HEAD'], words=slice(0, 1))}",
    ]
    return f"{datetime.now(UTC):%Y-%m-%d}, " + ", ".join(fact for fact in facts if fact)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "an unknown processor")
    return " ".join(name.replace("(R)", "").replace("Processor", "").split())


def _version(command: Sequence[str], *, words: slice) -> str:
    try:
        output = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return " ".join(output.split()[words])
