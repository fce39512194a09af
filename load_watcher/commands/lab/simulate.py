"""`load-watcher simulate`: simulates scheduling policies on a trace, and creates traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, FAILED, print_error, print_settings_problems
from load_watcher.cli.options import CONFIG, IN_SECONDS, SET, finite, output_option, to_seconds, with_options
from load_watcher.cli.printing import print_facts, print_json
from load_watcher.cli.progress import progress_of
from load_watcher.cli.settings import NO_SOURCE, load_or_exit

if TYPE_CHECKING:
    from lab.simulate.engine import EvictionPlanner

_SIMULATION_OPTIONS = (
    click.option("--policy", "policies", multiple=True, metavar="P", help="Policy to simulate; can be repeated. P is "
                 "LeastAllocated, MostAllocated, BalancedAllocation, DefaultScheduler, Random, PowerOfTwoChoices, a "
                 "scoring plug-in, a profile NAME of [scheduler.NAME] in the settings, or FILE.yaml[:PROFILE], a "
                 "KubeSchedulerConfiguration. A plug-in or profile with the suffix :forecast uses forecasts (use = "
                 "\"forecast\"). [default: LeastAllocated, MostAllocated, TargetLoadPacking, "
                 "LoadVariationRiskBalancing and LowRiskOverCommitment]"),
    click.option("--refresh", default="60s", show_default=True, callback=to_seconds, metavar="DURATION",
                 help="Interval at which new load windows are published to the policies, a whole "
                 f"number of minutes, at least 1m; {IN_SECONDS}."),
    click.option("--delay", default="60s", show_default=True, callback=to_seconds, metavar="DURATION",
                 help="Age of the newest sample in the windows when they are published, a whole "
                 f"number of minutes, 0m or more; {IN_SECONDS}."),
    click.option("--overload", default=90.0, show_default=True, type=click.FloatRange(1.0, 100.0), callback=finite,
                 metavar="PERCENT", help="Utilization of a node's CPU or memory, in percent, above which the node "
                 "counts as overloaded; also the watermark of the simulated evictions."),
    click.option("--place-existing", is_flag=True, help="Also place the pods that already run when the trace begins. "
                 "[default: they stay on their recorded nodes]"),
    click.option("--throttle", is_flag=True, help="Let pods whose node has too little CPU for their demand run longer, "
                 "until their work is done. [default: they end as in the trace]"),
    click.option("--series", type=click.Path(path_type=Path, dir_okay=False), help="CSV file to write, with the state "
                 "of the cluster in each minute under each policy; an existing file is overwritten."),
    click.option("--png", type=click.Path(path_type=Path, dir_okay=False), help="PNG file to write, with charts of the "
                 "results; an existing file is overwritten. Needs the extra simulate."),
    click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="HTML report to write, with the "
                 "results and charts; an existing file is overwritten. Needs the extra simulate."),
)  # fmt: skip
_TRACE_OPTIONS = (
    click.option("--generate", "scenario", metavar="SCENARIO", help="Generate a trace instead of simulating. SCENARIO "
                 "is steady (constant arrivals and usage), burst (bursts of arrivals), daily (daily load cycle), "
                 "weekly (daily load cycle, less at weekends), herd (deployments that scale out) or overcommit "
                 "(requests far below usage)."),
    click.option("--nodes", default=100, show_default=True, type=click.IntRange(1, 5000), metavar="N",
                 help="Number of nodes of the trace made by --generate."),
    click.option("--pods", default=2000, show_default=True, type=click.IntRange(0, 500_000), metavar="M",
                 help="Number of pods that arrive in a trace made by --generate."),
    click.option("--hours", default=24.0, show_default=True, type=click.FloatRange(0.1, 240.0), callback=finite,
                 metavar="H", help="Length of the trace made by --generate, in hours."),
    click.option("--file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Trace file to write, required with --generate; compressed if the name ends in .gz. An existing "
                 "file is overwritten; - is the standard output."),
)  # fmt: skip


@click.command(short_help="Simulate policies on a trace, or create one.")
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@with_options(*_SIMULATION_OPTIONS)
@click.option(
    "--seed",
    default=1,
    show_default=True,
    metavar="SEED",
    help="Random seed (whole number): of the trace made by --generate, and of the choice between equally good nodes in "
    "a simulation.",
)
@with_options(*_TRACE_OPTIONS, CONFIG, SET, output_option("csv"))
def simulate(trace: Path | None, scenario: str | None, **given: Any) -> None:
    """Simulate scheduling policies on a trace, or create a trace.

    Simulation of TRACE: places its pods under each policy and compares the resulting load of the nodes. Options:
    --policy to --html, --seed, --config, --set and --output; -o csv prints all results of each policy as CSV.

    Creation of a trace, for example: load-watcher simulate --generate daily --file trace.csv.gz. Options: --generate
    with --nodes, --pods, --hours, --seed and --file. A simulation ignores --nodes, --pods and --hours.

    With -o json, a simulation prints {"trace", "note", "nodes", "pods", "minutes", "refresh_s", "delay_s",
    "overload_percent", "seed", "place_existing", "throttle", "policies"}, where "policies" has the columns of -o csv
    for each policy. The creation of a trace prints {"file", "records"}.

    docs/concepts/simulation.md describes the trace format and the limits of the simulation.

    Exit code 0: done; 2: the arguments, the trace, a policy, a file or the settings are invalid, or matplotlib is
    missing for --png or --html.
    """
    if trace is not None and scenario is None:
        _simulate(trace, given)
    elif scenario is not None and trace is None:
        _make_trace(scenario, given)
    else:
        raise click.UsageError("need exactly one of TRACE and --generate SCENARIO")


def _make_trace(scenario: str, given: Mapping[str, Any]) -> None:
    """Write a trace, generated from a scenario, and print a summary."""
    from lab.simulate import command
    from lab.traces.generating import SCENARIOS, generate
    from load_watcher.cli.output_file import check_stdout

    if scenario not in SCENARIOS:
        raise click.BadParameter(
            f"unknown scenario {scenario!r}; known scenarios: {', '.join(SCENARIOS)}", param_hint="--generate"
        )
    if given["file"] is None:
        raise click.UsageError("the file for the trace is missing: add --file FILE")
    if given["output"] == "csv":
        raise click.UsageError("-o csv is only for the results of a simulation; a trace is CSV in any case")
    if any(given[name] for name in ("policies", "series", "png", "html")):
        raise click.UsageError("options of a simulation given: create the trace first, then simulate it")
    printed = check_stdout({"--file": given["file"]}, output=given["output"])
    hours = given["hours"]
    records = generate(scenario, nodes=given["nodes"], pods=given["pods"], seed=given["seed"], hours=hours)
    with _simulate_errors(), progress_of("writing", unit="minutes") as tell:
        count = command.write_trace(records, given["file"], minutes=round(60 * hours), on_progress=tell)
    text = f"{given['file']}: {count:,} records; {SCENARIOS[scenario].description}"
    print_facts({"file": str(given["file"]), "records": count}, text, output=given["output"], err=printed)


def _simulate(trace: Path, given: Mapping[str, Any]) -> None:
    """Simulate all policies, write the requested files, and print the results."""
    from rich.console import Console

    from lab.simulate import command, report
    from lab.simulate.engine import SimulationOptions
    from load_watcher.cli.output_file import check_stdout

    if given["file"] is not None:
        hint = "print results with --output, and write charts and series with --png, --html and --series"
        raise click.UsageError(f"--file is the trace that --generate creates; {hint}")
    printed = check_stdout({f"--{name}": given[name] for name in ("series", "png", "html")}, output=given["output"])
    settings = load_or_exit(given, overrides=NO_SOURCE)
    files = command.OutputFiles(given["series"], given["png"], given["html"])
    with _simulate_errors():
        options = command.check_options(
            SimulationOptions(
                given["refresh"],
                given["delay"],
                given["overload"] / 100.0,
                given["seed"],
                given["place_existing"],
                given["throttle"],
            )
        )
        policies, notices = command.select_policies(
            given["policies"], settings.parts.get("scheduler", {}), cwd=Path.cwd()
        )
        for notice in notices:
            click.echo(f"note: {notice}", err=True)
        files.check(trace)
        click.echo(f"reading {trace}", err=True)
        course = command.load_trace(trace)
        with progress_of("simulating", unit="steps") as tell:
            runs = command.run(course, policies, options, evictor=_evictor(given["overload"]), on_progress=tell)
        setup = command.setup_of(trace, course, options)
        command.write(files, setup, runs)
    summaries = [run.summary() for run in runs]
    if given["output"] == "json":
        print_json(report.as_document(setup, summaries))
    elif given["output"] == "csv":
        click.echo(report.as_csv(summaries), nl=False)
    else:
        Console(stderr=printed).print(report.as_table(summaries))


def _evictor(watermark: float) -> EvictionPlanner | None:
    """The eviction planner of the node agent; None in an installation without the agent, where evictions are not
    counted."""
    try:
        from load_watcher.commands.lab.simulated_eviction import evicted
    except ModuleNotFoundError:
        return None
    return partial(evicted, watermark=watermark)


@contextmanager
def _simulate_errors() -> Iterator[None]:
    """Print an error of a trace, a policy, the settings or a file, with its hint, and exit with code 2."""
    from lab.simulate.command import SimulateError
    from lab.simulate.policies import PolicyError
    from lab.traces.parsing import TraceError
    from watcher.core.config.problems import SettingsError

    try:
        yield
    except (TraceError, PolicyError, SimulateError) as error:
        print_error(error, error.hint)
        raise SystemExit(FAILED) from None
    except SettingsError as error:
        print_settings_problems(error)
        raise SystemExit(BAD_SETTINGS) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""  # the error of a full disk has no file name
        print_error(f"{where}{error.strerror}", "check the path and the free disk space")
        raise SystemExit(FAILED) from None
