"""The version of the program, with the commit of its sources if it is known."""

from __future__ import annotations

from pathlib import Path

import click

from watcher import __version__

PACKAGE = Path(__file__).resolve().parents[1]


def version_line() -> str:
    """Return the output of `load-watcher --version`."""
    commit = _commit()
    return f"load-watcher {__version__}" + (f" (commit {commit})" if commit else "")


def print_version(context: click.Context, parameter: click.Parameter, given: bool) -> None:
    """Print the version and exit: callback of an option."""
    if given and not context.resilient_parsing:
        click.echo(version_line())
        context.exit()


def _commit() -> str | None:
    """Return the commit that hatch_build.py wrote, otherwise that of the git checkout with this file; None if unknown.
    The suffix `-dirty` marks uncommitted changes."""
    if (written := PACKAGE / "_commit").exists():
        return written.read_text("utf-8").strip()
    if not (PACKAGE.parent / ".git").exists():
        return None
    import subprocess

    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
