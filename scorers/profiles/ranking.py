"""One profile at work: all of its plug-ins over all nodes asked about, and one score of each node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import Table
from scorers.plugin_api.framework import (
    MAX_SCORE,
    FallingBack,
    FilterPlugin,
    PreparingPlugin,
    ScorePlugin,
    Scores,
    Verdicts,
    make,
)
from scorers.profiles.default_scheduler import as_it_comes
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.registry import factory_of

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Scores 0 to 100 [n], the mean of the plug-ins' by weight, and theirs. What a plug-in of somebody else gives
    beyond 0 to 100 is cut off there, and no number counts as 0: it must not decide alone, nor reach the scheduler."""

    values: F64
    parts: tuple[tuple[PluginSettings, Scores], ...]


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

    def unresolvable(self, names: Sequence[str]) -> frozenset[str]:
        """Those of them that would not pass if all other pods went: none can be preempted for this one."""
        codes = [(verdicts.codes, list(verdicts.unresolvable)) for _, verdicts in self.parts if verdicts.unresolvable]
        return frozenset(names[i] for each, never in codes for i in np.flatnonzero(np.isin(each, never)).tolist())


class Profile:
    """The plug-ins of a profile, made for a table. Where it takes the place of `before`, a profile of the same name,
    those that listen to the table go on if their arguments are as they were: what they have added up over the cluster
    is not added up again."""

    def __init__(self, settings: ProfileSettings, table: Table, *, before: Profile | None = None) -> None:
        self.settings = settings
        self._table = table
        known = (
            [] if before is None else [each for each in before.made if any(each[1] is one for one in table.listeners)]
        )
        made = tuple((each, self._found(each, known)) for each in settings.plugins)
        self.made: tuple[tuple[PluginSettings, Any], ...] = made
        self._preparing = tuple(plugin for _, plugin in made if isinstance(plugin, PreparingPlugin))
        self.scoring = tuple((s, p) for s, p in made if "score" in s.points and isinstance(p, ScorePlugin))
        self.filtering = tuple((s, p) for s, p in made if "filter" in s.points and isinstance(p, FilterPlugin))

    def _found(self, plugin: PluginSettings, known: Sequence[tuple[PluginSettings, Any]]) -> Any:
        """The known one of this name with these arguments, or a new one."""
        for each, made in known:
            if (each.name, each.args) == (plugin.name, plugin.args):
                return made
        return make(factory_of(plugin.name), plugin.args, self._table, profile=self.settings.name)[0]

    def close(self, *, but: Profile | None = None) -> None:
        """The table tells its plug-ins of nothing any more, but for those that another profile goes on with."""
        kept = () if but is None else [plugin for _, plugin in but.made]
        for _, plugin in self.made:
            if not any(plugin is each for each in kept):
                self._table.forget(plugin)
        if but is None:
            self._table.recent.unregister(f"{self.settings.name}/")

    def prepare(self) -> Iterator[None]:
        """What can be computed before a pod asks, in steps between which others may run."""
        for plugin in self._preparing:
            yield from plugin.prepare(self._table)

    def fallbacks(self, *, now: float) -> dict[str, str]:
        """Of the plug-ins that can score without load, by what they score now, "" for load. Where there are no nodes,
        nothing is scored, and load is not missed."""
        there_are_nodes = bool(self._table.known.any())
        falling = [plugin for _, plugin in self.scoring if isinstance(plugin, FallingBack)]
        return {plugin.name: plugin.fallback(self._table, now=now) if there_are_nodes else "" for plugin in falling}

    def rank(self, pod: PodInfo, rows: I64, *, now: float) -> Ranked:
        """Scores of the nodes in these rows."""
        parts = tuple((each, plugin.score(pod, self._table, rows, now=now)) for each, plugin in self.scoring)
        total = np.zeros(len(rows))
        for each, scores in parts:
            total += each.weight * np.clip(np.nan_to_num(scores.values, nan=0.0), 0.0, MAX_SCORE)
        weights = sum(each.weight for each, _ in parts)
        return Ranked(total / weights if weights else total, parts)

    def best(self, pod: PodInfo, rows: I64, names: Sequence[str], answered: I64) -> int | None:
        """Where the pod most likely goes, as a position among the nodes in these rows; None where nothing was asked.
        `answered` is the score of each as kube-scheduler is told. Of the highest, which it cannot tell apart by that,
        its own plug-ins choose, so it is the one that these score highest; of equal ones the first by name."""
        if not len(rows):
            return None
        highest = np.flatnonzero(answered == answered.max())
        if len(highest) > 1:
            own = as_it_comes(pod, self._table, rows[highest])
            highest = highest[own == own.max()]
        return min(highest.tolist(), key=lambda i: names[i])

    def filter(self, pod: PodInfo, rows: I64, *, now: float) -> Filtered:
        """Which of the nodes in these rows may have the pod."""
        return Filtered(
            tuple((each, plugin.filter(pod, self._table, rows, now=now)) for each, plugin in self.filtering)
        )
