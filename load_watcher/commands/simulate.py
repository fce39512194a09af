"""`load-watcher simulate`: a trace under several policies; and making traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from load_watcher.cli.exit_codes import BAD_SETTINGS, COULD_NOT, complain, complain_of_settings
from load_watcher.cli.options import CONFIG, SET, finite, to_seconds, with_options
from load_watcher.cli.progress import progress_of
from load_watcher.cli.settings import NO_SOURCE, load_or_exit

_SIMULATION_OPTIONS = (
    click.option("--policy", "policies", multiple=True, metavar="P", help="LeastAllocated, MostAllocated, "
                 "BalancedAllocation, DefaultScheduler, a plug-in, a profile of the settings, or FILE.yaml[:PROFILE]."),
    click.option("--refresh", default="60s", show_default=True, callback=to_seconds, metavar="DURATION",
                 help="How often windows are published."),
    click.option("--delay", default="60s", show_default=True, callback=to_seconds, metavar="DURATION",
                 help="How old their newest sample is then."),
    click.option("--overload", default=90.0, show_default=True, type=click.FloatRange(1.0, 100.0), callback=finite,
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
    click.option("--hours", default=24.0, show_default=True, type=click.FloatRange(0.1, 240.0), callback=finite,
                 metavar="H", help="How long a trace to make."),
    click.option("--start", default=0.0, show_default=True, type=click.FloatRange(0.0, 1000.0), callback=finite,
                 metavar="H", help="With --alibaba, from which hour of it on."),
    click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="Where the trace goes that is made; gzip if it ends in .gz."),
)  # fmt: skip


@click.command()
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@with_options(*_SIMULATION_OPTIONS)
@click.option("--seed", default=1, show_default=True, metavar="SEED", help="Another number, another outcome.")
@with_options(*_TRACE_OPTIONS, CONFIG, SET)
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
    from load_watcher.simulate import command
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
    with _simulate_errors(), progress_of("writing", unit="minutes") as tell:
        count = command.write_trace(records, given["output"], minutes=round(60 * hours), tell=tell)
    click.echo(f"{given['output']}: {count:,} records" + (f"; {SCENARIOS[scenario].told}" if scenario else ""))


def _simulate(trace: Path, given: Mapping[str, Any]) -> None:
    """Run all policies, write what is wanted, and print a table."""
    from rich.console import Console

    from agent.decision.simulated_eviction import evicted
    from load_watcher.simulate import command, report
    from load_watcher.simulate.engine import Options

    if given["output"] is not None:
        raise click.UsageError("-o is for a trace that is made; what comes out goes to --csv, --series, --png, --html")
    settings = load_or_exit(given, beside=NO_SOURCE)
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
        with progress_of("simulating", unit="steps") as tell:
            evictor = partial(evicted, watermark=given["overload"])
            runs = command.run(course, policies, options, evictor=evictor, tell=tell)
        command.write(files, trace, course, options, runs)
    Console().print(report.as_table(run.summary() for run in runs))


@contextmanager
def _simulate_errors() -> Iterator[None]:
    """Print what is wrong with a trace, a policy or a file, with the cure, and exit 2."""
    from load_watcher.simulate.command import SimulateError
    from load_watcher.simulate.policies import PolicyError
    from watcher.platform.settings.problems import SettingsError
    from watcher.traces.parsing import TraceError

    try:
        yield
    except (TraceError, PolicyError, SimulateError) as error:
        complain(error, error.hint)
        raise SystemExit(COULD_NOT) from None
    except SettingsError as error:
        complain_of_settings(error)
        raise SystemExit(BAD_SETTINGS) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""  # a full disk names no file
        complain(f"{where}{error.strerror}", "check the path, and the room there")
        raise SystemExit(COULD_NOT) from None
