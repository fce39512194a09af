"""`load-watcher shadow`."""

from __future__ import annotations

from typing import Any

import click

from load_watcher.cli.options import OUTPUT, SERVICE_ASKED, read_token, with_options
from load_watcher.cli.printing import _print_answer


@click.command()
@click.option("--since", metavar="TIME", help="Only what was bound since: 6h, a date, or unix seconds; else all kept.")
@with_options(*SERVICE_ASKED)
@OUTPUT
def shadow(since: str | None, **given: Any) -> None:
    """Say what other profiles would have done with the pods that were bound, with the uncertainty.

    The profiles are those of [scheduler] shadow = ["NAME", ...]; nothing is placed by them.
    """
    from scorers.cli import shadow as cli_shadow

    asked = cli_shadow.shadow(given["url"], since=since, token=read_token(given["token_file"]))
    _print_answer(asked, cli_shadow.as_tables, output=given["output"])
