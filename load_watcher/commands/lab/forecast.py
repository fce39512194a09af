"""`load-watcher forecast`: tests forecasts on recorded load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import IN_SECONDS, finite, output_option, to_seconds, with_options
from load_watcher.cli.printing import print_json
from load_watcher.cli.progress import progress_of

_HOURS = f"whole hours; {IN_SECONDS}"
_OPTIONS = (
    click.option("--layout", required=True, type=click.Choice(("bitbrains", "planetlab", "record")),
                 help="Layout of TRACE: bitbrains (CSV with vm, unix_s, cpu_mhz), planetlab (CSV with day, vm and 288 "
                 "values of CPU percent in cpu_percent_5min_x288), or record (a file of load-watcher record, whose "
                 "nodes are the machines)."),
    click.option("--vms", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="CSV file with the sizes of the VMs (vm, cpus, capacity_mhz); required for bitbrains."),
    click.option("--per-machine", default=8, show_default=True, type=click.IntRange(1, 10_000), metavar="N",
                 help="Number of VMs of a simulated machine; not used with record."),
    click.option("--deals", default=8, show_default=True, type=click.IntRange(1, 1000), metavar="N",
                 help="Number of times that the VMs are dealt to machines, in random order; not used with record."),
    click.option("--seed", default=1, show_default=True, type=click.IntRange(0, 2**63 - 1), metavar="SEED",
                 help="Random seed of the deals; not used with record."),
    click.option("--horizon", default="6h", show_default=True, callback=to_seconds, metavar="DURATION",
                 help=f"Time for which the peak is predicted, 1h to 24h, {_HOURS}."),
    click.option("--level", default=0.95, show_default=True, callback=finite, metavar="LEVEL",
                 type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
                 help="Share of predictions that the peak should not exceed, between 0 and 1."),
    click.option("--history", default="7d", show_default=True, callback=to_seconds, metavar="DURATION",
                 help=f"Load that a prediction can use, 1h to 28d, {_HOURS}. Less than a day: without correction."),
    click.option("--start", default="7d", show_default=True, callback=to_seconds, metavar="DURATION",
                 help=f"Time of the first prediction since the first value of TRACE, {_HOURS}."),
    click.option("--png", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="PNG file to write, with a chart of savings and violations; an existing file is overwritten. "
                 "Needs the extra simulate."),
    click.option("--predictions", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="CSV file to write, with the bound of each predictor and the peak for each prediction; an "
                 "existing file is overwritten."),
)  # fmt: skip


@click.group(short_help="Test forecasts of node load.")
def forecast() -> None:
    """Test forecasts of peaks on recorded load."""


@forecast.command(short_help="Compare predictors on a recorded trace.")
@click.argument("trace", type=click.Path(path_type=Path))
@with_options(*_OPTIONS, output_option("csv"))
def backtest(trace: Path, layout: str, **given: Any) -> None:
    """Compare predictors of peaks on a recorded trace.

    Every two hours, each predictor states an upper bound of the load over the next hours, from the past alone. The
    output has the share of bounds that were too low (violations), by how much of the peak (severity), and the share of
    the capacity above the bound (savings). The last row is the predictor that load-watcher uses.

    TRACE can be compressed with gzip. It has slots of 300 seconds; a slot without a value counts as 0.
    docs/concepts/forecast.md has the definitions and results.

    Exit code 0: done; 2: the arguments, the trace or a file are invalid, or matplotlib is missing for --png.
    """
    from rich.console import Console

    from lab.backtest import command, summary
    from lab.backtest.usage import BacktestError
    from lab.traces.parsing import TraceError
    from load_watcher.cli.output_file import check_stdout

    printed = check_stdout({f"--{name}": given[name] for name in ("png", "predictions")}, output=given["output"])
    files = command.BacktestFiles(trace, given["vms"], given["png"], given["predictions"])
    dealing = {name: given[name] for name in ("per_machine", "deals", "seed")}
    try:
        options = command.check_options(given, given["level"])
        with progress_of("predicting", unit="steps") as tell:
            result = command.backtest(files, layout, options, **dealing, on_progress=tell)
    except (BacktestError, TraceError) as error:
        print_error(error, error.hint)
        raise SystemExit(FAILED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""  # the error of a full disk has no file name
        print_error(f"{where}{error.strerror}", "check the path and the free disk space")
        raise SystemExit(FAILED) from None
    if given["output"] == "json":
        print_json(summary.as_document(result))
    elif given["output"] == "csv":
        click.echo(summary.as_csv(result), nl=False)
    else:
        Console(stderr=printed).print(summary.as_table(result))
        for sentence in summary.sentences(result):
            click.echo(sentence, err=printed)
