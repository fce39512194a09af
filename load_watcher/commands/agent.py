"""`load-watcher agent`: the node agent, and what puts back what it changed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, COULD_NOT, complain
from load_watcher.cli.options import CONFIG, LISTENING, LOGGING, NODE, SET, with_options
from load_watcher.cli.settings import load_part_or_exit

if TYPE_CHECKING:
    from agent.service.settings import AgentSettings
    from watcher.platform.settings.tables import Settings

_STATE_FILE = click.option("--state-file", type=click.Path(path_type=Path), help="The agent's own file.")
_OPTIONS = (
    CONFIG,
    NODE,
    click.option("--policies", type=click.Path(path_type=Path), help="Directory of policies; else the cluster's."),
    _STATE_FILE,
    *LISTENING,
    *LOGGING,
    SET,
)
_OWN = ("node", "policies", "state_file", "host", "port")


@click.group(invoke_without_command=True)
@click.option("--preview", is_flag=True, help="Decide and report, and change nothing: the default.")
@click.option("--enforce", is_flag=True, help="Act on what is decided.")
@click.option(
    "--once", is_flag=True, help="Look until each rule has decided, say what and why, and end; always in preview."
)
@click.option(
    "--check",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Say what is wrong with the policies in a file or directory, and end; exit code 2 if anything is.",
)
@with_options(*_OPTIONS)
@click.pass_context
def agent(
    context: click.Context, /, preview: bool, enforce: bool, once: bool, check: Path | None, **given: Any
) -> None:
    """Protect this node: throttle and evict to just under the watermarks of its policies, and no further.

    Without --enforce nothing is changed. SIGTERM ends it; agent.on_exit says whether what it did stays.
    """
    if context.invoked_subcommand is not None:
        context.obj = given
        return
    from watcher.platform.logs import setup_logging

    if preview and enforce:
        raise click.UsageError("--preview and --enforce exclude each other: leave out the one that is not meant")
    asked = "enforce" if enforce else "preview" if preview else None
    settings, everything = _settings(given, mode="preview" if once else asked)
    if check is not None:
        raise SystemExit(_check_policies(check, settings))
    setup_logging(everything.log, cluster=everything.cluster.name or "")
    from agent.service import main

    if once:
        raise SystemExit(_explain_once(settings, everything))
    raise SystemExit(main.run(settings, everything))


@agent.command("restore")
@with_options(CONFIG, _STATE_FILE, SET)
@click.option("--missing-ok", is_flag=True, help="End well where there is no such file: no agent has run here.")
@click.pass_obj
def restore(before: Mapping[str, Any], /, *, missing_ok: bool, **own: Any) -> None:
    """Put back every CPU quota that the agent changed, and let new pods come again: after a crash, or an uninstall.

    The agent must not be running. Exit code 1 if something could not be put back.
    """
    import asyncio

    from agent.executor.report import Fate
    from agent.service import restore as service_restore
    from agent.service.node_server import CannotRun

    given = {**before, **{name: value for name, value in own.items() if value}}
    settings, everything = _settings(given, mode=None)
    if missing_ok and not settings.state_file.exists():
        click.echo(f"there is no file {settings.state_file}: no agent has run here, and nothing is to be restored")
        return
    try:
        found = asyncio.run(service_restore.restore(settings, everything))
    except CannotRun as error:
        complain(error, of="load-watcher agent restore")
        raise SystemExit(1) from None
    for each in found.quotas:
        click.echo(service_restore.in_words(each))
    if found.tainted:
        click.echo(found.tainted, err=True)
    if found.quotas or not found.tainted:
        count = len(found.quotas)
        click.echo(f"{count} values were remembered" if count else "nothing was remembered: nothing to restore")
    raise SystemExit(1 if found.tainted or any(each.fate is Fate.FAILED for each in found.quotas) else 0)


def _settings(given: Mapping[str, Any], *, mode: str | None) -> tuple[AgentSettings, Settings]:
    """The agent's table and all others; exits where something is wrong with them."""
    from agent.service.settings import read_settings

    chosen = {"agent.mode": mode} if mode is not None else {}
    everything = load_part_or_exit("agent", given, own=_OWN, beside=chosen)
    settings, _ = read_settings(everything.parts.get("agent", {}), cwd=Path.cwd())
    return settings, everything


def _check_policies(path: Path, settings: AgentSettings) -> int:
    """Print what is wrong with policies, and what is odd; the exit code."""
    from agent.policy.source import check_policies
    from agent.service.build import known, metrics_of
    from agent.service.node_server import CannotRun

    try:
        metrics = metrics_of(settings)
    except CannotRun as error:
        complain(error, of="load-watcher agent")
        return COULD_NOT
    reading = check_policies(path, metrics=known(metrics))
    for notice in reading.notices:
        click.echo(str(notice))
    for problem in reading.problems:
        click.echo(str(problem), err=True)
    if reading.problems:
        return BAD_SETTINGS
    click.echo(f"{len(reading.policies.objects)} policies, nothing is wrong with them")
    return 0


def _explain_once(settings: AgentSettings, everything: Settings) -> int:
    import asyncio

    from agent.service import main
    from agent.service.node_server import CannotRun

    try:
        explanation = asyncio.run(main.look_once(settings, everything, pause=min(settings.interval, 10.0)))
    except CannotRun as error:
        complain(error, of="load-watcher agent")
        return 1
    policies = explanation["policies"]
    for problem in policies["problems"]:
        click.echo(problem, err=True)
    click.echo("\n".join(explanation["sentences"]))
    reasons: dict[str, list[str]] = {}
    for metric, why in explanation["missing"].items():
        reasons.setdefault(why, []).append(metric)
    for why, metrics in reasons.items():
        click.echo(f"not known: {', '.join(metrics)}: {why}")
    if not policies["known"]:
        complain("there are no good policies to go by: nothing is decided", of="load-watcher agent")
        return COULD_NOT
    return 0
