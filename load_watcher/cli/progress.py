"""Progress output of long-running commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click


@contextmanager
def progress_of(what: str, *, unit: str = "rows") -> Iterator[Callable[[int, int], None]]:
    """Yield a callback for (done, total) that updates a progress bar on a terminal, or prints a line every 10 percent
    otherwise.
    """
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    tenths = 0

    def line(done: int, total: int) -> None:
        nonlocal tenths
        if (tenth := 10 * done // total) > tenths:
            tenths = tenth
            click.echo(f"{what}: {done:,} of {total:,} {unit}", err=True)

    if not console.is_terminal:
        yield line
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)
