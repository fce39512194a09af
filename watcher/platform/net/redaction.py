"""Text of others for logs and errors: shortened, printable, and without credentials in URLs."""

from __future__ import annotations

from urllib.parse import urlsplit

SHOWN_CHARACTERS = 256


def shown(text: str) -> str:
    """A foreign text as it may stand in an error: printable, on one line, cut."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * SHOWN_CHARACTERS]).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def without_credentials(location: str) -> str:
    """Where a redirect leads: scheme, host and path; a login page's query holds states and nonces."""
    try:
        parts = urlsplit(location)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return f"{parts.scheme}://{host}{parts.path}" if host else parts.path
