"""What asks a running extender: `load-watcher score`, `why` and `shadow`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import COULD_NOT, complain
from load_watcher.cli.options import OUTPUT, SERVICE_ASKED, read_token, with_options
from load_watcher.cli.printing import _print_answer

if TYPE_CHECKING:
    pass


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
    from scorers.cli import score as cli_score
    from scorers.extender.manifest import read_pod

    try:
        pod = read_pod(manifest.read())
    except ValueError as error:
        complain(f"the manifest cannot be used: {error}")
        raise SystemExit(COULD_NOT) from None
    wanted = {"nodes": given["nodes"], "plugins": given["plugins"], "token": read_token(given["token_file"])}
    asked = cli_score.explain(given["url"], given["profile"], pod, **wanted)
    _print_answer(asked, partial(cli_score.as_tables, explained=given["explain"]), output=given["output"])
