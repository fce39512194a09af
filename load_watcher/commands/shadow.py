"""The command `load-watcher shadow`: what other profiles would have decided."""

from __future__ import annotations

from typing import Any

import click

from load_watcher.cli.options import CLIENT_OPTIONS, MOMENT, OUTPUT, read_token, with_options


@click.command(short_help="Report what other profiles would have done.")
@click.option(
    "--since",
    metavar="TIME",
    help=f"Include only pods bound since this time: {MOMENT}. [default: all stored bindings]",
)
@with_options(*CLIENT_OPTIONS)
@OUTPUT
def shadow(since: str | None, **given: Any) -> None:
    """Report how shadow profiles would have placed pods.

    Compares the actual placement of bound pods with the choice of each shadow profile, with confidence intervals. The
    shadow profiles are listed in [scheduler] shadow = ["NAME", ...] of the service; they never place pods.

    Exit code 0: reported; 2: the service has no shadow mode, or the request failed.
    """
    from load_watcher.cli.answers import print_answer
    from load_watcher.scoring import extender_client
    from load_watcher.scoring.decisions import shadow_tables

    asked = extender_client.shadow(given["url"], since=since, token=read_token(given["token_file"]))
    print_answer(asked, shadow_tables, url=given["url"], output=given["output"])
