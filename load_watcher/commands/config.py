"""`load-watcher config`: validates and shows the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, print_settings_problems, problem_documents
from load_watcher.cli.options import OUTPUT, SERVE, with_options
from load_watcher.cli.printing import print_facts, print_json
from load_watcher.cli.settings import load, load_or_exit, qrm_notices, scheduler_notices, settings_document


@click.group(short_help="Validate or show the settings.")
def config() -> None:
    """Validate the settings, or show the settings in effect."""


@config.command(short_help="Validate the settings.")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@with_options(*SERVE, OUTPUT)
def check(file: Path | None, output: str, **given: Any) -> None:
    """Validate the settings.

    Validates the settings that result from FILE (or --config FILE), the environment variables and the options of serve,
    and prints every problem. Without a file, these are the settings that serve would use in this directory. With
    extender.watcher, the windows in [scheduler] are those of the watcher and are not checked.

    With -o json, prints {"valid", "problems": [{"key", "message", "cure"}], "notices"}.

    Exit code 0: valid; 2: invalid, or FILE does not exist.
    """
    from watcher.platform.settings.problems import SettingsError

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
    print_facts({"valid": True, "problems": [], "notices": notices}, "ok", output=output)


@config.command("show", short_help="Print the settings in effect.")
@with_options(*SERVE, OUTPUT)
def show_settings(output: str, **given: Any) -> None:
    """Print the settings in effect as TOML, with the origin of each. Secrets are replaced by <hidden>.

    With -o json, prints {"settings": [{"key", "value", "origin"}]}; the value of a setting that is not set is null.

    Exit code 0: printed; 2: the arguments or the settings are invalid.
    """
    from watcher.platform.settings.reference import show

    settings = load_or_exit(given)
    if output == "json":
        print_json(settings_document(settings))
    else:
        click.echo(show(settings), nl=False)
