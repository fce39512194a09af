"""`load-watcher qrm`: runs the QoS Resource Manager."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import CONFIG, LISTENING, LOGGING, NODE, SET, with_options
from load_watcher.cli.settings import load_part_or_exit

if TYPE_CHECKING:
    from agent.qrm.settings import QrmSettings
    from watcher.platform.settings.tables import Settings

_OPTIONS = (
    CONFIG,
    click.option(
        "--mode",
        metavar="MODE",
        help="How allocations are applied: dry-run (not at all), cri (through the container runtime), cgroup (through "
        "cgroup files) or server (only serve the plug-ins, for another manager). [default: dry-run]",
    ),
    NODE,
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        help="Directory for the checkpoint and the plug-ins' states. [default: load-watcher-qrm]",
    ),
    click.option(
        "--policy",
        metavar="POLICY",
        help="How topology hints are merged, as in the kubelet's Topology Manager: none, best-effort, restricted or "
        "single-numa-node. [default: best-effort]",
    ),
    click.option(
        "--qos-resource-manager-reconcile-period",
        "reconcile_period",
        metavar="DURATION",
        help="Interval at which the plug-ins' allocations are applied to containers. [default: 3s]",
    ),
    click.option(
        "--qos-resource-manager-resource-names-map",
        "names",
        metavar="NAME=RESOURCE,…",
        help="Comma-separated map of resource names in pod requests to resource names of plug-ins, for example "
        "best-effort-cpu=cpu. [default: empty]",
    ),
    click.option(
        "--watcher",
        metavar="URL",
        help="Base URL of the load-watcher service whose load windows of this node resize the CPU pools. [default: "
        "none; the pool `online` only grows]",
    ),
    *LISTENING,
    *LOGGING,
    SET,
)
_OWN = ("mode", "node", "state_dir", "policy", "reconcile_period", "names", "watcher", "host", "port")


@click.command()
@with_options(*_OPTIONS)
def qrm(**given: Any) -> None:
    """Run the QoS Resource Manager on this node.

    It allocates CPUs, memory and network cards to pods by role, and resizes the CPU pools with the load. Without --mode
    (or qrm.mode) nothing is set on containers: allocations are only calculated and shown on the HTTP pages. It runs
    until SIGTERM or SIGINT; containers then keep their allocations.

    Exit code 0: stopped by a signal; 1: it could not start; 2: the arguments or the settings are invalid, or the extra
    package load-watcher[qrm] is not installed.
    """
    settings, everything = _settings(given)
    try:
        from agent.qrm import main
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("grpc", "google"):
            raise
        print_error("the extra qrm is not installed", "run pip install 'load-watcher[qrm]'", of="load-watcher qrm")
        raise SystemExit(FAILED) from None
    from watcher.platform.logs import setup_logging

    setup_logging(everything.log, cluster=everything.cluster.name or "")
    raise SystemExit(main.run(settings, everything))


def _settings(given: Mapping[str, Any]) -> tuple[QrmSettings, Settings]:
    """Return the manager's settings and all settings; exit with code 2 if they are invalid."""
    from agent.qrm.settings import read_settings

    everything = load_part_or_exit("qrm", given, own=_OWN)
    settings, _ = read_settings(everything.parts.get("qrm", {}), cwd=Path.cwd())
    return settings, everything
