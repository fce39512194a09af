"""`load-watcher config`: validates and shows the settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, print_settings_problems, problem_documents
from load_watcher.cli.options import OUTPUT, SERVE, with_options
from load_watcher.cli.printing import print_facts, print_json
from load_watcher.cli.settings import load, load_or_exit, qrm_notices, scheduler_notices, settings_document

if TYPE_CHECKING:
    from watcher.core.config.settings import Settings


@click.group(short_help="Validate or show the settings.")
def config() -> None:
    """Validate the settings, or show the settings in effect."""


@config.command(short_help="Validate the settings.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@with_options(*SERVE, OUTPUT)
@click.option(
    "--source",
    "ask_source",
    is_flag=True,
    help="Query the source once as well, and print its queries and what each candidate for node names maps to, as the "
    "checks source and series of doctor do. [default: no request is sent]",
)
def check(file: Path | None, output: str, ask_source: bool, **given: Any) -> None:
    """Validate the settings.

    Validates the settings that result from FILE (or --config FILE), the environment variables and the options of serve,
    and prints every problem. Without a file, these are the settings that serve would use in this directory. With
    extender.watcher, the windows in [scheduler] are those of the watcher and are not checked.

    With -o json, prints {"valid", "problems": [{"key", "message", "cure"}], "notices"}, and with --source "source",
    the document of doctor.

    Exit code 0: valid; 1: with --source, a check of the source failed; 2: invalid, or FILE does not exist.
    """
    from watcher.core.config.problems import SettingsError

    if file is not None and given["config"] is not None:
        raise click.UsageError("FILE and --config name the same thing; remove one of them")
    try:
        settings = load({**given, "config": file or given["config"]}, own_windows=None)
    except SettingsError as error:
        if output == "json":
            print_json({"valid": False, "problems": problem_documents(error.problems), "notices": []})
        else:
            print_settings_problems(error)
        raise SystemExit(BAD_SETTINGS) from None
    notices = [*settings.notices, *scheduler_notices(settings), *qrm_notices(settings)]
    if output != "json":
        for notice in notices:
            click.echo(f"note: {notice}", err=True)
    facts: dict[str, Any] = {"valid": True, "problems": [], "notices": notices}
    failed = 0
    if ask_source:
        facts["source"], failed = _ask_source(settings, output=output)
    print_facts(facts, "ok", output=output)
    if failed:
        raise SystemExit(failed)


def _ask_source(settings: Settings, *, output: str) -> tuple[dict[str, Any], int]:
    """Run the checks of the source, and print their results unless the output is JSON. Return doctor's document and
    exit code."""
    import asyncio

    from load_watcher.doctor import checks
    from load_watcher.doctor.report import Printer, as_document
    from watcher.platform.checks.examination import CheckContext, select_checks

    examination = CheckContext(lambda: settings, environ=os.environ, cwd=Path.cwd())
    wanted = select_checks(checks.CHECKS, ("series",))
    if output == "json":
        report = asyncio.run(checks.run(examination, checks=wanted))
    else:
        with Printer() as printer:
            report = asyncio.run(checks.run(examination, checks=wanted, on_result=printer.tell))
    return as_document(report), report.exit_code


@config.command("show", short_help="Print the settings in effect.")
@with_options(*SERVE, OUTPUT)
def show_settings(output: str, **given: Any) -> None:
    """Print the settings in effect as TOML, with the origin of each. Secrets are replaced by <hidden>.

    With -o json, prints {"settings": [{"key", "value", "origin"}]}; the value of a setting that is not set is null.

    Exit code 0: printed; 2: the arguments or the settings are invalid.
    """
    from watcher.service.settings.show import show

    settings = load_or_exit(given)
    if output == "json":
        print_json(settings_document(settings))
    else:
        click.echo(show(settings), nl=False)
