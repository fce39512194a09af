"""`load-watcher koordinator`: maintenance of what load-watcher writes for Koordinator."""

from __future__ import annotations

from typing import Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import CONFIG, OUTPUT, SET, with_options
from load_watcher.cli.printing import print_facts
from load_watcher.cli.settings import NO_SOURCE, load_or_exit

NOT_PUBLISHING = {"koordinator.publish": "false", "koordinator.thresholds": "false"}
"""Without a source, settings that publish its data are refused."""


@click.group(short_help="Remove annotations of Koordinator.")
def koordinator() -> None:
    """Remove what load-watcher wrote to nodes for Koordinator."""


@koordinator.command("remove-thresholds", short_help="Remove the usage thresholds from the nodes.")
@with_options(CONFIG, SET, OUTPUT)
def remove_thresholds(**given: Any) -> None:
    """Remove the annotation scheduling.koordinator.sh/usage-thresholds that load-watcher wrote to nodes.

    Set koordinator.thresholds = false first, otherwise the service writes it again. The command removes at most 5
    annotations per second. Annotations of other writers stay. It needs permission to list and patch nodes; it uses
    kubernetes.kubeconfig and kubernetes.context (--set), or else the credentials of the pod.

    With -o json, prints {"removed", "left"}: the names of the nodes.

    Exit code 0: done; 1: the Kubernetes API failed; 2: the arguments or the settings are invalid.
    """
    import asyncio
    import os

    from watcher.core.kubernetes.errors import KubeError
    from watcher.koordinator.threshold_publisher import remove_all
    from watcher.platform.kube.client import KubeClient
    from watcher.platform.kube.credentials import find_access
    from watcher.platform.kube.settings import KubernetesSettings

    settings = load_or_exit(given, overrides={**NO_SOURCE, **NOT_PUBLISHING})
    path, context = settings[KubernetesSettings].path, settings[KubernetesSettings].context

    async def remove() -> tuple[list[str], list[str]]:
        client = KubeClient(lambda: find_access(kubeconfig=path, context=context, environ=os.environ))
        try:
            return await remove_all(client)
        finally:
            await client.close()

    try:
        removed, left = asyncio.run(remove())
    except KubeError as error:
        print_error(str(error), error.hint or "run the command again: it continues where it stopped")
        raise SystemExit(FAILED) from None
    lines = [f"removed the annotation from {len(removed)} nodes"]
    if left:
        lines.append(f"{len(left)} nodes keep the annotation of another writer: {', '.join(left)}")
    print_facts({"removed": removed, "left": left}, "\n".join(lines), output=given["output"])
