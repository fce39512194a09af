"""Limits of the review of samples, and texts that several checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from watcher.model import Unit

JUMP_MIN_SAMPLES = 8
JUMP_FACTOR = 4.0  # absolute units: a smaller ratio between two values is not a jump
JUMP_FLOOR: Mapping[Unit, float] = {
    Unit.BYTES_PER_SECOND: 1e6,
    Unit.PACKETS_PER_SECOND: 100.0,
    Unit.WATTS: 50.0,
}
SILENT_CADENCES = 3.0
SILENT_AT_LEAST_S = 90.0
NEWEST_AHEAD_S = 5.0


@dataclass(frozen=True, slots=True)
class ReviewLimits:
    """Thresholds of the review; settings may change them.

    `mode` is "enforce" or "observe". "observe" only reports the remedies, except that samples which the service cannot
    handle (not finite, too large for the wire format, or in the future) are still dropped. `max_ahead_s`: seconds by
    which a sample may be ahead of the local clock. `carry_slots`: maximum age, in slots, of the sample that replaces a
    dropped sample. `max_skew_s`: difference in seconds between the source's clock and the local clock above which it is
    reported.

    If more than `outage_fraction` of the known nodes (and at least `outage_nodes` of them, or all) depart at once, the
    monitoring has failed, not the nodes: they are held for `max_staleness_s` and waited for until `forget_after_s`.
    `interval_s` is the time between two ticks. A jump is at least `jump_points` percentage points and `jump_spreads`
    robust deviations away from the node's own median.
    """

    mode: str = "enforce"
    max_ahead_s: float = 30.0
    carry_slots: int = 2
    max_skew_s: float = 10.0
    outage_fraction: float = 0.2
    outage_nodes: int = 1
    forget_after_s: float = 1800.0
    max_staleness_s: float = 300.0
    interval_s: float = 60.0
    jump_points: float = 20.0
    jump_spreads: float = 6.0

    @property
    def enforced(self) -> bool:
        """Whether remedies are applied, not only reported."""
        return self.mode == "enforce"


def _is(words: str) -> Callable[[float, float], str]:
    return lambda value, _time: f"{value:g} is {words}"
