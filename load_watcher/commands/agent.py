"""`load-watcher agent`: the node agent, and `agent restore`, which reverts its changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, FAILED, print_error
from load_watcher.cli.options import (
    CONFIG,
    LOGGING,
    OUTPUT,
    SET,
    listening_options,
    node_option,
    watcher_url,
    with_options,
)
from load_watcher.cli.printing import print_facts, print_json
from load_watcher.cli.settings import load_part_or_exit

if TYPE_CHECKING:
    from agent.service.main import RestoreSummary
    from agent.service.settings import AgentSettings
    from watcher.core.config.settings import Settings

_STATE_FILE = click.option(
    "--state-file",
    type=click.Path(path_type=Path),
    help="SQLite file with the original limits of containers and the audit log (agent.state_file). [default: "
    "load-watcher-agent.db in the working directory]",
)
_OPTIONS = (
    CONFIG,
    node_option("agent"),
    click.option(
        "--policies",
        type=click.Path(path_type=Path),
        help="Directory with the policies in YAML (agent.policies). [default: read from the Kubernetes API]",
    ),
    _STATE_FILE,
    watcher_url(
        "the load-watcher service whose load windows of this node become metrics (agent.watcher). [default: "
        "agent.watcher; without it, there are no such metrics]"
    ),
    *listening_options("agent", port=2021, protected=True),
    *LOGGING,
    SET,
)
_OWN = ("node", "policies", "state_file", "watcher", "host", "port")


def _path_of_check(context: click.Context, parameter: click.Parameter, given: Path | None) -> Path | None:
    if given is not None and str(given).startswith("-"):
        raise click.UsageError(
            f"--check requires a PATH, but the option {given} follows; write --check PATH {given} …, or ./{given} if a "
            "file has this name"
        )
    return given


@click.group(invoke_without_command=True, short_help="Throttle and evict pods on this node.")
@click.option(
    "--preview",
    is_flag=True,
    help="Make and report decisions without carrying them out; only the state file is written. Overrides agent.mode. "
    "Cannot be combined with --enforce. "
    "[default, unless agent.mode is enforce]",
)
@click.option(
    "--enforce",
    is_flag=True,
    help="Carry out the decisions: throttle, evict and taint; overrides agent.mode. Cannot be combined with --preview.",
)
@click.option(
    "--once",
    is_flag=True,
    help="Run until each rule has decided, for about 2 minutes at most; print the decisions with their reasons and "
    "the unknown metrics, and exit. Always in preview mode. Exit code 0: decided; 1: the agent could not start; "
    "2: no valid policies.",
)
@click.option(
    "--check",
    type=click.Path(path_type=Path),
    metavar="PATH",
    callback=_path_of_check,
    help="Validate the policies in a file or directory, print every problem and exit. "
    "Exit code 0: valid; 2: invalid, or PATH does not exist.",
)
@with_options(*_OPTIONS, OUTPUT)
@click.pass_context
def agent(
    context: click.Context, /, preview: bool, enforce: bool, once: bool, check: Path | None, **given: Any
) -> None:
    """Protect this node by throttling and evicting pods.

    By default the agent only reports what it would do. With --enforce, or agent.mode = "enforce", it throttles and
    evicts pods until the load is just below the watermarks of the policies. It runs until SIGTERM or SIGINT;
    agent.on_exit sets what happens to CPU quotas and the taint at the end: keep (default) or restore.

    With -o json, --check prints {"valid", "policies", "problems", "notices", "rules"}, and --once the document of
    /explain.

    Exit code 0: stopped by a signal, also if a quota or the taint could not be restored (the log names it); 1: the
    agent could not start, or could not access its state file when it restored the quotas at the end; 2: the arguments
    or the settings are invalid.
    """
    if context.invoked_subcommand is not None:
        context.obj = given
        return
    from watcher.platform.logs import ClusterSettings, LogSettings, setup_logging

    if preview and enforce:
        raise click.UsageError("--preview and --enforce are mutually exclusive; remove one of them")
    asked = "enforce" if enforce else "preview" if preview else None
    settings, everything = settings_of(given, mode="preview" if once else asked)
    if check is not None:
        raise SystemExit(_check_policies(check, settings, output=given["output"]))
    setup_logging(everything[LogSettings], cluster=everything[ClusterSettings].name or "")
    from agent.service import main

    if once:
        raise SystemExit(_explain_once(settings, everything, output=given["output"]))
    raise SystemExit(main.run(settings, everything))


@agent.command("demo", short_help="Show the agent on processes that it starts.")
@click.option(
    "--seconds", type=click.FloatRange(min=20.0, max=3600.0), default=60.0, show_default=True, help="Duration."
)
def demo(seconds: float) -> None:
    """Start processes that exceed a watermark, throttle them, and restore them.

    Works on any Linux machine, without Kubernetes. As root, the agent writes quotas to a new control group;
    otherwise it only shows its plan. At the end, processes, control groups and files are removed.

    Exit code 0: shown; 1: the state file could not be written.
    """
    from agent.service import demo as service_demo

    service_demo.run(click.echo, seconds=seconds)


@agent.command("restore", short_help="Restore the limits that the agent changed.")
@with_options(CONFIG, _STATE_FILE, SET, OUTPUT)
@click.option("--missing-ok", is_flag=True, help="Exit with 0 if the state file does not exist. [default: exit with 1]")
@click.pass_obj
def restore(before: Mapping[str, Any], /, *, missing_ok: bool, **own: Any) -> None:
    """Restore CPU quotas and other limits, and remove the taint of the agent.

    Use it after a crash, or before you uninstall the agent, to revert every CPU quota, cpu.weight and memory.high
    whose original value is in the state file, and to remove its taint from the node. The agent must not be running,
    because only one process can open the state file.
    Removing the taint requires the Kubernetes API. The name of the node is agent.node (set it with --set), otherwise
    the environment variable NODE_NAME, otherwise the host name.

    With -o json, prints {"values": [{"pod", "container", "outcome", "text"}], "taint_left", "text"}.

    Exit code 0: all restored, or nothing to restore; 1: a quota or the taint could not be restored, the agent is
    running, or there is no state file (0 with --missing-ok); 2: the arguments or the settings are invalid.
    """
    import asyncio

    from agent.executor.report import StepOutcome
    from agent.service import main
    from agent.service.node_server import CannotRun

    given = {**before, **{name: value for name, value in own.items() if value}}
    settings, everything = settings_of(given, mode=None)
    if missing_ok and not settings.state_file.exists():
        text = f"{settings.state_file} does not exist: no agent has run on this node; nothing to restore"
        print_facts({"values": [], "taint_left": False, "text": text}, text, output=given["output"])
        return
    try:
        found = asyncio.run(main.restore(settings, everything))
    except CannotRun as error:
        print_error(error.reason, error.hint, of="load-watcher agent restore")
        raise SystemExit(1) from None
    _print_restored(found, output=given["output"])
    raise SystemExit(1 if found.tainted or any(each.fate is StepOutcome.FAILED for each in found.quotas) else 0)


def _print_restored(found: RestoreSummary, *, output: str) -> None:
    from agent.service.main import in_words

    if output == "json":
        values = [
            {
                "pod": each.remembered.pod,
                "container": each.remembered.container,
                "outcome": each.fate.value,
                "text": each.text,
            }
            for each in found.quotas
        ]
        print_json({"values": values, "taint_left": bool(found.tainted), "text": found.tainted})
        return
    for each in found.quotas:
        click.echo(in_words(each))
    if found.tainted:
        click.echo(found.tainted, err=True)
    if found.quotas or not found.tainted:
        count = len(found.quotas)
        click.echo(f"{count} recorded values processed" if count else "no recorded values: nothing to restore")


def settings_of(given: Mapping[str, Any], *, mode: str | None) -> tuple[AgentSettings, Settings]:
    """Return the agent's settings and all settings; exit with code 2 if they are invalid."""
    from agent.service.settings import read_settings

    chosen = {"agent.mode": mode} if mode is not None else {}
    everything = load_part_or_exit("agent", given, own=_OWN, overrides=chosen)
    settings, _ = read_settings(everything.parts.get("agent", {}), cwd=Path.cwd())
    return settings, everything


