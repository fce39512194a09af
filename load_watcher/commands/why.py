"""The command `load-watcher why`: the decision that placed a pod."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from load_watcher.cli.options import CLIENT_OPTIONS, MOMENT, OUTPUT, read_token, with_options


def _name_of_pod(_context: click.Context, _parameter: click.Parameter, given: str) -> str:
    if given.count("/") > 1 or not all(given.split("/")):
        raise click.BadParameter(f"must be NAMESPACE/POD or POD, for example shop/web, given {given!r}")
    return given


@click.command(short_help="Explain the placement of a pod.")
@click.argument("pod", metavar="NAMESPACE/POD", callback=_name_of_pod)
@click.option(
    "--at",
    metavar="TIME",
    help=f"Show the last decision made up to this time: {MOMENT}. [default: the newest decision]",
)
@with_options(*CLIENT_OPTIONS)
@click.option("--explain", is_flag=True, help="Also print the inputs and calculation steps of each score.")
@click.option(
    "--others",
    default=10,
    show_default=True,
    type=click.IntRange(0, 100),
    metavar="N",
    help="Maximum number of other decisions about the same pod to list.",
)
@OUTPUT
def why(pod: str, at: str | None, **given: Any) -> None:
    """Explain the placement of a pod.

    Prints the load at the time of the decision, the filtering and ranking of nodes, and the outcome. Without NAMESPACE/
    the namespace is "default". The service stores the extender's decisions for 24h by default (store.decisions).

    Exit code 0: explained; 2: the decision is unknown, or the request failed.
    """
    from load_watcher.cli.answers import print_answer
    from load_watcher.scoring import extender_client
    from load_watcher.scoring.decisions import decision_tables

    asked = extender_client.why(given["url"], pod, at=at, limit=given["others"], token=read_token(given["token_file"]))
    print_answer(asked, partial(decision_tables, explained=given["explain"]), url=given["url"], output=given["output"])
