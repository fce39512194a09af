"""Times and durations in the JSON format of Kubernetes.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
_PART = re.compile(
    rf"(\d{{1,12}}(?:\.\d{{0,9}})?|\.\d{{1,9}})({'|'.join(sorted(_UNITS_S, key=len, reverse=True))})", re.ASCII
)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def read_time(text: str) -> float | None:
    """Unix seconds of an RFC 3339 time; None if the text is not one."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if at.tzinfo is None else at.timestamp()


def time_text(seconds: float) -> str:
    """The RFC 3339 text of unix seconds, in UTC and whole seconds: 2024-05-01T12:00:00Z."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_duration(text: str) -> float | None:
    """Seconds of a Go duration ("1m0.5s", "1.5h", "300ms", "0"); None for other text and for negative durations."""
    if text == "0":
        return 0.0
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
