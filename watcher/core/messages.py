"""Names and texts of others in messages (the nearest known name, lists cut short, text made printable), and a hint that
several errors share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

COMPARED_CHARACTERS = 64  # longer names do not resemble a known name, and comparing them is slow
SHOWN_CHARACTERS = 256


def nearest(given: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that equals `given` except for case, or otherwise the most similar one; None if no name has
    a similarity of at least `cutoff` (the ratio of difflib, 0 to 1)."""
    by_folded = {name.casefold(): name for name in known}
    word = given[:COMPARED_CHARACTERS].casefold()
    if word in by_folded:
        return by_folded[word]
    close = difflib.get_close_matches(word, by_folded, n=1, cutoff=cutoff)
    return by_folded[close[0]] if close else None


def shorten_names(names: Sequence[str], most: int = 5) -> str:
    """Format the first names and the number of the others: "a, b, c, d, e and 3 more". Empty for an empty sequence."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


def printable(text: str) -> str:
    """Make text from another system safe for a message: printable, on one line, at most SHOWN_CHARACTERS long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * SHOWN_CHARACTERS]).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def install_extra(extra: str) -> str:
    """Format the command that installs the packages of an extra in pyproject.toml, for the hint of an error."""
    return f"run pip install '.[{extra}]' in a clone of load-watcher"
