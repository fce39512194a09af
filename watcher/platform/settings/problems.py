"""What is wrong with the settings, all of it at once.

Whoever deploys a service mends one mistake per attempt if each attempt tells one. So problems are collected, each with
the key it is about, what is wrong, and what to do, and raised together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong: the key it is about ("refresh.interval"), what, and the cure. Never quotes a secret."""

    key: str
    message: str
    cure: str


class SettingsError(Exception):
    """The settings cannot be used. `problems` has at least one."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = f"{count} problem{'s' if count > 1 else ''} in the settings:"
        super().__init__(
            "\n".join([heading, *(f"  {each.key}: {each.message}\n    {each.cure}" for each in self.problems)])
        )
