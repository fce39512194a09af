"""Whether a node has a bound, or why not.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from enum import StrEnum

from watcher.core.forecast.bound import least_history
from watcher.core.forecast.maxima import SLOT_S


class ForecastState(StrEnum):
    """State of a forecast. `bound`: there is one. `short_history`: less than a day since the first sample, or than
    three times the horizon. `no_samples`: none in the history. `pending`: the history is not evaluated yet. `disabled`:
    forecast.enabled is false. `gaps`: too few spans of the horizon's length have samples in half of their slots.
    `expired`: the newest bound is older than its horizon."""

    BOUND = "bound"
    SHORT_HISTORY = "short_history"
    NO_SAMPLES = "no_samples"
    PENDING = "pending"
    DISABLED = "disabled"
    GAPS = "gaps"
    EXPIRED = "expired"


STATES = tuple(ForecastState)
"""The states by their codes in SnapshotForecasts."""


def reason_of(state: str, horizon: int) -> str:
    """Explain why there is no bound over `horizon` hours; return a state that is not known as it is."""
    match state:
        case ForecastState.SHORT_HISTORY:
            return f"less than {span_text(least_history(horizon) * SLOT_S)} of history"
        case ForecastState.NO_SAMPLES:
            return "no samples in the history"
        case ForecastState.PENDING:
            return "the history is not evaluated yet"
        case ForecastState.GAPS:
            return f"too few spans of {horizon} h with samples in half of their slots"
        case ForecastState.EXPIRED:
            return f"the newest bound is older than {horizon} h"
    return state


def span_text(seconds: int) -> str:
    """Return a span of whole hours in words: "a day", "3 days", "36 hours"."""
    if seconds % 86400:
        return f"{seconds / 3600:g} hours"
    return "a day" if seconds == 86400 else f"{seconds // 86400} days"
