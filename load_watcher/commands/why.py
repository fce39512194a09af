"""`load-watcher why`."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from load_watcher.cli.options import OUTPUT, SERVICE_ASKED, read_token, with_options
from load_watcher.cli.printing import _print_answer


@click.command()
@click.argument("pod", metavar="NAMESPACE/POD")
@click.option("--at", metavar="TIME", help="The decision of then: 10m ago, a date, or unix seconds; else the newest.")
@with_options(*SERVICE_ASKED)
@click.option("--explain", is_flag=True, help="Show every number that led to each score.")
@click.option("--others", default=10, show_default=True, type=click.IntRange(0, 100), help="So many to list beside.")
@OUTPUT
def why(pod: str, at: str | None, **given: Any) -> None:
    """Say why a pod was placed where it is: what was known, how nodes were ranked, and what became of it.

    A pod without a namespace is one of "default". The extender's decisions are kept for a day (store.decisions).
    """
    from scorers.cli import why as cli_why

    asked = cli_why.why(given["url"], pod, at=at, limit=given["others"], token=read_token(given["token_file"]))
    _print_answer(asked, partial(cli_why.as_tables, explained=given["explain"]), output=given["output"])
