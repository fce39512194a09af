"""Implementation of `load-watcher forecast backtest`: reads a trace, predicts, and writes files."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.backtest import summary
from lab.backtest.deals import deal
from lab.backtest.layouts import read_bitbrains, read_planetlab, read_recorded
from lab.backtest.predictions import BacktestOptions, ProgressCallback, predict
from lab.backtest.summary import BacktestResult
from lab.backtest.usage import BacktestError, UsageGrid
from load_watcher.cli.output_file import is_regular, written_file
from watcher.core.forecast.maxima import HOUR_SLOTS, SLOT_S
from watcher.core.messages import install_extra

_HOUR_S = 3600.0
_LONGEST_HISTORY_S = 28 * 86400.0


@dataclass(frozen=True, slots=True)
class BacktestFiles:
    """The files of a backtest: the trace, the sizes of its VMs, and those to write; None: not given."""

    trace: Path
    vms: Path | None = None
    png: Path | None = None
    predictions: Path | None = None

    def check(self) -> None:
        """Raise BacktestError if a file could not be written or would overwrite another one."""
        taken = {self.trace.resolve(): "the trace"}
        if self.vms is not None:
            taken[self.vms.resolve()] = "the file of --vms"
        for option, path in (("--png", self.png), ("--predictions", self.predictions)):
            if path is None:
                continue
            if not path.parent.is_dir():
                raise BacktestError(f"{option}: directory {path.parent} does not exist", "create it")
            if is_regular(path) and (there := taken.setdefault(path.resolve(), option)) != option:
                raise BacktestError(f"{option} {path} would overwrite {there}", "use a different path for each file")
        if self.png is None:
            return
        try:
            import lab.backtest.charts  # noqa: F401
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            hint = f"{install_extra('simulate')}, or omit --png"
            raise BacktestError("--png needs matplotlib, which is not installed", hint) from None


def check_options(seconds: Mapping[str, float], level: float) -> BacktestOptions:
    """Return the options for `history`, `horizon` and `start` in seconds. Raises BacktestError."""
    history, horizon, start = (seconds[name] for name in ("history", "horizon", "start"))
    for name, value, most in (
        ("history", history, _LONGEST_HISTORY_S),
        ("horizon", horizon, 86400.0),
        ("start", start, 366 * 86400.0),
    ):
        if value % _HOUR_S or not _HOUR_S <= value <= most:
            longest = "24h" if most == 86400.0 else f"{most / 86400.0:g}d"
            raise BacktestError(
                f"--{name} is {summary.span_text(value)}", f"it must be whole hours, from 1h to {longest}"
            )
    options = BacktestOptions(int(history // SLOT_S), int(horizon // SLOT_S), int(start // SLOT_S), level)
    if options.start < min(options.history, options.least):
        least = min(options.history, options.least) // HOUR_SLOTS
        raise BacktestError("--start is before the first bound", f"with this --history it must be at least {least}h")
    return options


def read_usage(files: BacktestFiles, layout: str) -> UsageGrid:
    """Read the trace. Raises BacktestError, and TraceError for the layout record."""
    if layout == "bitbrains":
        if files.vms is None:
            raise BacktestError("the sizes of the VMs are missing", "add --vms FILE")
        return read_bitbrains(files.trace, files.vms)
    if files.vms is not None:
        raise BacktestError(f"--vms is only for the layout bitbrains, not {layout}", "omit --vms")
    return read_planetlab(files.trace) if layout == "planetlab" else read_recorded(files.trace)


def backtest(
    files: BacktestFiles,
    layout: str,
    options: BacktestOptions,
    *,
    per_machine: int,
    deals: int,
    seed: int,
    on_progress: ProgressCallback,
) -> BacktestResult:
    """Run the backtest and write the requested files. Raises BacktestError, TraceError, and OSError for a file that
    cannot be written."""
    files.check()
    machines = deal(read_usage(files, layout), per_machine=per_machine, deals=deals, seed=seed)
    found = predict(machines, options, on_progress=on_progress)
    result = summary.summarize(machines, found, options, trace=files.trace.name, layout=layout)
    if files.predictions is not None:
        with written_file(files.predictions) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            try:
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(summary.PREDICTION_COLUMNS)
                writer.writerows(summary.prediction_rows(machines, found))
            finally:
                text.detach()
    if files.png is not None:
        from lab.backtest.charts import draw

        with written_file(files.png) as file:
            file.write(draw(result))
    return result
