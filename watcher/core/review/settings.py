"""The section [review] of the settings: invalid and suspicious samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.quantities import MINUTE


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
