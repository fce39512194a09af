"""The clock of an HTTP server, as its Date header states it."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

CLOCK_RESOLUTION_S = 1.5
"""A Date header has whole seconds, and network latency adds to that. Smaller offsets are treated as 0."""


def clock_offset(date: str | None, *, heard: float) -> float | None:
    """Remote clock minus local clock in seconds: 0 if within CLOCK_RESOLUTION_S, None without a valid Date header.
    `heard` is the local receive time (unix seconds). 0.5 s is added because the header is truncated to seconds."""
    if not date:
        return None
    try:
        offset = parsedate_to_datetime(date).timestamp() + 0.5 - heard
    except (ValueError, OverflowError):
        return None
    return 0.0 if abs(offset) < CLOCK_RESOLUTION_S else offset
