"""The section [review] of the settings: invalid and suspicious samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.quantities import MINUTE
from watcher.core.review.clocks import AHEAD_S, NAMED_S


@dataclass(frozen=True, repr=False)
class ReviewSettings(SettingsTable, section="review"):
    """How invalid and suspicious samples are handled."""

    mode: Annotated[str, values.choice(("enforce", "observe"))] = "enforce"
    """enforce: apply the remedies of the findings. observe: only report the findings."""
    carry_slots: Annotated[int, values.integer(lowest=0, highest=20)] = 2
    """Maximum age, in slots, of the earlier value that replaces a dropped sample of a node. Such values do not count as
    coverage of a window."""
    outage_fraction: Annotated[float, values.FRACTION] = 0.2
    """If more than this share of the known nodes would disappear in one refresh, their last values are kept."""
    forget_after: Annotated[float, quantities.duration(lowest=1)] = 30 * MINUTE
    """Time without samples after which a node is forgotten."""
    max_staleness_s: float = 5 * MINUTE
    """refresh.max_staleness: nodes that departed in an outage are held so long after their newest sample."""
    interval_s: float = MINUTE
    """refresh.interval, the time between two ticks."""
    max_ahead_s: float = AHEAD_S
    """Seconds by which a sample may be ahead of the local clock."""
    max_skew_s: float = NAMED_S
    """Difference in seconds between the source's clock and the local clock above which it is reported."""
    outage_nodes: int = 1
    """Least number of nodes of an outage, unless all depart."""
    jump_points: float = 20.0
    """Percentage points between a jump and the node's own median, at least."""
    jump_spreads: float = 6.0
    """Robust deviations between a jump and the node's own median, at least."""

    @property
    def enforced(self) -> bool:
        """Whether remedies are applied, not only reported; samples that the service cannot handle (not finite, too
        large for the wire format, or in the future) are always dropped."""
        return self.mode == "enforce"
