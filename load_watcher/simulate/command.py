"""What `load-watcher simulate` does: a trace and policies in, files and a table out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_watcher.simulate import report
from load_watcher.simulate.engine import Evictor, Options, simulate
from load_watcher.simulate.policies import Policy, distinct, find_policy
from load_watcher.simulate.results import Run
from load_watcher.simulate.trace_columns import STEP_S, Course, read_course
from watcher.traces.files import open_writer, read_trace
from watcher.traces.records import Record

USUAL = ("LeastAllocated", "MostAllocated", "TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment")
"""What is compared where nobody says what."""

MOST_DAYS = 366

Tell = Callable[[int, int], None]
"""Of what is done, and of how much."""


class SimulateError(Exception):
    """It cannot be done; `hint` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Files:
    """Where what came out is written to; None: nowhere."""

    csv: Path | None = None
    series: Path | None = None
    png: Path | None = None
    html: Path | None = None

    def ready(self, trace: Path) -> None:
        """Before the long work: raises SimulateError where something would be missing at its end, the trace included:
        a recording cannot be made again."""
        taken = {trace.resolve(): "the trace"}
        for name in ("csv", "series", "png", "html"):
            path: Path | None = getattr(self, name)
            if path is None:
                continue
            if not path.parent.is_dir():
                raise SimulateError(f"there is no directory {path.parent}", "make it, or write somewhere else")
            if (there := taken.setdefault(path.resolve(), f"--{name}")) != f"--{name}":
                raise SimulateError(f"--{name} {path} would write over {there}", "give each a file of its own")
        if self.png is None and self.html is None:
            return
        try:
            import load_watcher.simulate.charts  # noqa: F401
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            hint = "pip install 'load-watcher[simulate]', or leave out --png and --html"
            raise SimulateError("pictures need matplotlib, which is not installed", hint) from None


def checked(options: Options) -> Options:
    """The options. Raises SimulateError for times that are no whole minutes."""
    for name, value in (("refresh", options.refresh), ("delay", options.delay)):
        if value % STEP_S or value < (STEP_S if name == "refresh" else 0.0):
            raise SimulateError(f"--{name} is {value:g} s", "a step is a minute: give whole minutes, like 60s or 5m")
    return options


def chosen(
    wanted: Sequence[str], scheduler: Mapping[str, Any], *, cwd: Path
) -> tuple[tuple[Policy, ...], tuple[str, ...]]:
    """The policies of these names, USUAL where there are none, and notices. Raises PolicyError and SettingsError."""
    found = [find_policy(each, scheduler, cwd=cwd) for each in wanted or USUAL]
    policies = tuple(policy for policy, _ in found)
    distinct(policies)
    return policies, tuple(notice for _, notices in found for notice in notices)


def load(trace: Path) -> Course:
    """Raises TraceError, and SimulateError for one that goes over a year: one of its times is in another unit, then."""
    course = read_course(read_trace(trace))
    if course.minutes > MOST_DAYS * 24 * 60:
        days = course.minutes / (24 * 60)
        hint = "times are unix seconds; look at the first record and the last"
        raise SimulateError(f"{trace} goes over {days:,.0f} days, from {course.begins:.0f} to {course.ends:.0f}", hint)
    return course


def run(
    course: Course, policies: Sequence[Policy], options: Options, *, evictor: Evictor | None, tell: Tell
) -> tuple[Run, ...]:
    """One run a policy, one after the other. Raises PolicyError."""
    steps, done = course.minutes * len(policies), 0

    def progress() -> None:
        nonlocal done
        done += 1
        tell(done, steps)

    return tuple(simulate(course, each, options, evictor=evictor, progress=progress) for each in policies)


def write(files: Files, trace: Path, course: Course, options: Options, runs: Sequence[Run]) -> None:
    """The files that are wanted. Raises OSError."""
    summaries = [each.summary() for each in runs]
    setting = report.Setting(
        trace.name,
        course.note,
        len(course.names),
        len(course.pods),
        course.minutes,
        options.refresh,
        options.delay,
        options.overload,
        options.seed,
        options.anew,
    )
    if files.csv is not None:
        files.csv.write_text(report.as_csv(summaries), encoding="utf-8", newline="")
    if files.series is not None:
        files.series.write_text(report.series_csv(runs), encoding="utf-8", newline="")
    if files.png is None and files.html is None:
        return
    from load_watcher.simulate.charts import draw

    picture = draw(setting, runs)
    if files.png is not None:
        files.png.write_bytes(picture)
    if files.html is not None:
        files.html.write_text(report.as_page(setting, summaries, picture), encoding="utf-8", newline="")


def write_trace(records: Iterable[Record], path: Path, *, minutes: int, tell: Tell) -> int:
    """How many records were written, of so many minutes. Raises OSError, and whatever making the records raises; then
    there is no file, or the one that was there before."""
    count, done, begins = 0, 0, 0.0
    unfinished = path.with_name(f".unfinished-{path.name}")
    try:
        with open_writer(unfinished) as writer:
            for record in records:
                begins = begins if count else record.time
                count += 1
                writer.write(record)
                if (minute := int((record.time - begins) // STEP_S)) > done:
                    done = minute
                    tell(min(done, minutes), minutes)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count
