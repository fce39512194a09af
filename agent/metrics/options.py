"""Options of the planner.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """Options of the planner.

    excess               fraction by which the gap of throttling and eviction is enlarged, and that of restoring reduced
    settle_seconds       time for throttling to take effect before pods are evicted for the same resource
    effect_seconds       maximum time until a new quota shows in the usage
    grace_slack_seconds  time beyond its grace period that an evicted pod may take to end
    evict_daemons        also evict pods of DaemonSets, which are recreated immediately
    evict_unmanaged      also evict pods without a controller, which nothing recreates
    """

    excess: float = 0.10
    settle_seconds: float = 30.0
    effect_seconds: float = 30.0
    grace_slack_seconds: float = 30.0
    evict_daemons: bool = False
    evict_unmanaged: bool = False
