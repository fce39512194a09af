"""Problems of the settings.

All problems are collected and raised together, each with its key, a message and a fix, so that a user can fix all of
them in one attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the setting `key` (for example "refresh.interval"). Its texts never contain a secret."""

    key: str
    message: str
    cure: str


def removed(name: str, instead: str, origin: str = "") -> Problem:
    """Return the problem of a setting of a removed feature; `instead` is what to use instead, as an imperative."""
    return Problem(name, "was removed in this version" + (f" ({origin})" if origin else ""), instead)


class SettingsError(Exception):
    """The settings are invalid. `problems` is never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = f"{count} problem{'s' if count > 1 else ''} in the settings:"
        super().__init__(
            "\n".join([heading, *(f"  {each.key}: {each.message}\n    {each.cure}" for each in self.problems)])
        )