def _check_policies(path: Path, settings: AgentSettings, *, output: str) -> int:
    """Print the problems and notices of the policies in `path`; return the exit code (0 or 2)."""
    from agent.policy.policy_set import rule_effects
    from agent.policy.source import check_policies
    from agent.service.dependencies import known_metrics, metrics_of
    from agent.service.node_server import CannotRun

    try:
        metrics = metrics_of(settings)
    except CannotRun as error:
        print_error(error.reason, error.hint, of="load-watcher agent")
        return FAILED
    reading = check_policies(path, metrics=known_metrics(metrics))
    effects = () if reading.problems else rule_effects(reading.policies, known_metrics(metrics))
    count = len(reading.policies.objects)
    if output == "json":
        problems, notices = list(map(str, reading.problems)), list(map(str, reading.notices))
        print_json(
            {"valid": not problems, "policies": count, "problems": problems, "notices": notices, "rules": effects}
        )
        return BAD_SETTINGS if problems else 0
    for notice in reading.notices:
        click.echo(str(notice))
    for problem in reading.problems:
        click.echo(str(problem), err=True)
    if reading.problems:
        return BAD_SETTINGS
    for effect in effects:
        click.echo(effect)
    click.echo(f"{count} policies, no problems found")
    return 0


def _explain_once(settings: AgentSettings, everything: Settings, *, output: str) -> int:
    """Print the decisions of a few cycles; return the exit code. The state is in a temporary file, because a look at
    this node must not leave a file, or change that of a running agent."""
    import asyncio
    import tempfile
    from dataclasses import replace

    from agent.service import main
    from agent.service.node_server import CannotRun

    with tempfile.TemporaryDirectory(prefix="load-watcher-agent-") as directory:
        looking = replace(settings, state_file=Path(directory) / "state.db")
        try:
            explanation = asyncio.run(main.look_once(looking, everything, pause=min(settings.interval, 10.0)))
        except CannotRun as error:
            print_error(error.reason, error.hint, of="load-watcher agent")
            return 1
    policies = explanation["policies"]
    if output == "json":
        print_json(explanation)
        return 0 if policies["known"] else FAILED
    for problem in policies["problems"]:
        click.echo(problem, err=True)
    _print_sentences(explanation)
    if not policies["known"]:
        print_error("no valid policies: no decisions made", of="load-watcher agent")
        return FAILED
    return 0


def _print_sentences(explanation: Mapping[str, Any]) -> None:
    """Print the decisions, and the unknown metrics by reason."""
    click.echo("\n".join(explanation["sentences"]))
    reasons: dict[str, list[str]] = {}
    for metric, why in explanation["missing"].items():
        reasons.setdefault(why, []).append(metric)
    for why, metrics in reasons.items():
        click.echo(f"unknown: {', '.join(metrics)}: {why}")
