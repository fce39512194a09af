"""The answer of a service as tables or JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from load_watcher.cli.exit_codes import FAILED, print_error
from load_watcher.cli.printing import print_json, print_tables
from load_watcher.cli.service_client import ServiceClientError, reading
from watcher.core.messages import visible

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_answer(
    asked: Coroutine[Any, Any, dict[str, Any]],
    tables: Callable[[Mapping[str, Any]], Iterator[RenderableType]],
    *,
    url: str,
    output: str,
) -> None:
    """Print the answer of the service at `url` as tables or JSON; exit with code 2 if the request fails or the answer
    lacks a field of the tables."""
    try:
        document = asyncio.run(asked)
        with reading(url):
            shown = list(tables(_visible(document)))
    except ServiceClientError as error:
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
