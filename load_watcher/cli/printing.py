"""Text output of commands: lines and tables."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error

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
    import json

    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def print_facts(document: Mapping[str, Any], text: str, *, output: str) -> None:
    """Print the document if `output` is json, otherwise the text."""
    if output == "json":
        print_json(document)
    else:
        click.echo(text)


def print_answer(
    asked: Coroutine[Any, Any, dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterator[RenderableType]],
    *,
    output: str,
) -> None:
    """Print the extender's answer as tables or JSON; exit with code 2 if the request fails."""
    import asyncio

    from scorers.cli.score import ExtenderClientError

    try:
        document = asyncio.run(asked)
    except ExtenderClientError as error:
        print_error(error, error.hint)
        raise SystemExit(FAILED) from None
    if output == "json":
        print_json(document)
    else:
        print_tables(tables(document))
