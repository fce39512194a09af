"""One profile at work: all of its plug-ins over all nodes asked about, and one score of each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorers.framework import FilterPlugin, ScorePlugin, Scores, Verdicts, make
from scorers.profiles import PluginSettings, ProfileSettings
from scorers.registry import factory_of
from scorers.table import PodInfo, Table

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Scores 0 to 100 [n], the mean of the plug-ins' by weight, and theirs."""

    values: F64
    parts: tuple[tuple[PluginSettings, Scores], ...]

    def best(self, names: Sequence[str]) -> int | None:
        """The position of the highest score, of equal ones the first by name; None where nothing was asked."""
        if not len(self.values):
            return None
        highest = np.flatnonzero(self.values == self.values.max()).tolist()
        return min(highest, key=lambda i: names[i])


@dataclass(frozen=True, slots=True)
class Filtered:
    """Verdicts of the plug-ins that filter; a node passes if all of them let it."""

    parts: tuple[tuple[PluginSettings, Verdicts], ...]

    def failures(self, names: Sequence[str]) -> dict[str, str]:
        """The nodes that do not pass, and why: what the first plug-in says."""
        found: dict[str, str] = {}
        for _, verdicts in self.parts:
            for i in np.flatnonzero(verdicts.codes).tolist():
                found.setdefault(names[i], verdicts.reasons[int(verdicts.codes[i])])
        return found


class Profile:
    """The plug-ins of a profile, made for a table."""

    def __init__(self, settings: ProfileSettings, table: Table) -> None:
        self.settings = settings
        self._table = table
        made = [(each, self._made(each)) for each in settings.plugins]
        self.scoring = tuple((s, p) for s, p in made if "score" in s.points and isinstance(p, ScorePlugin))
        self.filtering = tuple((s, p) for s, p in made if "filter" in s.points and isinstance(p, FilterPlugin))

    def _made(self, plugin: PluginSettings) -> Any:
        return make(factory_of(plugin.name), plugin.args, self._table, profile=self.settings.name)[0]

    def rank(self, pod: PodInfo, rows: I64, *, now: float) -> Ranked:
        """Scores of the nodes in these rows."""
        parts = tuple((each, plugin.score(pod, self._table, rows, now=now)) for each, plugin in self.scoring)
        total = np.zeros(len(rows))
        for each, scores in parts:
            total += each.weight * scores.values
        weights = sum(each.weight for each, _ in parts)
        return Ranked(total / weights if weights else total, parts)

    def filter(self, pod: PodInfo, rows: I64, *, now: float) -> Filtered:
        """Which of the nodes in these rows may have the pod."""
        return Filtered(
            tuple((each, plugin.filter(pod, self._table, rows, now=now)) for each, plugin in self.filtering)
        )
