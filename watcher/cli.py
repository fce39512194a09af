"""The command line: from words to one call of the part that does the work.

Nothing but click is imported until a command runs, so that `--help`, completion and typing errors answer at once:
NumPy alone takes longer to load than all of this.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from watcher import __version__

if TYPE_CHECKING:
    from rich.console import RenderableType

    from agent.qrm.settings import QrmSettings
    from agent.settings import AgentSettings
    from watcher.doctor import Examination, Result
    from watcher.model import Window
    from watcher.parts import Part
    from watcher.recording import Progress, Recording
    from watcher.server import Sources
    from watcher.settings import Problem, Settings, SettingsError
    from watcher.store.database import Database

LOGGER = logging.getLogger(__name__)
BAD_SETTINGS = 2
COULD_NOT = 2
Command = TypeVar("Command", bound=Callable[..., Any])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="load-watcher", message="%(prog)s %(version)s")
def main() -> None:
    """Windows of node load for Kubernetes scheduling.

    Settings come from flags, then the environment (LOAD_WATCHER_<SECTION>_<KEY>), then load-watcher.toml.
    """


# --- settings from the command line -----------------------------------------------------------------------------------


def _assignments(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """What --set was given. The value is not repeated where it is wrong: it may be a secret."""
    pairs = [each.partition("=") for each in given]
    if not all(key.strip() and equals for key, equals, _ in pairs):
        raise click.BadParameter("must have the form section.key=value")
    return {key.strip(): value for key, _, value in pairs}


def _duration(_context: click.Context, _parameter: click.Parameter, given: str) -> float:
    """Seconds."""
    from watcher.settings.values import Unfit, read_duration

    try:
        return read_duration(given)
    except Unfit:
        raise click.BadParameter("must be a duration, like 30s, 15m or 1h") from None


def _optional_duration(context: click.Context, parameter: click.Parameter, given: str | None) -> float | None:
    """Seconds, None where nothing is given."""
    return None if given is None else _duration(context, parameter, given)


_CONFIG = click.option("--config", type=click.Path(path_type=Path), help="TOML file; else load-watcher.toml, if any.")
_STORE_URL = click.option("--store-url", metavar="URL", help="Database, like sqlite:///load-watcher.db.")
_SET = click.option(
    "--set", "assigned", multiple=True, metavar="KEY=VALUE", callback=_assignments, help="Any setting, by its key."
)
_SOURCE_OPTIONS = (
    click.option("--provider", metavar="NAME", help="Source of samples, like host or prometheus."),
    click.option("--address", metavar="URL", help="Where the source is."),
    click.option("--trace", metavar="FILE", help="What the provider replay replays."),
    click.option("--speed", metavar="X", help="How many times as fast; times of samples stay true."),
)
_LISTENING_OPTIONS = (
    click.option("--host", metavar="ADDRESS", help="Address to listen on."),
    click.option("--port", metavar="PORT", help="Port to listen on; 0 takes any free one."),
)
_LOG_OPTIONS = (
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning, error or critical."),
    click.option("--log-format", metavar="FORMAT", help="text or json."),
    click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug."),
)
_SERVICE_OPTIONS = (
    click.option("--interval", metavar="DURATION", help="How often samples are fetched."),
    *_LISTENING_OPTIONS,
    _STORE_URL,
    *_LOG_OPTIONS,
    _SET,
)
_OPTIONS = (_CONFIG, *_SOURCE_OPTIONS, *_SERVICE_OPTIONS)
_KEYS = {
    "provider": "provider.name",
    "address": "provider.address",
    "trace": "provider.trace",
    "speed": "provider.speed",
    "interval": "refresh.interval",
    "host": "server.host",
    "port": "server.port",
    "store_url": "store.url",
    "log_level": "log.level",
    "log_format": "log.format",
}


def _with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """A decorator that gives a command these options, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the options say, by full key."""
    flags = {**given["assigned"]}
    if given.get("verbose"):
        flags["log.level"] = "debug"
    return flags | {key: given[name] for name, key in _KEYS.items() if given.get(name) is not None}


def _load(given: Mapping[str, Any], *, beside: Mapping[str, str] | None = None) -> Settings:
    """The settings that these options, this process's environment and the file give; SettingsError otherwise."""
    from watcher import settings

    flags = _flags(given) | dict(beside or {})
    validators = {"scheduler": _check_scheduler, "agent": _check_agent, "qrm": _check_qrm}
    loaded = settings.load(
        flags=flags, environ=os.environ, file=given["config"], cwd=Path.cwd(), part_validators=validators
    )
    if unserved := _check_scheduler(loaded.parts.get("scheduler", {}), served=loaded.refresh.windows):
        raise settings.SettingsError(unserved)
    return loaded


def _check_scheduler(table: Mapping[str, Any], *, served: Sequence[Window] = ()) -> list[Problem]:
    if not table:  # what is imported for it would be a third of the memory of the agent
        return []
    from scorers.profiles import validate

    return validate(table, served=served)


def _check_qrm(table: Mapping[str, Any]) -> list[Problem]:
    from agent.qrm.settings import validate

    return validate(table)


