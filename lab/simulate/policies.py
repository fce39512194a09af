"""Placement policies: a profile of plug-ins, or one of kube-scheduler's own scores.

A policy scores nodes with the integers that kube-scheduler receives. Among the nodes with the highest score, the engine
chooses like kube-scheduler: the nodes that kube-scheduler's own plug-ins prefer, if the policy has this preference, and
an arbitrary one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lab.fleet.noise import key_of
from lab.simulate.windows import WINDOWS
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.framework import create_plugin
from scorers.plugin_api.wire import integer_scores
from scorers.plugins.forecast_arguments import ForecastArguments
from scorers.profiles import default_scheduler
from scorers.profiles.profiles import PluginSettings, ProfileSettings, read_profiles
from scorers.profiles.ranking import ProfileRunner
from scorers.profiles.registry import PLUGINS, UnknownPlugin, extension_points, factory_of, known_names
from watcher.arrays import I64, Bool
from watcher.core.config.problems import Problem, SettingsError
from watcher.core.messages import nearest
from watcher.model import MetricType

Score = Callable[[PodInfo, ClusterTable, I64], I64]
DEFAULT = "DefaultScheduler"
FORECAST = "forecast"
"""Suffix of a policy whose plug-ins use forecasts."""


class PolicyError(ValueError):
    """The policy does not exist or cannot be simulated; `hint` is advice for the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class PlacementDecider(Protocol):
    """A policy applied to the nodes of a table."""

    @property
    def by_owner(self) -> bool:
        """Whether `passes` may depend on the name of the pod's owner."""
        ...

    def prepare(self) -> None:
        """Called after each new copy of the load."""

    def passes(self, pod: PodInfo, rows: I64, *, now: float) -> Bool:
        """Whether each of the nodes in these rows [n] accepts the pod."""
        ...

    def scores(self, pod: PodInfo, rows: I64, *, now: float) -> I64:
        """Scores of the nodes in these rows [n], as kube-scheduler receives them."""
        ...

    def preferred(self, pod: PodInfo, rows: I64) -> I64:
        """Secondary scores of the nodes in these rows [n], whose scores are equal."""
        ...


class PlacementPolicy(Protocol):
    """A placement policy; `name` identifies it in reports."""

    @property
    def name(self) -> str: ...

    def bind(self, table: ClusterTable, *, seed: int) -> PlacementDecider:
        """Apply the policy to this table; `seed` is for random choices. Raises PolicyError if a simulation lacks the
        data that it needs."""
        ...


# --- kube-scheduler's own --------------------------------------------------------------------------------------------


def _least(pod: PodInfo, table: ClusterTable, rows: I64) -> I64:
    return default_scheduler.least_allocated(
        *default_scheduler.requested_and_allocatable(pod, table, rows, counted=True)
    )


def _most(pod: PodInfo, table: ClusterTable, rows: I64) -> I64:
    return default_scheduler.most_allocated(
        *default_scheduler.requested_and_allocatable(pod, table, rows, counted=True)
    )


def _balanced(pod: PodInfo, table: ClusterTable, rows: I64) -> I64:
    return default_scheduler.balanced_allocation(
        *default_scheduler.requested_and_allocatable(pod, table, rows, counted=False)
    )


BY_REQUESTS: Mapping[str, Score] = {
    "LeastAllocated": _least,
    "MostAllocated": _most,
    "BalancedAllocation": _balanced,
    DEFAULT: default_scheduler.default_resource_scores,
}
"""kube-scheduler's scores by requests, each separately, and the default combination of LeastAllocated and
BalancedAllocation."""


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """One of the scores in BY_REQUESTS."""

    name: str

    def bind(self, table: ClusterTable, *, seed: int) -> PlacementDecider:
        return _ByRequests(BY_REQUESTS[self.name], table)


