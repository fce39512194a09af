"""The process that hosts the scheduling plug-ins: the service of the watcher, or a process of its own.

`watcher.platform.modules.HostProcess` and `LoadAccess` are what `SchedulingService` uses of both, so that it does not
depend on where it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from scorers.cluster.table import ClusterTable, DataNeeds
from scorers.profiles.missing_forecasts import offered_horizons, unmet_forecasts
from scorers.profiles.profiles import ProfileSettings, read_profiles
from scorers.profiles.ranking import ProfileRunner
from watcher.client import Client, InProcessClient
from watcher.core.config.problems import Problem
from watcher.core.forecast.settings import ForecastSettings
from watcher.model import MetricType, Operator, Window
from watcher.platform.modules import HostProcess, ModuleHost

LOOK_EVERY_S = 1.0  # poll interval for a new copy of the load
TYPES = (MetricType.CPU, MetricType.MEMORY, MetricType.GPU)
OPERATORS = (Operator.LATEST, Operator.AVG, Operator.STD)


class LoadAccess(Protocol):
    """The load of the nodes, as the watcher offers it to this process."""

    async def renew(self) -> bool:
        """Ask what the watcher offers, if that is due. Return whether it has changed, so that clients must be created
        again. Raises WatcherError."""
        ...

    def client(self, needs: DataNeeds) -> Client:
        """Create a client for the load and these data; data that the watcher does not offer are not requested."""
        ...

    def unmet(self, needs: DataNeeds) -> tuple[str, str] | None:
        """The data of `needs` that the watcher does not offer, with a remedy; None if it offers all, or is unknown."""
        ...


class InProcessLoad:
    """The load of the service that also hosts the plug-ins."""

    def __init__(self, serving: ModuleHost) -> None:
        self._serving = serving

    async def renew(self) -> bool:
        """See LoadAccess. Changes arrive with a reload of the settings."""
        return False

    def client(self, needs: DataNeeds) -> Client:
        serving = self._serving
        return InProcessClient(
            lambda: serving.published,
            window=serving.windows[-1],
            types=TYPES,
            operators=operators_for(needs.horizon),
            horizon=needs.horizon,
            pods=serving if needs.pods else None,
            minutes=needs.minutes,
            measure=serving.measure if needs.usages else None,
            max_staleness=serving.max_staleness,
            interval=LOOK_EVERY_S,
            monotonic=serving.monotonic,
        )

    def unmet(self, needs: DataNeeds) -> tuple[str, str] | None:
        """See LoadAccess. The service has all data, except pods that its source lacks, which the log reports, and
        forecasts, which the settings may disable."""
        return unmet_forecasts(needs.horizon, offered_horizons(self._serving.settings[ForecastSettings]))


def operators_for(horizon: str) -> tuple[Operator, ...]:
    """Return the operators that plug-ins need, with forecasts over this horizon if it is not empty."""
    return (*OPERATORS, Operator.FORECAST) if horizon else OPERATORS


def window_label(host: HostProcess) -> str:
    """The label of the window that the load is averaged over, "" while it is unknown."""
    return host.windows[-1].label if host.windows else ""


# --- data that a watcher does not offer ------------------------------------------------------------------------------


def unmet_profiles(
    scheduler: Mapping[str, Any], load: LoadAccess, *, windows: tuple[Window, ...], cwd: Path
) -> dict[str, tuple[Problem, ...]]:
    """Return the problems of each profile of the valid table [scheduler] with data that the watcher does not offer;
    profiles without such problems are left out. `windows` are those of the watcher."""
    profiles, _, _ = read_profiles(scheduler, cwd=cwd)
    found = {}
    for profile in profiles:
        problems = read_profiles({profile.name: scheduler[profile.name]}, cwd=cwd, served=windows)[1]
        found[profile.name] = problems or tuple(_unmet_plugins(profile, load, windows))
    return {name: problems for name, problems in found.items() if problems}


def _unmet_plugins(profile: ProfileSettings, load: LoadAccess, windows: tuple[Window, ...]) -> list[Problem]:
    problems = []
    for plugin in profile.plugins:
        trial = ClusterTable(windows=windows)
        ProfileRunner(replace(profile, plugins=(plugin,)), trial)
        if lacking := load.unmet(trial.needs):
            what, cure = lacking
            problems.append(Problem(f"scheduler.{profile.name}", f"{plugin.name} needs {what}", cure))
    return problems
