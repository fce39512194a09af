"""Options of the planner.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from watcher.core.config import quantities, values
from watcher.core.config.fields import SettingsTable


@dataclass(frozen=True, repr=False, kw_only=True)
class DecisionOptions(SettingsTable):
    """Part of [agent]: options of the planner; durations are in seconds."""

    excess: Annotated[float, values.SHARE] = 0.1
    """Fraction of the gap by which releases are enlarged and restores are reduced."""
    settle: Annotated[float, quantities.duration()] = 30.0
    """Time for throttling to take effect before pods are evicted for the same resource."""
    effect: Annotated[float, quantities.duration()] = 30.0
    """Maximum time until a new quota shows in the usage."""
    grace_slack: Annotated[float, quantities.duration()] = 30.0
    """Time beyond its grace period that an evicted pod may take to end."""
    evict_daemons: Annotated[bool, values.BOOLEAN] = False
    """Whether to evict pods of DaemonSets too; they are recreated immediately."""
    evict_unmanaged: Annotated[bool, values.BOOLEAN] = False
    """Whether to evict pods without a controller too; nothing recreates them."""
