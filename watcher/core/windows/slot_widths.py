"""The widths that a slot of the history may have.

Without NumPy, because the settings of the node agent import this module, and NumPy costs 15 MB on each node.
"""

from __future__ import annotations

from collections.abc import Sequence

from watcher.model import Window

POINT_RESOLUTION_S = 15
"""Seconds between two readings of a source without history."""
FINEST_S = 5
CANDIDATES = (15, 12, 10, 6, 5)
"""Widths in seconds, widest first. A minute is a whole number of each, so stored blocks begin at whole minutes."""


def usable_widths(windows: Sequence[Window]) -> tuple[int, ...]:
    """Return the candidates of which every window is a whole multiple and holds at least two, widest first."""
    return tuple(
        width
        for width in CANDIDATES
        if all(window.seconds % width == 0 and window.seconds >= 2 * width for window in windows)
    )