@dataclass(frozen=True, slots=True)
class _ByRequests:
    score: Score
    table: ClusterTable
    by_owner: bool = False

    def prepare(self) -> None:
        pass

    def passes(self, pod: PodInfo, rows: I64, *, now: float) -> Bool:
        return np.ones(len(rows), dtype=np.bool_)

    def scores(self, pod: PodInfo, rows: I64, *, now: float) -> I64:
        return self.score(pod, self.table, rows)

    def preferred(self, pod: PodInfo, rows: I64) -> I64:
        return np.zeros(len(rows), dtype=np.int64)


# --- baselines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """Each pod goes to a random node that it fits on."""

    name: str = "Random"

    def bind(self, table: ClusterTable, *, seed: int) -> PlacementDecider:
        return _ByRequests(lambda pod, _, rows: np.zeros(len(rows), dtype=np.int64), table)


@dataclass(frozen=True, slots=True)
class TwoChoicesPolicy:
    """Each pod goes to the one of two random nodes that has the lower load, by the higher of its averages of CPU and
    memory (Mitzenmacher 2001); to either one if the loads are equal, or one is unknown."""

    name: str = "PowerOfTwoChoices"

    def bind(self, table: ClusterTable, *, seed: int) -> PlacementDecider:
        return _ByRequests(partial(_two_choices, seed=seed), table)


def _two_choices(pod: PodInfo, table: ClusterTable, rows: I64, *, seed: int) -> I64:
    """1 for the node to choose, or for both of them, and 0 for the others."""
    scores = np.zeros(len(rows), dtype=np.int64)
    if not len(rows):
        return scores
    first = key_of(seed, "first choice", pod.key) % len(rows)
    other = first if len(rows) == 1 else key_of(seed, "second choice", pod.key) % (len(rows) - 1)
    two = np.array([first, other + (other >= first and len(rows) > 1)])
    load = np.maximum(*(table.load.average(kind)[rows[two]] for kind in (MetricType.CPU, MetricType.MEMORY)))
    scores[two] = ~(load > load.min())  # NaN: both
    return scores


BASELINES: Mapping[str, PlacementPolicy] = {each.name: each for each in (RandomPolicy(), TwoChoicesPolicy())}
"""Policies that serve as a comparison."""


# --- profiles of plug-ins --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProfilePolicy:
    """A profile of plug-ins. With `precise_scores`, scores are 0 to 100 as inside kube-scheduler, otherwise 0 to 10 as
    through the extender."""

    name: str
    settings: ProfileSettings

    def bind(self, table: ClusterTable, *, seed: int) -> PlacementDecider:
        try:
            profile = ProfileRunner(self.settings, table)
        except ValueError as error:
            raise PolicyError(
                f"{self.name}: {error}", "docs/concepts/scheduling.md lists the arguments of plug-ins"
            ) from error
        if table.needs.pods or table.needs.node_metrics:
            hint = 'a trace has neither NodeMetrics nor pod readings: set nodeMetricSource = "windows"'
            raise PolicyError(f"{self.name} cannot be simulated", hint)
        if not profile.scoring and not profile.filtering:
            raise PolicyError(f"{self.name} neither filters nor scores", "enable a plug-in under score or filter")
        others = any(each.name not in PLUGINS for each in self.settings.plugins)
        return _ByProfile(profile, 100 if self.settings.precise_scores else 10, table, by_owner=others)


@dataclass(frozen=True, slots=True)
class _ByProfile:
    profile: ProfileRunner
    most: int
    table: ClusterTable
    by_owner: bool  # the project's own filters use owners only with the usage of pods, which a trace does not have

    def prepare(self) -> None:
        for _ in self.profile.prepare():
            pass

    def passes(self, pod: PodInfo, rows: I64, *, now: float) -> Bool:
        through = np.ones(len(rows), dtype=np.bool_)
        for _, verdicts in self.profile.filter(pod, rows, now=now).parts:
            through &= verdicts.passed
        return through

    def scores(self, pod: PodInfo, rows: I64, *, now: float) -> I64:
        return integer_scores(self.profile.rank(pod, rows, now=now).values, self.most)

    def preferred(self, pod: PodInfo, rows: I64) -> I64:
        return default_scheduler.default_resource_scores(pod, self.table, rows)


