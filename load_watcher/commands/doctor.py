"""`load-watcher doctor`: what is wrong with a deployment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.options import OUTPUT, SERVE, to_address, with_options
from load_watcher.cli.settings import load

if TYPE_CHECKING:
    from watcher.platform.checks.examination import Examination
    from watcher.platform.checks.results import Result


@click.command()
@with_options(*SERVE)
@click.option(
    "--url", metavar="URL", callback=to_address, help="A running service to ask too; else the one found here."
)
@click.option(
    "--scheduler-config",
    "scheduler_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A KubeSchedulerConfiguration (or a ConfigMap with one) to look at too.",
)
@click.option(
    "--evictor-config",
    "evictor_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What evicts by load, to hold against the scheduler: LowNodeLoad of a descheduler, NodeQOS policies.",
)
@click.option("--only", multiple=True, metavar="CHECK", help="Look at this alone, and at what it needs: agent, say.")
@OUTPUT
def doctor(
    url: str,
    scheduler_files: Sequence[Path],
    evictor_files: Sequence[Path],
    only: Sequence[str],
    output: str,
    **given: Any,
) -> None:
    """Say what is wrong with this deployment, one line each, with the cure.

    Takes the flags of serve, and changes nothing. Exit 0: all well (warnings included); 1: something failed; 2: it
    could not run.
    """
    import asyncio

    from load_watcher.doctor import checks as doctor_checks
    from load_watcher.doctor import report as doctor_report
    from watcher.platform.checks import examination as checks_examination

    checks: tuple[checks_examination.Check, ...] = (
        *doctor_checks.CHECKS,
        checks_examination.Check("agent", _examine_agent, needs=("settings",)),
    )
    if unknown := sorted(set(only) - {check.name for check in checks}):
        known = ", ".join(check.name for check in checks)
        raise click.BadParameter(f"there is no check {unknown[0]}; there are {known}", param_hint="--only")
    checks = checks_examination.chosen(checks, only) if only else checks
    _setup_logging(verbose=bool(given["verbose"]))
    examination = checks_examination.Examination(
        lambda: load(given),
        environ=os.environ,
        cwd=Path.cwd(),
        url=url,
        scheduler_files=scheduler_files,
        evictor_files=evictor_files,
    )
    if output == "json":
        report = asyncio.run(doctor_checks.run(examination, checks=checks))
        click.echo(doctor_report.as_json(report))
    else:
        with doctor_report.Printer() as printer:
            report = asyncio.run(doctor_checks.run(examination, checks=checks, tell=printer.tell))
        printer.close(report)
    raise SystemExit(report.exit_code)


async def _examine_agent(examination: Examination) -> Sequence[Result]:
    from agent.service.doctor import agent

    return await agent(examination)


def _setup_logging(*, verbose: bool) -> None:
    """What the parts of the service log while they are looked at is said in the report; all of it with --verbose."""
    from watcher.platform.logs import setup_logging
    from watcher.platform.settings.sections.server import LogSettings

    setup_logging(LogSettings(level="debug" if verbose else "critical"))
