"""Who decides where a pod goes: a profile of plug-ins, or one of kube-scheduler's own scores alone.

A policy has scores of nodes as kube-scheduler is told them, whole numbers. Of the nodes with the highest the engine
takes one, as kube-scheduler does: those that its own plug-ins prefer, where the policy says so, and of these any.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from load_watcher.simulate.windows import WINDOWS
from scorers.cluster.pods import PodInfo
from scorers.cluster.table import Table
from scorers.decisions.records import told_scores
from scorers.plugin_api.framework import make
from scorers.profiles import default_scheduler
from scorers.profiles.profiles import PluginSettings, ProfileSettings, read_profiles
from scorers.profiles.ranking import Profile
from scorers.profiles.registry import UnknownPlugin, extension_points, factory_of, known_names
from watcher.platform.settings.problems import Problem, SettingsError

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

Score = Callable[[PodInfo, Table, I64], I64]
DEFAULT = "DefaultScheduler"


class PolicyError(ValueError):
    """There is no such policy, or it cannot be simulated; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Decider(Protocol):
    """A policy at work over a table."""

    def prepare(self) -> None:
        """After each new copy of the load."""

    def passes(self, pod: PodInfo, rows: I64, *, now: float) -> Bool:
        """Which of the nodes in these rows [n] may have the pod."""
        ...

    def scores(self, pod: PodInfo, rows: I64, *, now: float) -> I64:
        """Of the nodes in these rows [n], as kube-scheduler is told them."""
        ...

    def preferred(self, pod: PodInfo, rows: I64) -> I64:
        """What the nodes in these rows [n], whose scores are equal, are told apart by."""
        ...


class Policy(Protocol):
    """`name` is how reports call it."""

    @property
    def name(self) -> str: ...

    def over(self, table: Table) -> Decider:
        """Made for this table. Raises PolicyError where a simulation does not have what it needs."""
        ...


# --- kube-scheduler's own --------------------------------------------------------------------------------------------


def _least(pod: PodInfo, table: Table, rows: I64) -> I64:
    return default_scheduler.least_allocated(
        *default_scheduler.requested_and_allocatable(pod, table, rows, counted=True)
    )


def _most(pod: PodInfo, table: Table, rows: I64) -> I64:
    return default_scheduler.most_allocated(
        *default_scheduler.requested_and_allocatable(pod, table, rows, counted=True)
    )


def _balanced(pod: PodInfo, table: Table, rows: I64) -> I64:
    return default_scheduler.balanced_allocation(
        *default_scheduler.requested_and_allocatable(pod, table, rows, counted=False)
    )


BY_REQUESTS: Mapping[str, Score] = {
    "LeastAllocated": _least,
    "MostAllocated": _most,
    "BalancedAllocation": _balanced,
    DEFAULT: default_scheduler.as_it_comes,
}
"""kube-scheduler's scores by requests, each alone, and as it comes: LeastAllocated and BalancedAllocation together."""


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """One of BY_REQUESTS."""

    name: str

    def over(self, table: Table) -> Decider:
        return _ByRequests(BY_REQUESTS[self.name], table)


@dataclass(frozen=True, slots=True)
class _ByRequests:
    score: Score
    table: Table

    def prepare(self) -> None:
        pass

    def passes(self, pod: PodInfo, rows: I64, *, now: float) -> Bool:
        return np.ones(len(rows), dtype=np.bool_)

    def scores(self, pod: PodInfo, rows: I64, *, now: float) -> I64:
        return self.score(pod, self.table, rows)

    def preferred(self, pod: PodInfo, rows: I64) -> I64:
        return np.zeros(len(rows), dtype=np.int64)


