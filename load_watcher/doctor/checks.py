"""The table of all checks, in the order in which they are reported, and running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from load_watcher.doctor import agent_pages, cluster, database, environment, listening, pods, source
from load_watcher.doctor.scheduler import configuration as scheduler
from watcher import __version__
from watcher.platform.checks.examination import Check, CheckContext, examine
from watcher.platform.checks.results import CheckResult, DoctorReport

CHECKS = (
    Check("settings", environment.settings),
    Check("surroundings", environment.surroundings, needs=("settings",)),
    Check("port", listening.port, needs=("settings",)),
    Check("service", listening.service, needs=("settings",), after=("port",)),
    Check("database", database.database, needs=("settings",), after=("port",)),
    Check("source", source.source, needs=("settings",), deadline=source.TICK_S + 30.0),
    Check("series", source.series, needs=("source",)),
    Check("freshness", source.freshness, needs=("source",)),
    Check("cadence", source.cadence, needs=("source",)),
    Check("clock", source.clock, needs=("source",)),
    Check("samples", source.samples, needs=("source",)),
    Check("retention", database.retention, needs=("source",)),
    Check("addresses", cluster.addresses, needs=("source",)),
    Check("pods", pods.pods, needs=("source",), deadline=source.TICK_S),
    Check("kubernetes", cluster.kubernetes, needs=("settings",)),
    Check("permissions", cluster.permissions, needs=("kubernetes",)),
    Check("nodes", cluster.nodes, needs=("source", "kubernetes")),
    Check("dashboard", agent_pages.dashboard, needs=("settings",)),
    Check("scheduler", scheduler.scheduler, after=("settings", "service")),
)
"""All checks, in the order of the report."""


async def run(
    examination: CheckContext,
    *,
    checks: Sequence[Check] = CHECKS,
    on_result: Callable[[CheckResult], None] = lambda result: None,
) -> DoctorReport:
    """Run the checks and return the report; `on_result` is called with each result, in the order of the report."""
    return DoctorReport(__version__, await examine(examination, checks, on_result=on_result))
