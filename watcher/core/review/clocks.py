"""Bounds for the time of a sample, a document or a stored state, the same at every entrance.

What is further ahead than AHEAD_S is not used, because its clock is wrong: it would look fresh until the own clock has
caught up. Pure: no I/O, no clock.
"""

from __future__ import annotations

AHEAD_S = 30.0
"""Seconds by which a time may be ahead of the clock that judges it."""
NAMED_S = 10.0
"""Difference of two clocks in seconds from which it is reported."""
