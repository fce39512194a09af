"""`load-watcher doctor`: everything that a first deployment gets wrong, one line each, with the cure.

Nothing here knows better than the service does: the settings are loaded, the source is asked and its samples are judged
by the very code that `serve` runs, so the two cannot disagree. What is added is to look at everything at once, and to
say what it means.

`results` is what a check may say, `examination` runs the checks of the table below, `pages` writes them down. The rest
are checks: `surroundings` (settings, environment), `listening` (port, a running service), `database`, `source` (the
provider and its samples), `pods` (what they use), `cluster` (Kubernetes: access, permissions, names of nodes),
`dashboard` (whose pages it shows), `scheduler` (the configuration of kube-scheduler, with `extenders`, `plugins` and
`circles`). What other packages look at (`agent.doctor`) the command line adds to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from watcher import __version__
from watcher.doctor import cluster, dashboard, database, listening, pods, scheduler, source, surroundings
from watcher.doctor.examination import Check, Examination, chosen, examine
from watcher.doctor.results import Report, Result, Status

__all__ = ["CHECKS", "Check", "Examination", "Report", "Result", "Status", "chosen", "run"]

CHECKS = (
    Check("settings", surroundings.settings),
    Check("surroundings", surroundings.surroundings, needs=("settings",)),
    Check("port", listening.port, needs=("settings",)),
    Check("service", listening.service, needs=("settings",), after=("port",)),
    Check("database", database.database, needs=("settings",), after=("port",)),
    Check("source", source.source, needs=("settings",), deadline=source.TICK_S + 30.0),
    Check("series", source.series, needs=("source",)),
    Check("freshness", source.freshness, needs=("source",)),
    Check("cadence", source.cadence, needs=("source",)),
    Check("clock", source.clock, needs=("source",)),
    Check("samples", source.samples, needs=("source",)),
    Check("addresses", cluster.addresses, needs=("source",)),
    Check("pods", pods.pods, needs=("source",), deadline=source.TICK_S),
    Check("kubernetes", cluster.kubernetes, needs=("settings",)),
    Check("permissions", cluster.permissions, needs=("kubernetes",)),
    Check("nodes", cluster.nodes, needs=("source", "kubernetes")),
    Check("dashboard", dashboard.dashboard, needs=("settings",)),
    Check("scheduler", scheduler.scheduler, after=("settings", "service")),
)
"""All checks, in the order in which they are told."""


async def run(
    examination: Examination,
    *,
    checks: Sequence[Check] = CHECKS,
    tell: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Look at everything; `tell` hears each result as soon as its turn has come."""
    return Report(__version__, await examine(examination, checks, tell=tell))
