"""Running a row, and what was seen of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.cell import INTERVAL_S, Cell
from tests.faults.observing import EVERY_S, Look, Observer
from tests.faults.rows import FaultRow

TICKS = 2
"""A fault must be detected within so many intervals."""
BEFORE_S = 3.0
SURE_S = 6.0
"""Seconds that all has to be right for a fault to count as over."""


@dataclass(frozen=True)
class Outcome:
    """What was seen of a row: `began` and `ended` are monotonic times of the fault, `warnings` lines of the logs."""

    row: FaultRow
    looks: Sequence[Look]
    began: float
    ended: float
    warnings: Sequence[str]

    @property
    def during(self) -> list[Look]:
        return [each for each in self.looks if each.at >= self.began]

    @property
    def signs(self) -> dict[str, float]:
        """Seconds until each sign came."""
        found: dict[str, float] = {}
        for look in self.during:
            for sign in look.signs:
                found.setdefault(sign, look.at - self.began)
        return found

    @property
    def recovered(self) -> float | None:
        """Seconds from the end of the fault until all was right for good; None if it was not."""
        after = [each for each in self.looks if each.at >= self.ended]
        wrong = [each.at for each in after if not each.is_right]
        if not after or (wrong and wrong[-1] > after[-1].at - SURE_S / 2):
            return None
        return max(0.0, wrong[-1] + EVERY_S - self.ended) if wrong else 0.0

    @property
    def problems(self) -> list[str]:
        found = []
        wrong = [each for each in self.during if each.worst or each.decision]
        if wrong and not self.row.unknowable:
            said = dict.fromkeys(each.decision for each in wrong if each.decision)
            found.append(f"{len(wrong)} looks with wrong values or decisions: {', '.join(said)}".rstrip(": "))
        detected = min((self.signs[sign] for sign in self.row.expected if sign in self.signs), default=None)
        if self.row.expected and (detected is None or detected > TICKS * INTERVAL_S + EVERY_S):
            found.append("not detected within two ticks")
        if self.recovered is None:
            last = next((each for each in reversed(self.looks) if not each.is_right), None)
            found.append(f"not right again after {self.row.recovers:.0f} s: {last}")
        return found

    def line(self) -> str:
        """The row of the table."""
        during = [each for each in self.during if each.at <= self.ended]
        statuses = [f"{status or 'no response'}" for status in dict.fromkeys(each.status for each in during)]
        uses = list(dict.fromkeys("by load" if each.uses_load else "neutral" for each in during))
        values = [each.worst for each in self.during if each.worst]
        decisions = [each for each in self.during if each.decision]
        first = min(self.signs.items(), key=lambda each: each[1], default=None)
        detected = "–" if first is None else f"{first[1]:.0f} s ({', '.join(self._first_signs())})"
        cells = (
            self.row.name,
            ", ".join(statuses),
            ", ".join(uses),
            f"{len(values) * EVERY_S:.0f} s, {max(values):.0f} points" if values else "0",
            f"{len(decisions) * EVERY_S:.0f} s" if decisions else "0",
            detected,
            "–" if self.recovered is None else f"{self.recovered:.0f} s",
        )
        return f"|{'|'.join(cells)}|"

    def _first_signs(self) -> list[str]:
        first = min(self.signs.values())
        return [sign for sign, at in self.signs.items() if at <= first + EVERY_S]


def run(row: FaultRow, directory: Path) -> Outcome:
    """Run one row."""
    with (
        Cell(directory / row.name.replace(" ", "-"), by_name=row.by_name, small_disk=row.small_disk) as cell,
        Observer(cell) as observer,
    ):
        observer.wait(BEFORE_S)
        observer.mark()
        began = time.monotonic()
        with row.inject(cell, observer):
            if row.by_name:
                began = time.monotonic()
            observer.wait(row.lasts)
        ended = time.monotonic()
        observer.wait(
            row.recovers,
            lambda: (
                time.monotonic() > ended + SURE_S
                and all(each.is_right for each in observer.looks if each.at > time.monotonic() - SURE_S)
            ),
        )
        return Outcome(row, tuple(observer.looks), began, ended, observer.warnings())