def _check_agent(table: Mapping[str, Any]) -> list[Problem]:
    from agent.settings import validate

    return validate(table)


def _parts(settings: Settings) -> Sequence[Part]:
    """What the other packages add to a service with these settings; imported only where it is used."""
    if "scheduler" not in settings.parts:
        return ()
    from scorers.service import SchedulerPart

    return (SchedulerPart(),)


def _load_or_exit(given: Mapping[str, Any], *, beside: Mapping[str, str] | None = None) -> Settings:
    from watcher.settings import SettingsError

    try:
        return _load(given, beside=beside)
    except SettingsError as error:
        _print_problems(error)
        raise SystemExit(BAD_SETTINGS) from None


def _print_problems(error: SettingsError) -> None:
    count = len(error.problems)
    click.echo(f"load-watcher: {count} problem{'s' if count > 1 else ''} in the settings", err=True)
    for problem in error.problems:
        click.echo(f"\n{click.style(problem.key, bold=True)}: {problem.message}", err=True)
        click.echo(f"  {click.style('cure:', fg='green')} {problem.cure}", err=True)


# --- commands ---------------------------------------------------------------------------------------------------------


@main.command()
@_with_options(*_OPTIONS)
def serve(**given: Any) -> None:
    """Run the service until SIGTERM. SIGHUP makes it read its settings again."""
    settings = _load_or_exit(given)
    raise SystemExit(_run(settings, lambda: _load(given), parts=_parts(settings)))


def _run(
    settings: Settings, load: Callable[[], Settings], *, parts: Sequence[Part], sources: Sources | None = None
) -> int:
    """Serve with these settings until told to stop; the exit code. `load` reads them again."""
    from watcher.logs import setup_logging

    cluster = settings.cluster.name or ""
    setup_logging(settings.log, cluster=cluster)
    for notice in settings.notices:
        LOGGER.warning("settings: %s", notice)
    LOGGER.info("samples come from the provider %s: %s", settings.provider.name, settings.provider.reason)
    from watcher import server

    def reload() -> Settings:
        renewed = load()
        setup_logging(renewed.log, cluster=cluster)
        return renewed

    return server.run(settings, reload=reload, parts=parts, sources=sources or server.FROM_SETTINGS)


def _finite(_context: click.Context, _parameter: click.Parameter, given: float) -> float:
    """A number; click's ranges let NaN through."""
    if given != given:
        raise click.BadParameter("must be a number")
    return given


@main.command()
@click.option(
    "--nodes",
    "count",
    default=24,
    show_default=True,
    type=click.IntRange(1, 5000),
    metavar="N",
    help="How many nodes to simulate, 1 to 5000.",
)
@click.option(
    "--speed",
    default=24.0,
    show_default=True,
    type=click.FloatRange(0.1, 1440.0),
    callback=_finite,
    metavar="X",
    help="How many times as fast the day passes, 0.1 to 1440; times of samples stay true.",
)
@click.option("--seed", default=1, show_default=True, metavar="SEED", help="Another number, another cluster.")
@_with_options(_CONFIG, *_SERVICE_OPTIONS)
def demo(count: int, speed: float, seed: int, **given: Any) -> None:
    """Run the service over a simulated cluster, extender and dashboard on, until SIGTERM.

    Its nodes have a daily swing, bursts and faults to be found; pods arrive and are placed by the profile `default`,
    or by yours. Nothing of it is real, nothing outside is asked, and what it stores is gone when it ends.
    """
    import tempfile
    import time

    from scorers.demo import DEFAULT_PROFILE, DemoPart
    from watcher import demo
    from watcher.fleet.cluster import SimulatedCluster
    from watcher.providers.demo import DemoProvider
    from watcher.server import Sources

    with tempfile.TemporaryDirectory(prefix="load-watcher-demo-") as directory:

        def of_demo(loaded: Settings) -> Settings:
            adapted = demo.adapted(loaded, store=Path(directory) / "load-watcher.db")
            return replace(adapted, parts={"scheduler": {"default": DEFAULT_PROFILE}, **adapted.parts})

        settings = of_demo(_load_or_exit(given, beside=demo.FORCED))
        cluster = SimulatedCluster(count, seed=seed, speed=speed, begun=time.time())
        click.echo("\n  ".join(demo.told(cluster)))
        sources = Sources(
            provider=lambda renewed: DemoProvider(cluster, resolution=renewed.refresh.resolution),
            directory=lambda _renewed: None,
        )
        code = _run(
            settings,
            lambda: of_demo(_load(given, beside=demo.FORCED)),
            parts=(DemoPart(cluster),),
            sources=sources,
        )
    raise SystemExit(code)


def _url(_context: click.Context, _parameter: click.Parameter, given: str | None) -> str:
    """What --url was given, without a slash at its end."""
    from watcher.settings.values import ADDRESS, Unfit

    if given is None:
        return ""
    try:
        return str(ADDRESS.read_text(given)).rstrip("/")
    except Unfit as unfit:
        raise click.BadParameter(f"must be {ADDRESS.accepts}" + (f"; {unfit}" if str(unfit) else "")) from None


