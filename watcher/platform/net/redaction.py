"""Text of others for logs and errors: shortened, printable, and without credentials in URLs."""

from __future__ import annotations

import traceback
from urllib.parse import urlsplit

SHOWN_CHARACTERS = 256


def printable(text: str) -> str:
    """Remote text made safe for an error message: printable, on one line, truncated to SHOWN_CHARACTERS."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * SHOWN_CHARACTERS]).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def release_frames(error: BaseException) -> None:
    """Clear the local variables of the functions that an error and its causes left: a kept error would otherwise keep
    the whole answer that it is about."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        traceback.clear_frames(following.__traceback__)
        following = following.__cause__ or following.__context__


def without_credentials(location: str) -> str:
    """Scheme, host and path of a redirect target; without credentials and query, which may contain state and nonces."""
    try:
        parts = urlsplit(location)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return f"{parts.scheme}://{host}{parts.path}" if host else parts.path
