"""What asks a running extender: `load-watcher score`, `why` and `shadow`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from watcher.commands.ending import COULD_NOT, complain
from watcher.commands.options import OUTPUT, SERVICE_ASKED, read_token, with_options
from watcher.commands.printing import print_tables

if TYPE_CHECKING:
    from rich.console import RenderableType


@click.command()
@click.argument("manifest", metavar="POD.yaml", type=click.File("rb"))
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Rank only these; else all that are known.")
@click.option("--plugin", "plugins", multiple=True, metavar="NAME", help="Rank by these of the profile alone.")
@click.option("--profile", default="default", show_default=True, metavar="NAME", help="Of the extender.")
@with_options(*SERVICE_ASKED)
@click.option("--explain", is_flag=True, help="Show every number that led to each score.")
@OUTPUT
def score(manifest: Any, **given: Any) -> None:
    """Rank nodes for the pod of a manifest (or of what makes pods, a Deployment for instance), as the extender would.

    Reserves nothing. "-" reads the manifest from standard input.
    """
    from scorers import asking
    from scorers.manifest import read_pod

    try:
        pod = read_pod(manifest.read())
    except ValueError as error:
        complain(f"the manifest cannot be used: {error}")
        raise SystemExit(COULD_NOT) from None
    wanted = {"nodes": given["nodes"], "plugins": given["plugins"], "token": read_token(given["token_file"])}
    asked = asking.explain(given["url"], given["profile"], pod, **wanted)
    _print_answer(asked, partial(asking.as_tables, explained=given["explain"]), output=given["output"])


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
    from scorers import asking_why

    asked = asking_why.why(given["url"], pod, at=at, limit=given["others"], token=read_token(given["token_file"]))
    _print_answer(asked, partial(asking_why.as_tables, explained=given["explain"]), output=given["output"])


@click.command()
@click.option("--since", metavar="TIME", help="Only what was bound since: 6h, a date, or unix seconds; else all kept.")
@with_options(*SERVICE_ASKED)
@OUTPUT
def shadow(since: str | None, **given: Any) -> None:
    """Say what other profiles would have done with the pods that were bound, with the uncertainty.

    The profiles are those of [scheduler] shadow = ["NAME", ...]; nothing is placed by them.
    """
    from scorers import asking_shadow

    asked = asking_shadow.shadow(given["url"], since=since, token=read_token(given["token_file"]))
    _print_answer(asked, asking_shadow.as_tables, output=given["output"])


def _print_answer(
    asked: Coroutine[Any, Any, dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterator[RenderableType]],
    *,
    output: str,
) -> None:
    """Print what an extender answers, for people or as JSON; exit 2 where it does not."""
    import asyncio

    from scorers.asking import AskError

    try:
        document = asyncio.run(asked)
    except AskError as error:
        complain(error, error.hint)
        raise SystemExit(COULD_NOT) from None
    if output == "json":
        import json

        click.echo(json.dumps(document, indent=2))
    else:
        print_tables(tables(document))