@main.command()
@_with_options(*_OPTIONS)
@click.option("--url", metavar="URL", callback=_url, help="A running service to ask too; else the one found here.")
@click.option(
    "--scheduler-config",
    "scheduler_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A KubeSchedulerConfiguration (or a ConfigMap with one) to look at too.",
)
@click.option(
    "--evictor-config",
    "evictor_files",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="What evicts by load, to hold against the scheduler: LowNodeLoad of a descheduler, NodeQOS policies.",
)
@click.option("--only", multiple=True, metavar="CHECK", help="Look at this alone, and at what it needs: agent, say.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def doctor(
    url: str,
    scheduler_files: Sequence[Path],
    evictor_files: Sequence[Path],
    only: Sequence[str],
    output: str,
    **given: Any,
) -> None:
    """Say what is wrong with this deployment, one line each, with the cure.

    Takes the flags of serve, and changes nothing. Exit 0: all well (warnings included); 1: something failed; 2: it
    could not run.
    """
    import asyncio

    from watcher import doctor
    from watcher.doctor import pages

    checks: tuple[doctor.Check, ...] = (*doctor.CHECKS, doctor.Check("agent", _examine_agent, needs=("settings",)))
    if unknown := sorted(set(only) - {check.name for check in checks}):
        known = ", ".join(check.name for check in checks)
        raise click.BadParameter(f"there is no check {unknown[0]}; there are {known}", param_hint="--only")
    checks = doctor.chosen(checks, only) if only else checks
    _log_for_doctor(verbose=bool(given["verbose"]))
    examination = doctor.Examination(
        lambda: _load(given),
        environ=os.environ,
        cwd=Path.cwd(),
        url=url,
        scheduler_files=scheduler_files,
        evictor_files=evictor_files,
    )
    if output == "json":
        report = asyncio.run(doctor.run(examination, checks=checks))
        click.echo(pages.as_json(report))
    else:
        with pages.Printer() as printer:
            report = asyncio.run(doctor.run(examination, checks=checks, tell=printer.tell))
        printer.close(report)
    raise SystemExit(report.exit_code)


async def _examine_agent(examination: Examination) -> Sequence[Result]:
    from agent.doctor import agent

    return await agent(examination)


def _log_for_doctor(*, verbose: bool) -> None:
    """What the parts of the service log while they are looked at is said in the report; all of it with --verbose."""
    from watcher.logs import setup_logging
    from watcher.settings import LogSettings

    setup_logging(LogSettings(level="debug" if verbose else "critical"))


@main.command()
@click.option("--with", "other", required=True, callback=_url, metavar="URL", help="The other, the Go one say.")
@click.option(
    "--url", default="http://127.0.0.1:2020", show_default=True, callback=_url, metavar="URL", help="This service."
)
@click.option("--token-file", type=click.Path(path_type=Path, exists=True), help="Bearer token of this service.")
@click.option("--for", "duration", default="0s", callback=_duration, metavar="DURATION", help="Go on, for 1h say.")
@click.option("--every", default="30s", show_default=True, callback=_duration, metavar="DURATION", help="With --for.")
@click.option("--tolerance", default=5.0, show_default=True, help="Percentage points that are no difference.")
@click.option(
    "--target",
    default=40.0,
    show_default=True,
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    help="TargetLoadPacking's targetUtilization.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print it.")
def compare(**given: Any) -> None:
    """Compare this service with another: values, missing nodes, and which node TargetLoadPacking would choose.

    Exit code 0 where they agree, 1 where they differ in more than half of the comparisons, 2 where one could not be
    asked.
    """
    import asyncio
    from contextlib import suppress

    from rich.console import Console

    from scorers.target_load_packing import packing_scores
    from watcher import compare as comparing

    token = given["token_file"] and given["token_file"].read_text().strip()
    sides = comparing.Side("this service", given["url"], token), comparing.Side("the other", given["other"])
    comparison = comparing.Comparison(partial(packing_scores, target=given["target"]), given["tolerance"])
    rounds: list[comparing.Round] = []

    def tell(done: comparing.Round) -> None:
        rounds[:] = [done]
        if given["duration"]:
            click.echo(comparing.as_line(done), err=True)

    def warn(text: str) -> None:
        click.echo(f"left out: {text}", err=True)

    try:
        with suppress(KeyboardInterrupt):  # what was seen so far is told all the same
            asyncio.run(
                comparing.run(
                    *sides, comparison, duration=given["duration"], every=given["every"], tell=tell, warn=warn
                )
            )
    except comparing.CompareError as error:
        click.echo(f"load-watcher: {error}\n  {error.hint}", err=True)
        raise SystemExit(COULD_NOT) from None
    if not rounds:
        raise SystemExit(COULD_NOT)
    if given["output"] == "json":
        click.echo(comparing.as_json(comparison, rounds[0]))
    else:
        Console(soft_wrap=True).print(*comparing.as_tables(comparison, rounds[0]), sep="\n")
    raise SystemExit(1 if comparison.verdict() else 0)