# --- profiles of plug-ins --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProfilePolicy:
    """A profile; with `precise_scores` as the plug-ins score inside kube-scheduler, else as through the extender."""

    name: str
    settings: ProfileSettings

    def over(self, table: Table) -> Decider:
        try:
            profile = Profile(self.settings, table)
        except ValueError as error:
            raise PolicyError(f"{self.name}: {error}", "docs/scheduling.md has the arguments of plug-ins") from error
        if table.needs.pods or table.needs.node_metrics:
            hint = 'a trace has neither NodeMetrics nor readings of pods: nodeMetricSource = "windows"'
            raise PolicyError(f"{self.name} cannot be simulated", hint)
        if not profile.scoring and not profile.filtering:
            raise PolicyError(f"{self.name} neither filters nor scores", "enable a plug-in under score or filter")
        return _ByProfile(profile, 100 if self.settings.precise_scores else 10, table)


@dataclass(frozen=True, slots=True)
class _ByProfile:
    profile: Profile
    most: int
    table: Table

    def prepare(self) -> None:
        for _ in self.profile.prepare():
            pass

    def passes(self, pod: PodInfo, rows: I64, *, now: float) -> Bool:
        through = np.ones(len(rows), dtype=np.bool_)
        for _, verdicts in self.profile.filter(pod, rows, now=now).parts:
            through &= verdicts.passed
        return through

    def scores(self, pod: PodInfo, rows: I64, *, now: float) -> I64:
        return told_scores(self.profile.rank(pod, rows, now=now).values, self.most)

    def preferred(self, pod: PodInfo, rows: I64) -> I64:
        return default_scheduler.as_it_comes(pod, self.table, rows)


# --- by name ---------------------------------------------------------------------------------------------------------


def find_policy(wanted: str, scheduler: Mapping[str, Any], *, cwd: Path) -> tuple[Policy, tuple[str, ...]]:
    """The policy of this name, and notices: one of BY_REQUESTS, a profile of the settings' table [scheduler], a plug-in
    with its defaults, or FILE.yaml, or FILE.yaml:PROFILE, a KubeSchedulerConfiguration. Raises PolicyError, and
    SettingsError for a profile with problems."""
    file, _, profile = wanted.partition(":")
    if wanted in BY_REQUESTS:
        return RequestPolicy(wanted), ()
    if wanted in scheduler:
        settings, notices = _read(wanted, scheduler[wanted], cwd)
        return ProfilePolicy(wanted, settings), notices
    if Path(file).suffix in (".yaml", ".yml", ".json"):
        table = {"from": file, **({"profile": profile} if profile else {})}
        settings, notices = _read(profile or Path(file).stem, table, cwd)
        # Its plug-ins are those inside kube-scheduler, whose scores nobody rounds to 0 to 10.
        return ProfilePolicy(settings.name, replace(settings, precise_scores=True)), notices
    return ProfilePolicy(wanted, _of_plugin(wanted, scheduler)), ()


def _read(name: str, table: Any, cwd: Path) -> tuple[ProfileSettings, tuple[str, ...]]:
    found, problems, notices = read_profiles({name: table}, cwd=cwd, served=WINDOWS)
    if problems:
        raise SettingsError(problems)
    (settings,) = found
    return settings, notices


def _of_plugin(name: str, scheduler: Mapping[str, Any]) -> ProfileSettings:
    try:
        factory = factory_of(name)
        make(factory, {}, Table(windows=WINDOWS))
    except UnknownPlugin as error:
        known = (*BY_REQUESTS, *known_names(), *scheduler)
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "a profile is one of the settings, or FILE.yaml:PROFILE"
        raise PolicyError(f"there is no policy {name}; known are {', '.join(known)}", cure) from error
    except ValueError as error:
        raise SettingsError([Problem(name, str(error), "put it into a profile of the settings, with args")]) from error
    return ProfileSettings(name, (PluginSettings(name, points=extension_points(factory)),), precise_scores=True)


def distinct(policies: Sequence[Policy]) -> None:
    """Raises PolicyError where two have the same name, by which a report tells them apart."""
    names = [policy.name for policy in policies]
    for name in names:
        if names.count(name) > 1:
            raise PolicyError(f"the policy {name} is there twice", "leave one out, or give the profile another name")