# --- by name ---------------------------------------------------------------------------------------------------------


def find_policy(wanted: str, scheduler: Mapping[str, Any], *, cwd: Path) -> tuple[PlacementPolicy, tuple[str, ...]]:
    """Find a policy by name: one of BY_REQUESTS or BASELINES, a profile of the table [scheduler] in the settings, a
    plug-in with its defaults, or a KubeSchedulerConfiguration as FILE.yaml or FILE.yaml:PROFILE. A profile of the
    settings or a plug-in with the suffix ":forecast" uses forecasts with its other arguments. Returns the policy and
    notices. Raises PolicyError, and SettingsError for a profile with problems."""
    file, _, profile = wanted.partition(":")
    if profile == FORECAST and not Path(file).suffix:
        policy, notices = find_policy(file, scheduler, cwd=cwd)
        return _with_forecasts(wanted, policy), notices
    if wanted in BY_REQUESTS:
        return RequestPolicy(wanted), ()
    if wanted in BASELINES:
        return BASELINES[wanted], ()
    if wanted in scheduler:
        settings, notices = _read(wanted, scheduler[wanted], cwd)
        return ProfilePolicy(wanted, settings), notices
    if Path(file).suffix in (".yaml", ".yml", ".json"):
        table = {"from": file, **({"profile": profile} if profile else {})}
        settings, notices = _read(profile or Path(file).stem, table, cwd)
        # These plug-ins run inside kube-scheduler, which does not round scores to 0 to 10.
        return ProfilePolicy(settings.name, replace(settings, precise_scores=True)), notices
    return ProfilePolicy(wanted, _of_plugin(wanted, scheduler)), ()


def _with_forecasts(name: str, policy: PlacementPolicy) -> ProfilePolicy:
    """Return a policy of this name whose plug-ins use forecasts, except those that cannot. Raises PolicyError if none
    can."""
    plugins = policy.settings.plugins if isinstance(policy, ProfilePolicy) else ()
    usable = [issubclass(factory_of(each.name).arguments, ForecastArguments) for each in plugins]
    if not isinstance(policy, ProfilePolicy) or not any(usable):
        raise PolicyError(f"{policy.name} cannot use forecasts", "omit :forecast, or use LoadAwareScheduling")
    changed = tuple(
        replace(each, args={**each.args, "use": FORECAST}) if can else each
        for each, can in zip(plugins, usable, strict=True)
    )
    return ProfilePolicy(name, replace(policy.settings, name=name, plugins=changed))


def _read(name: str, table: Any, cwd: Path) -> tuple[ProfileSettings, tuple[str, ...]]:
    found, problems, notices = read_profiles({name: table}, cwd=cwd, served=WINDOWS)
    if problems:
        raise SettingsError(problems)
    (settings,) = found
    return settings, notices


def _of_plugin(name: str, scheduler: Mapping[str, Any]) -> ProfileSettings:
    try:
        factory = factory_of(name)
        create_plugin(factory, {}, ClusterTable(windows=WINDOWS))
    except UnknownPlugin as error:
        known = (*BY_REQUESTS, *BASELINES, *known_names(), *scheduler)
        near = nearest(name, known)
        cure = f"did you mean {near}?" if near else "use a profile of the settings, or FILE.yaml:PROFILE"
        raise PolicyError(f"unknown policy {name}; known: {', '.join(known)}", cure) from error
    except ValueError as error:
        raise SettingsError([Problem(name, str(error), "define a profile with args in the settings")]) from error
    return ProfileSettings(name, (PluginSettings(name, points=extension_points(factory)),), precise_scores=True)


def check_unique_names(policies: Sequence[PlacementPolicy]) -> None:
    """Raise PolicyError if two policies have the same name, because reports identify policies by name."""
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise PolicyError(f"the policy {name} is given twice", "remove one, or rename the profile")
