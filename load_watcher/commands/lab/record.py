"""`load-watcher record`: records a trace of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.options import (
    IN_SECONDS,
    OUTPUT,
    TOKEN_FILE,
    read_token,
    service_url,
    to_seconds,
    to_seconds_or_none,
)
from load_watcher.cli.printing import print_facts

if TYPE_CHECKING:
    from lab.record.recorder import Recording, RecordingProgress


@click.command(short_help="Record a trace of a cluster.")
@service_url(
    "Base URL of the service. Its settings must contain a [scheduler.NAME] table; without one it provides no pods."
)
@TOKEN_FILE
@click.option(
    "--file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Trace file to create, in CSV; compressed if the name ends in .gz. It must not exist; "
    "- is the standard output.",
)
@click.option(
    "--for",
    "duration",
    callback=to_seconds_or_none,
    metavar="DURATION",
    help=f"Duration of the recording, for example 15m or 1h; {IN_SECONDS}. [default: until SIGINT (Ctrl-C) or SIGTERM]",
)
@click.option(
    "--every",
    default="60s",
    show_default=True,
    callback=to_seconds,
    metavar="DURATION",
    help=f"Interval between requests to the service, at least 1s; {IN_SECONDS}.",
)
@OUTPUT
def record(url: str, file: Path, duration: float | None, every: float, output: str, **given: Any) -> None:
    """Record a trace of the cluster of a running service.

    The trace file contains node load, pods and bindings, for `load-watcher simulate` and the provider replay. It is
    readable at any time, up to the last request (--every). While the service is unavailable, the trace has a gap.

    With -o json, prints {"file", "records", "nodes", "pods", "bindings", "polls", "missed"} at the end.

    Exit code 0: recorded; 2: the arguments are invalid, nothing was recorded, or writing failed (the file then contains
    the records up to the failure).
    """
    from lab.record.recorder import Recording
    from load_watcher.cli.output_file import check_stdout

    if every < 1.0:
        raise click.BadParameter("must be at least 1s", param_hint="--every")
    check_stdout({"--file": file}, output=output)
    recording = Recording(url, duration, every, read_token(given["token_file"]))
    raise SystemExit(_record(recording, file, output=output))


def _record(recording: Recording, path: Path, *, output: str) -> int:
    import asyncio
    import signal
    from contextlib import suppress

    from lab.record import file as recording_file
    from lab.record import recorder
    from load_watcher.cli.output_file import STDOUT

    async def run(file: recording_file.RecordingFile) -> recorder.RecordingProgress:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # on Windows; the file is still complete up to the last request
                loop.add_signal_handler(number, stop.set)
        with _recorded(recording) as tell:
            return await recorder.record(recording, file, stop=stop, on_progress=tell)

    try:
        with recording_file.RecordingFile(path) as file:
            done = asyncio.run(run(file))
    except recorder.RecordError as error:
        file.remove()
        print_error(error, error.hint)
        return FAILED
    except FileExistsError:
        print_error(f"{path} already exists", "recordings are not overwritten: name another file")
        return FAILED
    except OSError as error:
        hint = "it contains the recording up to the error" if path.exists() else "check the path; nothing recorded"
        print_error(f"cannot write {path}: {error.strerror or error}", hint)
        return FAILED
    if not done.records:
        file.remove()
        print_error("nothing was recorded; the empty file was removed")
        return FAILED
    names = ("records", "nodes", "pods", "bindings", "polls", "missed")
    print_facts(
        {"file": str(path), **{name: getattr(done, name) for name in names}},
        f"{done.records:,} records in {path}: {done.nodes:,} nodes, {done.pods:,} pods at the end, "
        f"{done.bindings:,} bindings; {done.missed:,} of {done.polls:,} requests returned no load",
        output=output,
        err=path == STDOUT,
    )
    return 0


@contextmanager
def _recorded(recording: Recording) -> Iterator[Callable[[RecordingProgress], None]]:
    """Yield a callback for the progress after each request: it updates a bar on a terminal, or prints a line every ten
    requests otherwise, and a line when a problem begins or ends.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    trouble: dict[str, str] = {}

    def amiss(kind: str, reason: str) -> None:
        if reason != trouble.get(kind, ""):
            console.print(reason or f"{kind} available again", markup=False)
        trouble[kind] = reason

    def summary(progress: RecordingProgress) -> str:
        return f"{progress.nodes:,} nodes, {progress.pods:,} pods, {progress.bindings:,} bindings"

    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("recording", total=recording.duration)

        def tell(progress: RecordingProgress) -> None:
            amiss("node load", progress.trouble)
            if progress.polls > 1:  # only the first request makes the service fetch pod usage from its source
                amiss("pod usage", progress.usage and f"pod usage is not recorded: {progress.usage}")
            bar.update(task, completed=progress.passed, description=summary(progress))
            if not console.is_terminal and progress.polls % 10 == 1:
                console.print(f"{progress.passed / 60:.0f} min: {summary(progress)}")

        yield tell