_ASKING = (
    click.option(
        "--url", default="http://127.0.0.1:2020", show_default=True, callback=_url, metavar="URL", help="The service."
    ),
    click.option("--token-file", type=click.Path(path_type=Path, exists=True), help="Its bearer token, if one is set."),
)
_OUTPUT = click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="How to print it.")


@main.command()
@click.argument("manifest", metavar="POD.yaml", type=click.File("rb"))
@click.option("--node", "nodes", multiple=True, metavar="NODE", help="Rank only these; else all that are known.")
@click.option("--plugin", "plugins", multiple=True, metavar="NAME", help="Rank by these of the profile alone.")
@click.option("--profile", default="default", show_default=True, metavar="NAME", help="Of the extender.")
@_with_options(*_ASKING)
@click.option("--explain", is_flag=True, help="Show every number that led to each score.")
@_OUTPUT
def score(manifest: Any, **given: Any) -> None:
    """Rank nodes for the pod of a manifest (or of what makes pods, a Deployment for instance), as the extender would.

    Reserves nothing. "-" reads the manifest from standard input.
    """
    from scorers import asking
    from scorers.manifest import read_pod

    try:
        pod = read_pod(manifest.read())
    except ValueError as error:
        click.echo(f"load-watcher: the manifest cannot be used: {error}", err=True)
        raise SystemExit(COULD_NOT) from None
    wanted = {"nodes": given["nodes"], "plugins": given["plugins"], "token": _token(given)}
    asked = asking.explain(given["url"], given["profile"], pod, **wanted)
    _print_answer(asked, partial(asking.as_tables, explained=given["explain"]), output=given["output"])


@main.command()
@click.argument("pod", metavar="NAMESPACE/POD")
@click.option("--at", metavar="TIME", help="The decision of then: 2026-01-31T12:00:00Z, unix seconds, or 10m ago.")
@_with_options(*_ASKING)
@click.option("--explain", is_flag=True, help="Show every number that led to each score.")
@click.option("--others", default=10, show_default=True, type=click.IntRange(0, 100), help="So many to list beside.")
@_OUTPUT
def why(pod: str, at: str | None, **given: Any) -> None:
    """Say why a pod was placed where it is: what was known, how nodes were ranked, and what became of it.

    A pod without a namespace is one of "default". The extender's decisions are kept for a day (store.decisions).
    """
    from scorers import asking_why

    asked = asking_why.why(given["url"], pod, at=at, limit=given["others"], token=_token(given))
    _print_answer(asked, partial(asking_why.as_tables, explained=given["explain"]), output=given["output"])


@main.command()
@click.option("--since", metavar="TIME", help="Only what was bound since: 6h, a date, or unix seconds; else all kept.")
@_with_options(*_ASKING)
@_OUTPUT
def shadow(since: str | None, **given: Any) -> None:
    """Say what other profiles would have done with the pods that were bound, with the uncertainty.

    The profiles are those of [scheduler] shadow = ["NAME", ...]; nothing is placed by them.
    """
    from scorers import asking_shadow

    asked = asking_shadow.shadow(given["url"], since=since, token=_token(given))
    _print_answer(asked, asking_shadow.as_tables, output=given["output"])


