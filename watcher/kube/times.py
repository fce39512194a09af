"""Kubernetes' times and durations, as its JSON has them.

Pure: text in, numbers out.
"""

from __future__ import annotations

import re
from datetime import datetime

_DURATION = re.compile(r"(?:(?P<h>\d{1,9})h)?(?:(?P<m>\d{1,9})m(?!s))?(?:(?P<s>\d{1,9}(?:\.\d{0,9})?)s)?", re.ASCII)


def read_time(text: str) -> float | None:
    """Unix seconds of an RFC 3339 time, None if it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if at.tzinfo is None else at.timestamp()


def read_duration(text: str) -> float | None:
    """Seconds of a Go duration of hours, minutes and seconds ("1m0.5s"), None for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        return None
    hours, minutes, seconds = (float(match[unit] or 0) for unit in "hms")
    return 3600 * hours + 60 * minutes + seconds
