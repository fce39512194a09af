"""`load-watcher qrm`: runs the QoS Resource Manager, and `qrm restore`, which reverts what it set."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import (
    CONFIG,
    IN_SECONDS,
    LOGGING,
    OUTPUT,
    SET,
    listening_options,
    node_option,
    watcher_url,
    with_options,
)
from load_watcher.cli.printing import print_facts
from load_watcher.cli.settings import load_part_or_exit
from watcher.core.messages import install_extra

if TYPE_CHECKING:
    from agent.qrm.settings import QrmSettings
    from watcher.core.config.settings import Settings

_STATE_DIR = click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="Directory for the checkpoint and the states of the plug-ins (qrm.state_dir); must persist across "
    "restarts. [default: load-watcher-qrm in the working directory]",
)
_OPTIONS = (
    CONFIG,
    click.option(
        "--mode",
        metavar="MODE",
        help="How allocations are applied: dry-run (not at all), nri (before containers start, through containerd or "
        "CRI-O), cri (through the container runtime) or server (only serve the plug-ins, for an external manager such "
        "as Katalyst's kubelet); see qrm.mode. [default: dry-run]",
    ),
    node_option("qrm"),
    _STATE_DIR,
    click.option(
        "--policy",
        metavar="POLICY",
        help="How topology hints are merged, as in the kubelet's Topology Manager: none, best-effort, restricted or "
        "single-numa-node (qrm.policy). [default: best-effort]",
    ),
    watcher_url(
        "the load-watcher service whose load windows of this node resize the CPU pools (qrm.watcher). [default: "
        "qrm.watcher; without it, the pool `online` only grows]"
    ),
    *listening_options("qrm", port=2022, protected=True),
    *LOGGING,
    SET,
    # The long names of Katalyst are last, because click indents the text of all options by their length.
    click.option(
        "--qos-resource-manager-reconcile-period",
        "reconcile_period",
        metavar="DURATION",
        help="Interval at which the allocations of the plug-ins are applied to containers, 100ms to 1h "
        f"(qrm.reconcile_period); {IN_SECONDS}. [default: 3s]",
    ),
    click.option(
        "--qos-resource-manager-resource-names-map",
        "names",
        metavar="NAME=RESOURCE,…",
        help="Comma-separated map of resource names in pod requests to resource names of plug-ins, for example "
        "best-effort-cpu=cpu (qrm.names). [default: empty]",
    ),
)
_OWN = ("mode", "node", "state_dir", "policy", "reconcile_period", "names", "watcher", "host", "port")


@click.group(invoke_without_command=True, short_help="Run the QoS Resource Manager on this node.")
@with_options(*_OPTIONS)
@click.pass_context
def qrm(context: click.Context, /, **given: Any) -> None:
    """Run the QoS Resource Manager on this node.

    It allocates CPUs, memory and network cards to pods by role, and resizes the CPU pools with the load. By
    default (--mode dry-run) it sets nothing on containers: it calculates allocations, stores them in --state-dir and
    shows them on the HTTP pages. It runs until SIGTERM or SIGINT; containers then keep their allocations.

    Exit code 0: stopped by a signal; 1: it could not start; 2: the arguments or the settings are invalid, or the extra
    qrm is not installed.
    """
    if context.invoked_subcommand is not None:
        context.obj = given
        return
    settings, everything = settings_of(given)
    main = _with_extra("agent.qrm.main")
    from watcher.platform.logs import ClusterSettings, LogSettings, setup_logging

    setup_logging(everything[LogSettings], cluster=everything[ClusterSettings].name or "")
    raise SystemExit(main.run(settings, everything))


@qrm.command("restore", short_help="Restore what the manager set on containers.")
@click.option(
    "--mode",
    metavar="MODE",
    help="The mode that the manager had: nri or cri. [default: qrm.mode if it is one of them, otherwise the mode that "
    "is stored in --state-dir]",
)
@with_options(CONFIG, _STATE_DIR, SET, OUTPUT)
@click.option("--missing-ok", is_flag=True, help="Exit with 0 if the checkpoint does not exist. [default: exit with 1]")
@click.pass_obj
def restore(before: Mapping[str, Any], /, *, missing_ok: bool, **own: Any) -> None:
    """Restore CPUs, memory nodes and other properties of containers to the values that they have without the manager.

    Use it before you uninstall the manager or switch it off. The checkpoint in --state-dir names the containers. The
    manager must not be running, because it would set the allocations again; so would its next start. CPUs and memory
    nodes that the kubelet itself assigns are set to the kubelet's values. Environment variables and annotations remain
    until the containers are created again.

    With -o json, prints {"containers": [{"pod", "container", "id", "outcome", "text"}], "text"}.

    Exit code 0: all restored, or nothing to restore; 1: a container could not be restored, the manager is running, the
    runtime is unavailable, or there is no checkpoint (0 with --missing-ok); 2: the arguments or the settings are
    invalid, or the extra qrm is not installed.
    """
    import asyncio
    from dataclasses import asdict

    given = {**before, **{name: value for name, value in own.items() if value}}
    settings, _ = settings_of(given)
    restoring = _with_extra("agent.qrm.runtime.restore")
    from agent.service.node_server import CannotRun

    checkpoint = settings.state_dir / restoring.CHECKPOINT
    if missing_ok and not checkpoint.exists():
        text = f"{checkpoint} does not exist: no manager has run on this node; nothing to restore"
        print_facts({"containers": [], "text": text}, text, output=given["output"])
        return
    try:
        found = asyncio.run(restoring.restore(settings))
    except CannotRun as error:
        print_error(error.reason, error.hint, of="load-watcher qrm restore")
        raise SystemExit(1) from None
    facts = {"containers": [asdict(each) for each in found.containers], "text": found.text}
    lines = [f"{each.called}: {each.text}" for each in found.containers]
    print_facts(facts, "\n".join([*lines, found.text]), output=given["output"])
    raise SystemExit(1 if any(each.outcome == "failed" for each in found.containers) else 0)


def _with_extra(module: str) -> Any:
    """Import a module that needs the extra qrm; exit with code 1 if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("grpc", "google"):
            raise
        print_error("the extra qrm is not installed", install_extra("qrm"), of="load-watcher qrm")
        raise SystemExit(FAILED) from None


def settings_of(given: Mapping[str, Any]) -> tuple[QrmSettings, Settings]:
    """Return the manager's settings and all settings; exit with code 2 if they are invalid."""
    from agent.qrm.settings import read_settings

    everything = load_part_or_exit("qrm", given, own=_OWN)
    settings, _ = read_settings(everything.parts.get("qrm", {}), cwd=Path.cwd())
    return settings, everything
