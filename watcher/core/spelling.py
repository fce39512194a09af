"""Names that a misspelt name resembles, for the fixes in errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

COMPARED_CHARACTERS = 64  # longer names do not resemble a known name, and comparing them is slow


def nearest(given: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the known name that equals `given` except for case, or otherwise the most similar one; None if no name has
    a similarity of at least `cutoff` (the ratio of difflib, 0 to 1)."""
    by_folded = {name.casefold(): name for name in known}
    word = given[:COMPARED_CHARACTERS].casefold()
    if word in by_folded:
        return by_folded[word]
    close = difflib.get_close_matches(word, by_folded, n=1, cutoff=cutoff)
    return by_folded[close[0]] if close else None
