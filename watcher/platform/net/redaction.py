"""Errors without the answers that they are about, and locations without credentials."""

from __future__ import annotations

import traceback
from urllib.parse import urlsplit


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
