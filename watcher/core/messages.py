"""Names and texts of others in messages (the nearest known name, lists cut short, text made printable), and a hint that
several errors share."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

COMPARED_CHARACTERS = 64  # longer names do not resemble a known name, and comparing them is slow
SHOWN_CHARACTERS = 256
SHORT_SECRET = 6
SHORTEST_WORD = 3


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


def with_hint(error: Exception) -> str:
    """The message of an error, and its `hint` if it has one."""
    hint = getattr(error, "hint", "")
    return f"{error}. {hint}" if hint else str(error)


def printable(text: str) -> str:
    """Make text from another system safe for a message: printable, on one line, at most SHOWN_CHARACTERS long."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * SHOWN_CHARACTERS]).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def visible(text: str) -> str:
    r"""Text with control characters, bidirectional controls and line separators as escapes (\x1b, \u202e): a name can
    neither move the cursor of a terminal nor change the order of the text around it."""
    if text.isprintable():
        return text
    return "".join(_escaped(each) if is_unseen(each) else each for each in text)


def is_unseen(character: str) -> bool:
    """Whether a character is a control character, a bidirectional control, a line separator or half of a surrogate
    pair."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Text from another system without these secrets, which proxies repeat in error pages. A secret of less than
    SHORT_SECRET characters is hidden as a word of its own, one of less than SHORTEST_WORD characters only where it
    stands as a value ("Bearer x", "token=x", "x" in quotes): elsewhere it is a part of words."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        quoted = re.escape(secret)
        if len(secret) >= SHORT_SECRET:
            text = text.replace(secret, "***")
        elif len(secret) >= SHORTEST_WORD:
            before = r"(?:(?<!\w)|(?<=%[0-9A-Fa-f]{2}))" if secret[0].isalnum() else ""
            text = re.sub(rf"{before}{quoted}(?!\w)", "***", text)
        else:
            text = re.sub(rf"((?i:bearer|basic|token)\s+|[:=]\s*|[\"']){quoted}(?!\w)", r"\1***", text)
    return text


def install_extra(extra: str) -> str:
    """Format the command that installs the packages of an extra in pyproject.toml, for the hint of an error."""
    return f"run pip install '.[{extra}]' in a clone of load-watcher"
