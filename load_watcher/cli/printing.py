"""Text output of commands: lines and tables."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.json_text import json_text
from watcher.core.messages import visible

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


def print_answer(
    asked: Coroutine[Any, Any, dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterator[RenderableType]],
    *,
    url: str,
    output: str,
) -> None:
    """Print the answer of the extender at `url` as tables or JSON; exit with code 2 if the request fails or the answer
    lacks a field of the tables."""
    import asyncio

    from load_watcher.cli.extender_client import ExtenderClientError, reading

    try:
        document = asyncio.run(asked)
        with reading(url):
            shown = list(tables(_visible(document)))
    except ExtenderClientError as error:
        print_error(error, error.hint)
        raise SystemExit(FAILED) from None
    if output == "json":
        print_json(document)
    else:
        print_tables(shown)


def _visible(value: Any) -> Any:
    """The answer with control characters of names and texts as escapes."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {_visible(key): _visible(each) for key, each in value.items()}
    return [_visible(each) for each in value] if isinstance(value, list) else value
