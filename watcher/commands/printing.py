"""What a command found out, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 1000  # columns, more than any row has


def print_tables(document: Iterable[RenderableType]) -> None:
    """Lines and tables, laid out to the width of a terminal; elsewhere a row is one line, for grep and for files."""
    from rich.console import Console

    console = Console(soft_wrap=True)
    if not console.is_terminal:
        console.width = max(console.width, WIDE)
    console.print(*document, sep="\n")
