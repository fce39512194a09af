"""Counts samples and applies the cool-down as the agent of Crane v0.6.0 does, for one rule.

Consecutive samples count; a rule is restored in each cycle with enough samples below, also if it never was triggered.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class V06Decision:
    """The decision of one cycle; `may_restore`: throttled pods get a step back."""

    triggered: bool
    restored: bool
    disable: bool
    may_restore: bool


@dataclass(slots=True)
class V06Rule:
    """Thresholds in samples and the cool-down in seconds, with the counts so far."""

    avoidance_threshold: int
    restore_threshold: int
    cool_down_seconds: float
    above: int = 0
    below: int = 0
    last_triggered: float | None = None

    def analyze(self, is_above: bool, now: float) -> V06Decision:
        """Count one more sample."""
        self.above = self.above + 1 if is_above else 0
        self.below = 0 if is_above else self.below + 1
        triggered = is_above and self.above >= self.avoidance_threshold
        restored = not is_above and self.below >= self.restore_threshold
        if triggered:
            self.last_triggered = now
        over = self.last_triggered is None or now > self.last_triggered + self.cool_down_seconds
        return V06Decision(triggered, restored, triggered, restored and over)
