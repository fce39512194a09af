"""Run a profile: all of its plug-ins over all nodes of a request, combined into one score per node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scorers.cluster.load import NodeLoadColumns
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.exemptions import exemption
from scorers.plugin_api.framework import (
    MAX_SCORE,
    FallbackPlugin,
    FilterPlugin,
    ForecastPlugin,
    LoadFilterPlugin,
    PreparingPlugin,
    ScorePlugin,
    Scores,
    Verdicts,
    create_plugin,
    joined,
    passing,
)
from scorers.plugin_api.wire import MAX_EXTENDER_PRIORITY
from scorers.profiles.default_scheduler import default_resource_scores
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.registry import factory_of
from watcher.arrays import F64, I64


@dataclass(frozen=True, slots=True)
class RankResult:
    """Scores 0 to 100 [n]: the weighted mean of the plug-ins' scores, and the scores of each plug-in. Scores of
    third-party plug-ins outside 0 to 100 are clipped and NaN counts as 0, so that a faulty plug-in cannot dominate the
    mean."""

    values: F64
    parts: tuple[tuple[PluginSettings, Scores], ...]


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Verdicts of the filter plug-ins; a node passes if it passes all of them."""

    parts: tuple[tuple[PluginSettings, Verdicts], ...]

    def failures(self, names: Sequence[str]) -> dict[str, str]:
        """Return the rejected nodes with the reason of the first plug-in that rejects them."""
        found: dict[str, str] = {}
        for _, verdicts in self.parts:
            for i in np.flatnonzero(verdicts.codes).tolist():
                found.setdefault(names[i], verdicts.reasons[int(verdicts.codes[i])])
        return found

    def unresolvable(self, names: Sequence[str]) -> frozenset[str]:
        """Return the rejected nodes for which preempting other pods would not help."""
        codes = [(verdicts.codes, list(verdicts.unresolvable)) for _, verdicts in self.parts if verdicts.unresolvable]
        return frozenset(names[i] for each, never in codes for i in np.flatnonzero(np.isin(each, never)).tolist())


class ProfileRunner:
    """The plug-ins of a profile, created for a table. Plug-ins of the previous profile `before` of the same name that
    listen to the table are reused if their arguments are unchanged, so that their sums over the cluster are not
    recomputed."""

    def __init__(self, settings: ProfileSettings, table: ClusterTable, *, before: ProfileRunner | None = None) -> None:
        self.settings = settings
        self.most = 100 if settings.precise_scores else MAX_EXTENDER_PRIORITY
        """Highest score that kube-scheduler receives."""
        self._table = table
        known = (
            []
            if before is None
            else [each for each in before.plugins if any(each[1] is one for one in table.listeners)]
        )
        made = tuple((each, self._plugin_for(each, known)) for each in settings.plugins)
        self.plugins: tuple[tuple[PluginSettings, Any], ...] = made
        self._preparing = tuple(plugin for _, plugin in made if isinstance(plugin, PreparingPlugin))
        self.scoring = tuple((s, p) for s, p in made if "score" in s.points and isinstance(p, ScorePlugin))
        self.filtering = tuple((s, p) for s, p in made if "filter" in s.points and isinstance(p, FilterPlugin))

    def _plugin_for(self, plugin: PluginSettings, known: Sequence[tuple[PluginSettings, Any]]) -> Any:
        """Return the existing plug-in with this name and these arguments, or a new one."""
        for each, made in known:
            if (each.name, each.args) == (plugin.name, plugin.args):
                return made
        return create_plugin(factory_of(plugin.name), plugin.args, self._table, profile=self.settings.name)[0]

    def close(self, *, but: ProfileRunner | None = None) -> None:
        """Unsubscribe the plug-ins from the table, except those that the profile `but` reuses."""
        kept = () if but is None else [plugin for _, plugin in but.plugins]
        for _, plugin in self.plugins:
            if not any(plugin is each for each in kept):
                self._table.unsubscribe(plugin)
        if but is None:
            self._table.recent.unregister(f"{self.settings.name}/")

    def prepare(self) -> Iterator[None]:
        """Compute results that do not depend on the pod; other tasks may run between the steps."""
        for plugin in self._preparing:
            yield from plugin.prepare(self._table)

    def fallbacks(self, *, now: float) -> dict[str, str]:
        """Return the current input of each plug-in with a fallback: "" for load, otherwise the name of the fallback.
        Without nodes, no plug-in scores, so no fallback is reported."""
        there_are_nodes = bool(self._table.known.any())
        falling = [plugin for _, plugin in self.scoring if isinstance(plugin, FallbackPlugin)]
        return {plugin.name: plugin.fallback(self._table, now=now) if there_are_nodes else "" for plugin in falling}

    def missing_forecasts(self) -> dict[str, str]:
        """Return, for each plug-in that can use forecasts, why none of the nodes has one; "" if one has, and for
        plug-ins that use windows."""
        using = [plugin for _, plugin in self.plugins if isinstance(plugin, ForecastPlugin)]
        return {plugin.name: plugin.missing_forecasts(self._table) for plugin in using}

    def rank(self, pod: PodInfo, rows: I64, *, now: float) -> RankResult:
        """Score the nodes in these rows."""
        parts = tuple((each, plugin.score(pod, self._table, rows, now=now)) for each, plugin in self.scoring)
        total = np.zeros(len(rows))
        for each, scores in parts:
            total += each.weight * np.clip(np.nan_to_num(scores.values, nan=0.0), 0.0, MAX_SCORE)
        weights = sum(each.weight for each, _ in parts)
        return RankResult(total / weights if weights else total, parts)

    def likely_node(self, pod: PodInfo, rows: I64, names: Sequence[str], answered: I64) -> int | None:
        """Return the position of the node that the pod most likely goes to, None without nodes. `answered` [n] are the
        scores as sent to kube-scheduler. Nodes with the highest score are equal to kube-scheduler, so its own plug-ins
        decide: the position is that of the highest kube-scheduler score, ties ordered by name."""
        if not len(rows):
            return None
        highest = np.flatnonzero(answered == answered.max())
        if len(highest) > 1:
            own = default_resource_scores(pod, self._table, rows[highest])
            highest = highest[own == own.max()]
        return min(highest.tolist(), key=lambda i: names[i])

    def filter(self, pod: PodInfo, rows: I64, *, now: float) -> FilterResult:
        """Run the filters over the nodes in these rows. Exempt pods pass those that do not ask for every pod."""
        exempt = exemption(pod.pod)

        def judged(plugin: FilterPlugin) -> Verdicts:
            if exempt and not getattr(plugin, "filters_every_pod", False):
                return passing(len(rows), exempt)
            return plugin.filter(pod, self._table, rows, now=now)

        return FilterResult(tuple((each, judged(plugin)) for each, plugin in self.filtering))

    def filter_others(self, pod: PodInfo, filtered: FilterResult, load: NodeLoadColumns, *, now: float) -> FilterResult:
        """Add the verdicts about other nodes, of which only the load is known, to those of `filter`."""
        exempt, count, parts = exemption(pod.pod), len(load.where), []
        for (each, plugin), (_, verdicts) in zip(self.filtering, filtered.parts, strict=True):
            made: object = plugin
            other = None
            if isinstance(made, LoadFilterPlugin) and not (exempt and not getattr(made, "filters_every_pod", False)):
                other = made.filter_by_load(pod, load, now=now)
            parts.append((each, joined(verdicts, other, count)))
        return FilterResult(tuple(parts))
