"""`load-watcher doctor`: diagnoses a deployment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.options import OUTPUT, SERVE, URL_VARIABLE, to_address, with_options
from load_watcher.cli.printing import print_json
from load_watcher.cli.settings import NO_SOURCE, load

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings
    from watcher.platform.checks.examination import CheckContext
    from watcher.platform.checks.results import CheckResult


@click.command(short_help="Find problems of a deployment, with fixes.")
@with_options(*SERVE)
@click.option(
    "--url",
    envvar=URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    callback=to_address,
    help="Base URL of a running service to check as well, with the token of server.token_file. [default: the service "
    "at server.host and server.port, if one is running]",
)
@click.option(
    "--scheduler-config",
    "scheduler_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with a KubeSchedulerConfiguration, or a ConfigMap that contains one, to check as well; can be repeated.",
)
@click.option(
    "--evictor-config",
    "evictor_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File with the configuration of a component that evicts pods by load (a descheduler's LowNodeLoad, NodeQOS "
    "policies), whose thresholds are compared with the scheduler's; can be repeated.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="CHECK",
    help="Run only this check and the checks that it needs; can be repeated. CHECK is settings, surroundings, port, "
    "service, database, source, series, freshness, cadence, clock, samples, retention, addresses, pods, kubernetes, "
    "permissions, nodes, dashboard, scheduler, agent or qrm; docs/tasks/doctor.md describes them. [default: all]",
)
@click.option(
    "--failures",
    is_flag=True,
    help="Print only failures and warnings, and the summary. [default: all results]",
)
@OUTPUT
def doctor(
    url: str,
    scheduler_files: Sequence[Path],
    evictor_files: Sequence[Path],
    only: Sequence[str],
    failures: bool,
    output: str,
    **given: Any,
) -> None:
    """Check this deployment and report problems and their fixes.

    Prints one line per result, and a fix for each problem. Accepts the options of serve, to check the same settings.
    Settings with extender.watcher are checked as those of extender.
    Changes no settings, data or cluster objects. Log messages are shown only with --verbose or --log-level, in the
    format of --log-format; the settings log.level and log.format are only checked.

    Exit code 0: no check failed (there may be warnings); 1: a check failed, for example because the settings are
    invalid; 2: the arguments are invalid.
    """
    import asyncio

    from load_watcher.doctor import checks as doctor_checks
    from load_watcher.doctor import report as doctor_report
    from watcher.platform.checks import examination as checks_examination

    checks: tuple[checks_examination.Check, ...] = (
        *doctor_checks.CHECKS,
        checks_examination.Check("agent", _examine_agent, needs=("settings",)),
        checks_examination.Check("qrm", _examine_qrm, needs=("settings",)),
    )
    if unknown := sorted(set(only) - {check.name for check in checks}):
        known = ", ".join(check.name for check in checks)
        raise click.BadParameter(f"unknown check {unknown[0]}; known checks: {known}", param_hint="--only")
    checks = checks_examination.select_checks(checks, only) if only else checks
    _setup_logging(given)
    examination = checks_examination.CheckContext(
        lambda: _load(given),
        environ=os.environ,
        cwd=Path.cwd(),
        url=url,
        scheduler_files=scheduler_files,
        evictor_files=evictor_files,
    )
    shown = doctor_report.PROBLEMS if failures else doctor_report.ALL
    if output == "json":
        report = asyncio.run(doctor_checks.run(examination, checks=checks))
        print_json(doctor_report.as_document(report, shown=shown))
    else:
        with doctor_report.Printer(shown=shown) as printer:
            report = asyncio.run(doctor_checks.run(examination, checks=checks, on_result=printer.tell))
        printer.close(report)
    raise SystemExit(report.exit_code)


def _load(given: Mapping[str, Any]) -> Settings:
    """Load the settings of serve or, with extender.watcher, of extender. Raises SettingsError."""
    from watcher.platform.net.settings import ExtenderSettings

    settings = load(given, own_windows=None)
    if settings[ExtenderSettings].watcher is None:
        return settings
    from load_watcher.extender.process import adapted

    return adapted(load(given, overrides=NO_SOURCE, own_windows=False))


async def _examine_agent(examination: CheckContext) -> Sequence[CheckResult]:
    from agent.service.doctor import check_agent

    return await check_agent(examination)


async def _examine_qrm(examination: CheckContext) -> Sequence[CheckResult]:
    from watcher.core.config.settings import Settings
    from watcher.platform.checks.results import skipped

    if not examination.get(Settings).parts.get("qrm"):
        return [skipped("these settings have no [qrm] table")]
    from agent.qrm.runtime.nri.doctor import check_qrm

    return await check_qrm(examination)


def _setup_logging(given: Mapping[str, Any]) -> None:
    """Hide the log of the examined modules, since the report contains their results; show it with --verbose or
    --log-level."""
    from watcher.core.config.model_values import LEVEL
    from watcher.core.config.values import InvalidValue
    from watcher.platform.logs import LogSettings, setup_logging

    try:
        level = LEVEL.read(given["log_level"] or ("debug" if given["verbose"] else "critical"))
    except InvalidValue:
        level = "critical"  # the check of the settings reports it
    setup_logging(LogSettings(level=level, format=given["log_format"] or "text"))
