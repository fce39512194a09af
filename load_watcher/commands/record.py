"""`load-watcher record`: a trace of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import COULD_NOT, complain
from load_watcher.cli.options import TOKEN_FILE, read_token, service_url, to_address, to_seconds, to_seconds_or_none

if TYPE_CHECKING:
    from load_watcher.recording.recorder import Progress, Recording


@click.command()
@service_url("The service, which needs [scheduler] to know of pods.")
@click.option("--watcher", "url_by_its_old_name", callback=to_address, metavar="URL", hidden=True)
@TOKEN_FILE
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="A new file, *.csv or *.csv.gz.")
@click.option("--for", "duration", callback=to_seconds_or_none, metavar="DURATION", help="Else until Ctrl-C.")
@click.option("--every", default="60s", show_default=True, callback=to_seconds, metavar="DURATION", help="How often.")
def record(url: str, output: Path, duration: float | None, every: float, **given: Any) -> None:
    """Write down what happens in the cluster of a running service: load, pods and bindings, as a trace.

    simulate and the provider replay read it. The file is whole to the last minute at any moment; where the service is
    away it has a gap. Exit code 2: nothing could be recorded.
    """
    from load_watcher.recording.recorder import Recording

    if every < 1.0:
        raise click.BadParameter("must be 1s at least", param_hint="--every")
    asked = given["url_by_its_old_name"] or url
    raise SystemExit(_record(Recording(asked, duration, every, read_token(given["token_file"])), output))


def _record(recording: Recording, output: Path) -> int:
    import asyncio
    import signal
    from contextlib import suppress

    from load_watcher.recording import file as recording_file
    from load_watcher.recording import recorder

    async def run(file: recording_file.RecordingFile) -> recorder.Progress:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(NotImplementedError):  # Windows; what was recorded is in the file all the same
                loop.add_signal_handler(number, stop.set)
        with _recorded(recording) as tell:
            return await recorder.record(recording, file, stop=stop, tell=tell)

    try:
        with recording_file.RecordingFile(output) as file:
            done = asyncio.run(run(file))
    except recorder.RecordError as error:
        output.unlink()
        complain(error, error.hint)
        return COULD_NOT
    except FileExistsError:
        complain(f"{output} is there already", "a recording is not written over: name another")
        return COULD_NOT
    except OSError as error:
        hint = "what was recorded until then is in it" if output.exists() else "check the path; nothing was recorded"
        complain(f"{output} cannot be written: {error.strerror or error}", hint)
        return COULD_NOT
    if not done.records:
        output.unlink()
        complain("there was nothing to record, and no file is left")
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
