"""Text output of commands: lines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.json_text import json_text

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 1000  # maximum width of a row in characters; rows are shorter


def print_tables(document: Iterable[RenderableType]) -> None:
    """Print lines and tables, fitted to the terminal's width; if output is not a terminal, each row is one line."""
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    console.print(*document, sep="\n")


def print_json(document: Any) -> None:
    """Print one JSON document on standard output. Raises ValueError for NaN and infinity."""
    click.echo(json_text(document, indent=2))


def print_facts(document: Mapping[str, Any], text: str, *, output: str, err: bool = False) -> None:
    """Print the document if `output` is json, otherwise the text, on the standard error if `err`."""
    if output == "json":
        print_json(document)
    else:
        click.echo(text, err=err)
