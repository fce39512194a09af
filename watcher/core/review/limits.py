"""Limits of the review of samples, and texts that several checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from watcher.model import Unit

JUMP_MIN_SAMPLES = 8
JUMP_FACTOR = 4.0  # absolute units: less than this ratio between two values is no candidate
JUMP_FLOOR: Mapping[Unit, float] = {
    Unit.BYTES_PER_SECOND: 1e6,
    Unit.PACKETS_PER_SECOND: 100.0,
    Unit.WATTS: 50.0,
}
SILENT_CADENCES = 3.0
SILENT_AT_LEAST_S = 90.0
NEWEST_AHEAD_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the review tolerates. The defaults are the product's; settings may change them.

    `mode` is "enforce" or "observe": to observe is to report what would be done, and to do only what must be done lest
    the service breaks (what is not a finite number, does not fit on the wire, or lies in the future is still refused).
    `max_ahead_s` is how far ahead of our clock a sample may be. `carry_slots` is how many slots a dropped sample may be
    replaced by the one before it. `max_skew_s` is how far the source's clock may be from ours before we say so.

    `outage_fraction` of the known nodes (and at least `outage_nodes` of them, or all) leaving at once is an outage of
    the monitoring and not of the nodes; they are held until `max_staleness_s` and waited for until `forget_after_s`.
    `interval_s` is the distance of two ticks. A jump is at least `jump_points` (of percent) and `jump_spreads` robust
    deviations away from the node's own median.
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
        """Whether remedies are applied, or only named."""
        return self.mode == "enforce"


def _is(words: str) -> Callable[[float, float], str]:
    return lambda value, _time: f"{value:g} is {words}"
