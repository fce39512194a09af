"""`load-watcher qrm`: the QoS Resource Manager."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import COULD_NOT, complain
from load_watcher.cli.options import CONFIG, LISTENING, LOGGING, NODE, SET, with_options
from load_watcher.cli.settings import load_part_or_exit

if TYPE_CHECKING:
    from agent.qrm.settings import QrmSettings
    from watcher.platform.settings.tables import Settings

_OPTIONS = (
    CONFIG,
    click.option("--mode", metavar="MODE", help="dry-run (the default), cri, cgroup or server."),
    NODE,
    click.option("--state-dir", type=click.Path(path_type=Path), help="Directory of the checkpoint and states."),
    click.option("--policy", metavar="POLICY", help="How hints are merged, like restricted; else best-effort."),
    click.option(
        "--qos-resource-manager-reconcile-period",
        "reconcile_period",
        metavar="DURATION",
        help="How often what plug-ins say is brought to containers; 3s.",
    ),
    click.option(
        "--qos-resource-manager-resource-names-map",
        "names",
        metavar="NAME=RESOURCE,…",
        help="Resources that pods request under another name, like best-effort-cpu=cpu.",
    ),
    click.option("--watcher", metavar="URL", help="The load-watcher whose windows resize the pools."),
    *LISTENING,
    *LOGGING,
    SET,
)
_OWN = ("mode", "node", "state_dir", "policy", "reconcile_period", "names", "watcher", "host", "port")


@click.command()
@with_options(*_OPTIONS)
def qrm(**given: Any) -> None:
    """Give the pods of this node CPUs, memory and network cards by role, and move the pools with the load.

    Without --mode nothing is set on containers: it decides, and tells on its pages. SIGTERM ends it; what containers
    have stays.
    """
    settings, everything = _settings(given)
    try:
        from agent.qrm import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("grpc", "google"):
            raise
        complain("its protocol needs the extra qrm", "pip install 'load-watcher[qrm]'", of="load-watcher qrm")
        raise SystemExit(COULD_NOT) from None
    from watcher.platform.logs import setup_logging

    setup_logging(everything.log, cluster=everything.cluster.name or "")
    raise SystemExit(main.run(settings, everything))


def _settings(given: Mapping[str, Any]) -> tuple[QrmSettings, Settings]:
    """The manager's table and all others; exits where something is wrong with them."""
    from agent.qrm.settings import read_settings

    everything = load_part_or_exit("qrm", given, own=_OWN)
    settings, _ = read_settings(everything.parts.get("qrm", {}), cwd=Path.cwd())
    return settings, everything