@main.command()
@click.option(
    "--watcher",
    "url",
    default="http://127.0.0.1:2020",
    show_default=True,
    callback=_url,
    metavar="URL",
    help="The service, which needs [scheduler] to know of pods.",
)
@click.option("--token-file", type=click.Path(path_type=Path, exists=True), help="Its bearer token, if one is set.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="A new file, *.csv or *.csv.gz.")
@click.option("--for", "duration", callback=_optional_duration, metavar="DURATION", help="Else until Ctrl-C.")
@click.option("--every", default="60s", show_default=True, callback=_duration, metavar="DURATION", help="How often.")
def record(url: str, output: Path, duration: float | None, every: float, **given: Any) -> None:
    """Write down what happens in the cluster of a running service: load, pods and bindings, as a trace.

    simulate and the provider replay read it. The file is whole to the last minute at any moment; where the service is
    away it has a gap. Exit code 2: nothing could be recorded.
    """
    from watcher.recording import Recording

    if every < 1.0:
        raise click.BadParameter("must be 1s at least", param_hint="--every")
    raise SystemExit(_record(Recording(url, duration, every, _token(given)), output))


def _record(recording: Recording, output: Path) -> int:
    import asyncio
    import signal
    from contextlib import suppress

    from watcher import recording as recorder

    async def run(file: recorder.RecordingFile) -> recorder.Progress:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows; what was recorded is in the file all the same
                loop.add_signal_handler(number, stop.set)
        with _recorded(recording) as tell:
            return await recorder.record(recording, file, stop=stop, tell=tell)

    try:
        with recorder.RecordingFile(output) as file:
            done = asyncio.run(run(file))
    except recorder.RecordError as error:
        output.unlink()
        click.echo(f"load-watcher: {error}\n  {error.hint}", err=True)
        return COULD_NOT
    except FileExistsError:
        click.echo(
            f"load-watcher: {output} is there already\n  a recording is not written over: name another", err=True
        )
        return COULD_NOT
    except OSError as error:
        told = f"load-watcher: {output} cannot be written: {error.strerror or error}"
        hint = "what was recorded until then is in it" if output.exists() else "check the path; nothing was recorded"
        click.echo(f"{told}\n  {hint}", err=True)
        return COULD_NOT
    if not done.records:
        output.unlink()
        click.echo("load-watcher: there was nothing to record, and no file is left", err=True)
        return COULD_NOT
    click.echo(
        f"{done.records:,} records in {output}: {done.nodes:,} nodes, {done.pods:,} pods there at the end, "
        f"{done.bindings:,} bindings; {done.missed:,} of {done.looks:,} looks brought no load"
    )
    return 0


@contextmanager
def _recorded(recording: Recording) -> Iterator[Callable[[Progress], None]]:
    """Gives what is to be told after each look: a bar on a terminal, else a line every ten looks; and a line where
    something is amiss, and where it is well again."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    trouble: dict[str, str] = {}

    def amiss(kind: str, told: str) -> None:
        if told != trouble.get(kind, ""):
            console.print(told or f"{kind} is there again", markup=False)
        trouble[kind] = told

    def summary(progress: Progress) -> str:
        return f"{progress.nodes:,} nodes, {progress.pods:,} pods, {progress.bindings:,} bindings"

    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("recording", total=recording.duration)

        def tell(progress: Progress) -> None:
            amiss("what the service knows", progress.trouble)
            if progress.looks > 1:  # asked for, a service asks its source for pods
                amiss("what pods use", progress.usage and f"what pods use is not recorded: {progress.usage}")
            bar.update(task, completed=progress.passed, description=summary(progress))
            if not console.is_terminal and progress.looks % 10 == 1:
                console.print(f"{progress.passed / 60:.0f} min: {summary(progress)}")

        yield tell


def _token(given: Mapping[str, Any]) -> str | None:
    """What is in --token-file."""
    file: Path | None = given["token_file"]
    return None if file is None else file.read_text().strip()


def _print_answer(
    asked: Coroutine[Any, Any, dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterator[RenderableType]],
    *,
    output: str,
) -> None:
    """Print what an extender answers, for people or as JSON; exit 2 where it does not."""
    import asyncio

    from rich.console import Console

    from scorers.asking import AskError

    try:
        document = asyncio.run(asked)
    except AskError as error:
        click.echo(f"load-watcher: {error}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
        raise SystemExit(COULD_NOT) from None
    if output == "json":
        import json

        click.echo(json.dumps(document, indent=2))
    else:
        Console(soft_wrap=True).print(*tables(document), sep="\n")


# --- simulation -------------------------------------------------------------------------------------------------------


_SIMULATION_OPTIONS = (
    click.option("--policy", "policies", multiple=True, metavar="P", help="LeastAllocated, MostAllocated, "
                 "BalancedAllocation, DefaultScheduler, a plug-in, a profile of the settings, or FILE.yaml[:PROFILE]."),
    click.option("--refresh", default="60s", show_default=True, callback=_duration, metavar="DURATION",
                 help="How often windows are published."),
    click.option("--delay", default="60s", show_default=True, callback=_duration, metavar="DURATION",
                 help="How old their newest sample is then."),
    click.option("--overload", default=90.0, show_default=True, type=click.FloatRange(1.0, 100.0), callback=_finite,
                 metavar="PERCENT", help="Of a node's CPU or memory; above it is overloaded."),
    click.option("--anew", is_flag=True, help="Place also the pods that were there when the trace began."),
    click.option("--csv", "csv_file", type=click.Path(path_type=Path, dir_okay=False), help="Write the numbers here."),
    click.option("--series", type=click.Path(path_type=Path, dir_okay=False), help="Write each minute here, as CSV."),
    click.option("--png", type=click.Path(path_type=Path, dir_okay=False), help="Draw a picture here."),
    click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with all of it here."),
)  # fmt: skip
_TRACE_OPTIONS = (
    click.option("--generate", "scenario", metavar="SCENARIO", help="Make a trace: steady, burst, daily, herd or "
                 "overcommit."),
    click.option("--alibaba", type=click.Path(path_type=Path), metavar="DIRECTORY", help="Make a trace of Alibaba's "
                 "cluster-trace-v2018, whose tables are there."),
    click.option("--nodes", default=100, show_default=True, type=click.IntRange(1, 5000), metavar="N",
                 help="With --generate, or so many machines of --alibaba."),
    click.option("--pods", default=2000, show_default=True, type=click.IntRange(0, 500_000), metavar="M",
                 help="With --generate."),
    click.option("--hours", default=24.0, show_default=True, type=click.FloatRange(0.1, 240.0), callback=_finite,
                 metavar="H", help="How long a trace to make."),
    click.option("--start", default=0.0, show_default=True, type=click.FloatRange(0.0, 1000.0), callback=_finite,
                 metavar="H", help="With --alibaba, from which hour of it on."),
    click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Where the trace goes that is made; gzip if it ends in .gz."),
)  # fmt: skip


@main.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@_with_options(*_SIMULATION_OPTIONS)
@click.option("--seed", default=1, show_default=True, metavar="SEED", help="Another number, another outcome.")
@_with_options(*_TRACE_OPTIONS, _CONFIG, _SET)
def simulate(trace: Path | None, scenario: str | None, **given: Any) -> None:
    """Place the pods of TRACE anew under several policies, and report side by side what that does to the nodes.

    Or make a trace: load-watcher simulate --generate daily -o trace.csv.gz. docs/simulation.md says what a trace is,
    what is simulated, and what is not.
    """
    if sum(each is not None for each in (trace, scenario, given["alibaba"])) != 1:
        raise click.UsageError("give a TRACE, or make one: --generate SCENARIO -o FILE, or --alibaba DIRECTORY -o FILE")
    if trace is None:
        _make_trace(scenario, given)
    else:
        _simulate(trace, given)


def _make_trace(scenario: str | None, given: Mapping[str, Any]) -> None:
    """Write a trace, of a scenario or of somebody's tables, and say so."""
    from scorers.simulate import command
    from watcher.traces import alibaba
    from watcher.traces.generating import SCENARIOS, generate

    if scenario is not None and scenario not in SCENARIOS:
        raise click.BadParameter(f"{scenario!r} is none; known are {', '.join(SCENARIOS)}", param_hint="--generate")
    if given["output"] is None:
        raise click.UsageError("say where the trace goes: -o FILE")
    if any(given[name] for name in ("policies", "csv_file", "series", "png", "html")):
        raise click.UsageError("make the trace first, and give it to simulate then")
    nodes, hours = given["nodes"], given["hours"]
    if scenario is not None:
        records = generate(scenario, nodes=nodes, pods=given["pods"], seed=given["seed"], hours=hours)
    else:
        reading = partial(click.echo, err=True)
        records = alibaba.convert(given["alibaba"], machines=nodes, start=given["start"], hours=hours, tell=reading)
    with _simulate_errors(), _progress("writing", unit="minutes") as tell:
        count = command.write_trace(records, given["output"], minutes=round(60 * hours), tell=tell)
    click.echo(f"{given['output']}: {count:,} records" + (f"; {SCENARIOS[scenario].told}" if scenario else ""))


def _simulate(trace: Path, given: Mapping[str, Any]) -> None:
    """Run all policies, write what is wanted, and print a table."""
    from rich.console import Console

    from agent.evicting import evicted
    from scorers.simulate import command, pages
    from scorers.simulate.engine import Options

    if given["output"] is not None:
        raise click.UsageError("-o is for a trace that is made; what comes out goes to --csv, --series, --png, --html")
    settings = _load_or_exit(given, beside={"provider.name": "host"})
    files = command.Files(given["csv_file"], given["series"], given["png"], given["html"])
    with _simulate_errors():
        options = command.checked(
            Options(given["refresh"], given["delay"], given["overload"] / 100.0, given["seed"], given["anew"])
        )
        policies, notices = command.chosen(given["policies"], settings.parts.get("scheduler", {}), cwd=Path.cwd())
        for notice in notices:
            click.echo(f"note: {notice}", err=True)
        files.ready(trace)
        click.echo(f"reading {trace}", err=True)
        course = command.load(trace)
        with _progress("simulating", unit="steps") as tell:
            evictor = partial(evicted, watermark=given["overload"])
            runs = command.run(course, policies, options, evictor=evictor, tell=tell)
        command.write(files, trace, course, options, runs)
    Console().print(pages.as_table(run.summary() for run in runs))


@contextmanager
def _simulate_errors() -> Iterator[None]:
    """Print what is wrong with a trace, a policy or a file, with the cure, and exit 2."""
    from scorers.simulate.command import SimulateError
    from scorers.simulate.policies import PolicyError
    from watcher.settings import SettingsError
    from watcher.traces import TraceError

    try:
        yield
    except (TraceError, PolicyError, SimulateError) as error:
        click.echo(f"load-watcher: {error}\n  {error.hint}", err=True)
        raise SystemExit(COULD_NOT) from None
    except SettingsError as error:
        _print_problems(error)
        raise SystemExit(BAD_SETTINGS) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""  # a full disk names no file
        click.echo(f"load-watcher: {where}{error.strerror}\n  check the path, and the room there", err=True)
        raise SystemExit(COULD_NOT) from None


@main.group()
def config() -> None:
    """Check settings, or show those in effect."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say everything that is wrong with FILE, as serve would find it here; exit 2 if anything is."""
    settings = _load_or_exit({"config": file, "assigned": {}})
    for notice in settings.notices:
        click.echo(f"note: {notice}", err=True)
    click.echo("ok")


@config.command("show")
@_with_options(*_OPTIONS)
def show_settings(**given: Any) -> None:
    """Print the settings in effect and where each is from, without anything secret."""
    from watcher.settings import show

    click.echo(show(_load_or_exit(given)), nl=False)


# --- the node agent ---------------------------------------------------------------------------------------------------


_STATE_FILE = click.option("--state-file", type=click.Path(path_type=Path), help="The agent's own file.")
_AGENT_OPTIONS = (
    _CONFIG,
    click.option("--node", metavar="NAME", help="This node's name in Kubernetes; else NODE_NAME, else the host's."),
    click.option("--policies", type=click.Path(path_type=Path), help="Directory of policies; else the cluster's."),
    _STATE_FILE,
    *_LISTENING_OPTIONS,
    *_LOG_OPTIONS,
    _SET,
)
_AGENT_NAMES = ("node", "policies", "state_file", "host", "port")


@main.group(invoke_without_command=True)
@click.option("--preview", is_flag=True, help="Decide and report, and change nothing: the default.")
@click.option("--enforce", is_flag=True, help="Act on what is decided.")
@click.option("--once", is_flag=True, help="Look twice, say what would be decided and why, and end; always in preview.")
@click.option(
    "--check",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Say what is wrong with the policies in a file or directory, and end; exit code 2 if anything is.",
)
@_with_options(*_AGENT_OPTIONS)
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
    from watcher.logs import setup_logging

    if preview and enforce:
        raise click.UsageError("--preview and --enforce exclude each other: leave out the one that is not meant")
    asked = "enforce" if enforce else "preview" if preview else None
    settings, everything = _agent_settings(given, mode="preview" if once else asked)
    if check is not None:
        raise SystemExit(_check_policies(check, settings))
    setup_logging(everything.log, cluster=everything.cluster.name or "")
    from agent import server

    if once:
        raise SystemExit(_explain_once(settings, everything))
    raise SystemExit(server.run(settings, everything))


@agent.command("restore")
@_with_options(_CONFIG, _STATE_FILE, _SET)
@click.option("--missing-ok", is_flag=True, help="End well where there is no such file: no agent has run here.")
@click.pass_obj
def agent_restore(before: Mapping[str, Any], /, *, missing_ok: bool, **own: Any) -> None:
    """Put back every CPU quota that the agent changed, and let new pods come again: after a crash, or an uninstall.

    The agent must not be running. Exit code 1 if something could not be put back.
    """
    import asyncio

    from agent import server
    from agent.executor import Fate
    from agent.serving import CannotRun

    given = {**before, **{name: value for name, value in own.items() if value}}
    settings, everything = _agent_settings(given, mode=None)
    if missing_ok and not settings.state_file.exists():
        click.echo(f"there is no file {settings.state_file}: no agent has run here, and nothing is to be restored")
        return
    try:
        found = asyncio.run(server.restore(settings, everything))
    except CannotRun as error:
        click.echo(f"load-watcher agent restore: {error}", err=True)
        raise SystemExit(1) from None
    for each in found.quotas:
        click.echo(server.in_words(each))
    if found.tainted:
        click.echo(found.tainted, err=True)
    if found.quotas or not found.tainted:
        count = len(found.quotas)
        click.echo(f"{count} values were remembered" if count else "nothing was remembered: nothing to restore")
    raise SystemExit(1 if found.tainted or any(each.fate is Fate.FAILED for each in found.quotas) else 0)


def _agent_settings(given: Mapping[str, Any], *, mode: str | None) -> tuple[AgentSettings, Settings]:
    """The agent's table and all others; exits where something is wrong with them."""
    from agent.settings import read_settings

    named = {f"agent.{name}": str(given[name]) for name in _AGENT_NAMES if given.get(name) is not None}
    chosen = {"agent.mode": mode} if mode is not None else {}
    others = {name: value for name, value in given.items() if name not in _AGENT_NAMES}
    # No source of samples is asked here, so none needs to be set.
    everything = _load_or_exit(others, beside={"provider.name": "host", **named, **chosen})
    settings, _ = read_settings(everything.parts.get("agent", {}), cwd=Path.cwd())
    return settings, everything


def _check_policies(path: Path, settings: AgentSettings) -> int:
    """Print what is wrong with policies, and what is odd; the exit code."""
    from agent.policy.source import check_policies
    from agent.server import known, metrics_of
    from agent.serving import CannotRun

    try:
        metrics = metrics_of(settings)
    except CannotRun as error:
        click.echo(f"load-watcher agent: {error}", err=True)
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

    from agent import server
    from agent.serving import CannotRun

    try:
        explanation = asyncio.run(server.look_once(settings, everything, pause=min(settings.interval, 10.0)))
    except CannotRun as error:
        click.echo(f"load-watcher agent: {error}", err=True)
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
        click.echo("load-watcher agent: there are no good policies to go by: nothing is decided", err=True)
        return COULD_NOT
    return 0


# --- the QoS Resource Manager -----------------------------------------------------------------------------------------


_QRM_OPTIONS = (
    _CONFIG,
    click.option("--mode", metavar="MODE", help="dry-run (the default), cri, cgroup or server."),
    click.option("--node", metavar="NAME", help="This node's name in Kubernetes; else NODE_NAME, else the host's."),
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
    *_LISTENING_OPTIONS,
    *_LOG_OPTIONS,
    _SET,
)
_QRM_NAMES = ("mode", "node", "state_dir", "policy", "reconcile_period", "names", "watcher", "host", "port")


@main.command()
@_with_options(*_QRM_OPTIONS)
def qrm(**given: Any) -> None:
    """Give the pods of this node CPUs, memory and network cards by role, and move the pools with the load.

    Without --mode nothing is set on containers: it decides, and tells on its pages. SIGTERM ends it; what containers
    have stays.
    """
    settings, everything = _qrm_settings(given)
    try:
        from agent.qrm import process
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("grpc", "google"):
            raise
        click.echo("load-watcher qrm: its protocol needs the extra qrm\n  pip install 'load-watcher[qrm]'", err=True)
        raise SystemExit(COULD_NOT) from None
    from watcher.logs import setup_logging

    setup_logging(everything.log, cluster=everything.cluster.name or "")
    raise SystemExit(process.run(settings, everything))


def _qrm_settings(given: Mapping[str, Any]) -> tuple[QrmSettings, Settings]:
    """The manager's table and all others; exits where something is wrong with them."""
    from agent.qrm.settings import read_settings

    named = {f"qrm.{name}": str(given[name]) for name in _QRM_NAMES if given.get(name) is not None}
    others = {name: value for name, value in given.items() if name not in _QRM_NAMES}
    # No source of samples is asked here, so none needs to be set.
    everything = _load_or_exit(others, beside={"provider.name": "host", **named})
    settings, _ = read_settings(everything.parts.get("qrm", {}), cwd=Path.cwd())
    return settings, everything


# --- the database -----------------------------------------------------------------------------------------------------


@main.group()
def db() -> None:
    """Look after the database."""


@db.command()
@_with_options(_CONFIG, _STORE_URL, _SET)
def upgrade(**given: Any) -> None:
    """Bring the database up to date, making it if there is none."""
    from watcher import store

    _run_on_database(store.upgrade, given)


@db.command()
@_with_options(_CONFIG, _STORE_URL, _SET)
def current(**given: Any) -> None:
    """Say which version the database has."""
    from watcher import store

    _run_on_database(store.current, given)


@db.command()
@_with_options(_CONFIG, _STORE_URL, _SET)
def vacuum(**given: Any) -> None:
    """Give back the disk space of what was deleted. No service may have the file open."""
    from watcher import store

    _run_on_database(store.vacuum, given)


@db.command("copy")
@click.option("--from", "source", required=True, metavar="URL", help="The database to copy from.")
@click.option("--from-watcher", metavar="NAME", help="Whose rows, where there are several watchers'.")
@click.option("--to", "store_url", metavar="URL", help="The database to copy to; else store.url.")
@click.option("--replace", is_flag=True, help="Remove what this watcher has there already.")
@_with_options(_CONFIG, _SET)
def copy_database(source: str, from_watcher: str | None, replace: bool, **given: Any) -> None:
    """Copy samples and windows from one database to another, all or nothing: to change store.url without loss.

    Whichever of the two is of an older schema is upgraded first, as serve would. Neither may be in use by a service
    with the same rows. store.password_file is for PostgreSQL at --to, or at --from where --to is a file.
    """
    from watcher import store

    settings = _load_or_exit(given, beside={"provider.name": "host"})
    with _store_errors():
        target = _database_of(settings)
        password_file = None if target.waits else settings.store.password_file
        origin = store.database_at(source, watcher=from_watcher or "", password_file=password_file)
        if origin.waits and from_watcher is None:
            origin.watcher = store.only_watcher(origin)
        with _progress("copying") as progress:
            said = store.copy(origin, target, upgrade=settings.store.upgrade, replace=replace, progress=progress)
        click.echo(said)


@contextmanager
def _progress(what: str, *, unit: str = "rows") -> Iterator[Callable[[int, int], None]]:
    """Gives what is to be told how much is done, of how much: a bar on a terminal, else a line every tenth."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    told = 0

    def line(done: int, total: int) -> None:
        nonlocal told
        if (tenth := 10 * done // total) > told:
            told = tenth
            click.echo(f"{what}: {done:,} of {total:,} {unit}", err=True)

    if not console.is_terminal:
        yield line
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _database_of(settings: Settings) -> Database:
    """The database that the settings name, with this watcher's rows; StoreError where there is no way to it."""
    from watcher.store import database_at

    store = settings.store
    return database_at(store.url, watcher=settings.watcher, password_file=store.password_file)


def _run_on_database(action: Callable[[Database], str], given: Mapping[str, Any]) -> None:
    """Print what `action` says of the database that the settings name."""
    # No source is asked here, so none needs to be set: an init container upgrades before anything else is known.
    settings = _load_or_exit(given, beside={"provider.name": "host"})
    with _store_errors():
        click.echo(action(_database_of(settings)))


@contextmanager
def _store_errors() -> Iterator[None]:
    """Print what cannot be done with a database, with the cure, and exit 1."""
    from watcher.store import StoreError

    try:
        yield
    except StoreError as error:
        click.echo(f"load-watcher: {error}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main(prog_name="load-watcher")
