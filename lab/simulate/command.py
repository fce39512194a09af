"""Implementation of `load-watcher simulate`: reads a trace and policies, writes files and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.simulate import report
from lab.simulate.engine import EvictionPlanner, SimulationOptions, simulate
from lab.simulate.policies import PlacementPolicy, check_unique_names, find_policy
from lab.simulate.results import SimulationRun
from lab.simulate.trace_columns import STEP_S, TraceColumns, read_course
from lab.traces.files import read_trace, trace_writer
from lab.traces.records import Record
from load_watcher.cli.output_file import is_regular, written_file
from watcher.core.messages import install_extra

DEFAULT_POLICIES = (
    "LeastAllocated",
    "MostAllocated",
    "TargetLoadPacking",
    "LoadVariationRiskBalancing",
    "LowRiskOverCommitment",
)
"""Policies that are compared by default."""

MOST_DAYS = 366

ProgressCallback = Callable[[int, int], None]
"""Progress callback: steps done, and steps in total."""


class SimulateError(Exception):
    """The simulation cannot run; `hint` is advice for the user."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Paths of the output files; None: not written."""

    series: Path | None = None
    png: Path | None = None
    html: Path | None = None

    def check(self, trace: Path) -> None:
        """Check the paths before the simulation. Raises SimulateError if a file could not be written or would overwrite
        another output or the trace, because a recording cannot be repeated."""
        taken = {trace.resolve(): "the trace"}
        for name in ("series", "png", "html"):
            path: Path | None = getattr(self, name)
            if path is None:
                continue
            if not path.parent.is_dir():
                raise SimulateError(f"directory {path.parent} does not exist", "create it, or choose another path")
            if is_regular(path) and (there := taken.setdefault(path.resolve(), f"--{name}")) != f"--{name}":
                raise SimulateError(f"--{name} {path} would overwrite {there}", "use a different path for each file")
        if self.png is None and self.html is None:
            return
        try:
            import lab.simulate.charts  # noqa: F401
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            hint = f"{install_extra('simulate')}, or omit --png and --html"
            raise SimulateError("charts need matplotlib, which is not installed", hint) from None


def check_options(options: SimulationOptions) -> SimulationOptions:
    """Return the options. Raises SimulateError for times that are not whole minutes."""
    for name, value in (("refresh", options.refresh), ("delay", options.delay)):
        if value % STEP_S or value < (STEP_S if name == "refresh" else 0.0):
            raise SimulateError(f"--{name} is {value:g} s", "it must be whole minutes, like 60s or 5m")
    return options


def select_policies(
    wanted: Sequence[str], scheduler: Mapping[str, Any], *, cwd: Path
) -> tuple[tuple[PlacementPolicy, ...], tuple[str, ...]]:
    """The policies with these names (default: DEFAULT_POLICIES), and notices. Raises PolicyError and SettingsError."""
    found = [find_policy(each, scheduler, cwd=cwd) for each in wanted or DEFAULT_POLICIES]
    policies = tuple(policy for policy, _ in found)
    check_unique_names(policies)
    return policies, tuple(notice for _, notices in found for notice in notices)


def load_trace(trace: Path) -> TraceColumns:
    """Read a trace. Raises TraceError, and SimulateError for a trace longer than a year, which indicates a time in
    another unit."""
    course = read_course(read_trace(trace))
    if course.minutes > MOST_DAYS * 24 * 60:
        days = course.minutes / (24 * 60)
        hint = "times must be unix seconds; check the first and the last record"
        raise SimulateError(f"{trace} covers {days:,.0f} days, from {course.begins:.0f} to {course.ends:.0f}", hint)
    return course


def run(
    course: TraceColumns,
    policies: Sequence[PlacementPolicy],
    options: SimulationOptions,
    *,
    evictor: EvictionPlanner | None,
    on_progress: ProgressCallback,
) -> tuple[SimulationRun, ...]:
    """Simulate the policies one after the other, one run each. Raises PolicyError."""
    steps, done = course.minutes * len(policies), 0

    def progress() -> None:
        nonlocal done
        done += 1
        on_progress(done, steps)

    return tuple(simulate(course, each, options, evictor=evictor, progress=progress) for each in policies)


def setup_of(trace: Path, course: TraceColumns, options: SimulationOptions) -> report.SimulationSetup:
    return report.SimulationSetup(
        trace.name,
        course.note,
        len(course.names),
        len(course.pods),
        course.minutes,
        options.refresh,
        options.delay,
        options.overload,
        options.seed,
        options.place_existing,
        options.throttle,
    )


def write(files: OutputFiles, setup: report.SimulationSetup, runs: Sequence[SimulationRun]) -> None:
    """Write the requested files. Raises OSError."""
    if files.series is not None:
        _write(files.series, report.series_csv(runs).encode())
    if files.png is None and files.html is None:
        return
    from lab.simulate.charts import draw, draw_inline

    if files.png is not None:
        _write(files.png, draw(setup, runs))
    if files.html is not None:
        page = report.as_page(setup, [each.summary() for each in runs], draw_inline(setup, runs))
        _write(files.html, page.encode())


def _write(path: Path, content: bytes) -> None:
    with written_file(path) as file:
        file.write(content)


def write_trace(records: Iterable[Record], path: Path, *, minutes: int, on_progress: ProgressCallback) -> int:
    """Write records and return their number; `minutes` is the total for progress reports. Raises OSError and any
    exception of `records`; a regular file at `path` is then absent or unchanged."""
    count, done, begins = 0, 0, 0.0
    with written_file(path) as file, trace_writer(file, packed=path.suffix == ".gz") as writer:
        for record in records:
            begins = begins if count else record.time
            count += 1
            writer.write(record)
            if (minute := int((record.time - begins) // STEP_S)) > done:
                done = minute
                on_progress(min(done, minutes), minutes)
    return count
