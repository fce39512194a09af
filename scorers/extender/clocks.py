"""The clock of this process against the clock by which the watcher states times.

A document states the time of its newest sample, and its age by the watcher's clock. Both must agree with the clock of
this process: plug-ins compare the times of samples with the times at which pods were scheduled.
"""

from __future__ import annotations

from watcher.client import Columns
from watcher.core.review.clocks import AHEAD_S, NAMED_S


class ClockComparison:
    """Compares the clocks with each document. `offset_s` is the clock of this process minus that of the watcher in
    seconds, `problem` says why the document is not used, and `difference` that the clocks differ; "" if not.

    A difference ends at half of its bound, so that it is stated once.
    """

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.difference = ""
        self.problem = ""

    def compare(self, columns: Columns, *, now: float, monotonic: float, max_staleness: float) -> None:
        """Compare the clocks at `now` (unix seconds of this process) and `monotonic` (seconds)."""
        age, own_age = columns.age(monotonic), now - columns.window_end
        self.offset_s = own_age - age
        named = NAMED_S / 2 if self.difference else NAMED_S
        self.difference = ""
        if abs(self.offset_s) > named:
            side = "ahead of" if self.offset_s > 0 else "behind"
            self.difference = (
                f"the clock of this process is {abs(self.offset_s):.0f} s {side} the clock of the watcher: check time "
                "synchronization on both"
            )
        if self.problem:
            differ = not -AHEAD_S / 2 <= self.offset_s <= max_staleness / 2
        else:
            differ = own_age < -AHEAD_S or self.offset_s > max_staleness
        self.problem = ""
        if differ:
            self.problem = (
                f"the newest sample is {age:.0f} s old by the clock of the watcher, {own_age:.0f} s by the clock of "
                "this process: the clocks differ"
            )
