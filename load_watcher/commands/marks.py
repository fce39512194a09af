"""`load-watcher marks`: maintenance of the marks that load-watcher wrote to nodes."""

from __future__ import annotations

from typing import Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import CONFIG, OUTPUT, SET, with_options
from load_watcher.cli.printing import print_facts
from load_watcher.cli.settings import NO_SOURCE, load_or_exit

NOT_WRITING = {
    "marks.taints": "false",
    "marks.annotation": "false",
    "marks.pressure": "false",
    "koordinator.publish": "false",
    "koordinator.thresholds": "false",
}
"""Without a source, settings that publish its data are refused."""


@click.group(short_help="Remove soft taints and scores from the nodes.")
def marks() -> None:
    """Remove what load-watcher wrote to nodes with the settings [marks]."""


@marks.command("remove", short_help="Remove the marks from all nodes.")
@with_options(CONFIG, SET, OUTPUT)
def remove(**given: Any) -> None:
    """Remove the taints load-watcher.io/hot, hot-2 and hot-3 and the annotation load-watcher.io/node-score.

    The command takes the Lease load-watcher-marks, so that a running service stops writing; if one held it, the command
    waits for 30 seconds first. To remove the marks for good, set marks.taints and marks.annotation to false, or delete
    the service within 30 seconds after the command. It needs permission to list, get and patch nodes and to use the
    Lease; it uses kubernetes.kubeconfig and kubernetes.context (--set), or else the credentials of the pod.

    With -o json, prints {"removed"}: the names of the nodes.

    Exit code 0: done; 1: the Kubernetes API failed; 2: the arguments or the settings are invalid.
    """
    import asyncio

    from scorers.marks.removal import remove_all
    from watcher.core.kubernetes.errors import KubeError
    from watcher.platform.kube.credentials import AccessFinder
    from watcher.platform.kube.settings import KubernetesSettings

    settings = load_or_exit(given, overrides={**NO_SOURCE, **NOT_WRITING})
    try:
        removed = asyncio.run(remove_all(AccessFinder.of(*settings[KubernetesSettings].access)))
    except KubeError as error:
        print_error(str(error), error.hint or "run the command again: it continues where it stopped")
        raise SystemExit(FAILED) from None
    print_facts({"removed": removed}, f"removed the marks from {len(removed)} nodes", output=given["output"])
