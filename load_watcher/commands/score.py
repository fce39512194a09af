"""The command `load-watcher score`: a ranking of nodes for the pod in a manifest."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import CLIENT_OPTIONS, OUTPUT, read_token, with_options


@click.command(short_help="Rank nodes for the pod in a manifest.")
@click.argument("manifest", metavar="POD.yaml", type=click.File("rb"))
@click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="NODE",
    help="Rank only this node; can be repeated. [default: all nodes that the service knows]",
)
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="NAME",
    help="Rank only by this plug-in of the profile; can be repeated. [default: all plug-ins of the profile]",
)
@click.option(
    "--profile",
    default="default",
    show_default=True,
    metavar="NAME",
    help="Profile of the extender to rank with: NAME of a [scheduler.NAME] in the service's settings.",
)
@with_options(*CLIENT_OPTIONS)
@click.option("--explain", is_flag=True, help="Also print the inputs and calculation steps of each score.")
@OUTPUT
def score(manifest: Any, **given: Any) -> None:
    """Rank nodes for the pod in a manifest.

    The service ranks them as its scheduler extender would, without reserving resources for the pod. Nodes that
    kube-scheduler would reject are listed last, with the reason: no room for the requests, unschedulable, a taint that
    the pod does not tolerate, or another node selector. Affinity, topology spread, ports and volumes are not checked.
    POD.yaml contains a Pod or an object with a pod template, for example a Deployment; "-" reads standard input. The
    text output lists the 40 best nodes, the JSON output lists all.

    Exit code 0: ranked; 2: the arguments or the manifest are invalid, or the request failed.
    """
    from load_watcher.cli.answers import print_answer
    from load_watcher.scoring.extender_client import explain
    from load_watcher.scoring.scores import score_tables
    from scorers.extender.manifest import read_pod

    try:
        pod = read_pod(manifest.read())
    except ValueError as error:
        print_error(f"invalid manifest: {error}")
        raise SystemExit(FAILED) from None
    wanted = {"nodes": given["nodes"], "plugins": given["plugins"], "token": read_token(given["token_file"])}
    asked = explain(given["url"], given["profile"], pod, **wanted)
    print_answer(asked, partial(score_tables, explained=given["explain"]), url=given["url"], output=given["output"])
