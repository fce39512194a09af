"""Options of the analyzer and planner, for behavior that differs between this project and versions of Crane.

The default is the recommended behavior: the Crane design without its known faults. `DecisionOptions.upstream()`
reproduces gocrane/crane of 2024-12 (with two repairs without which it takes no action), for comparison and migration.
`DecisionOptions.v06()` counts samples as Crane v0.6.0 does.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Counting(StrEnum):
    """Rule for counting samples above and below a watermark until the verdict TRIGGERED or RESTORED."""

    LATCHED = "latched"
    """Consecutive samples; only a triggered rule is restored, in every cycle until its pods are restored in full."""
    CONSECUTIVE = "consecutive"
    """Crane v0.6: consecutive samples; restored in every cycle below, even if the rule was never triggered."""
    CUMULATIVE = "cumulative"
    """Current Crane: samples below do not reset the count of samples above; restored once per episode."""


class Order(StrEnum):
    """The chains of sort keys (agent/metrics/sorters.py): `seed` of this project, `upstream` of Crane."""

    SEED = "seed"
    UPSTREAM = "upstream"


class UpstreamQuirk(StrEnum):
    """Behaviors of Crane that differ from this project's; each can be enabled separately."""

    SCHEDULING = "scheduling"
    """The first triggered or restored rule decides about new pods, a restore within the cool-down restarts the
    cool-down, and throttled pods are restored without waiting for it."""
    GRACE = "grace"
    """The action's grace period is ignored."""
    NOT_IN = "not-in"
    """If a scope excludes several priorities, only the last one is excluded."""
    ANY_MISSED = "any-missed"
    """A missing metric that no rule names counts as missed too, and all pods are acted on."""
    RESTORE_MORE = "restore-more"
    """The excess factor enlarges the gap of a restore instead of reducing it."""
    OWN_GAP = "own-gap"
    """The release of a pod reduces the gap of one metric only."""
    FUTILE = "futile"
    """Pods are evicted even if their release is zero or unknown."""
    QUOTAS = "quotas"
    """CPU quotas are computed as in Crane (agent/metrics/upstream_quota.py)."""
    RESTORE_FORWARD = "restore-forward"
    """Pods are restored in the order in which they are throttled, not in reverse."""


@dataclass(frozen=True, slots=True)
class DecisionOptions:
    """Options of the analyzer and planner.

    excess               fraction by which the gap of throttling and eviction is enlarged, and that of restoring reduced
    settle_seconds       time for throttling to take effect before pods are evicted for the same resource
    effect_seconds       maximum time until a new quota shows in the usage
    grace_slack_seconds  time beyond its grace period that an evicted pod may take to end
    evict_daemons        also evict pods of DaemonSets, which are recreated immediately
    """

    excess: float = 0.10
    settle_seconds: float = 30.0
    effect_seconds: float = 30.0
    grace_slack_seconds: float = 30.0
    evict_daemons: bool = False
    counting: Counting = Counting.LATCHED
    order: Order = Order.SEED
    quirks: frozenset[UpstreamQuirk] = frozenset()

    @classmethod
    def upstream(cls, *, excess: float = 0.10) -> Self:
        """Behave as gocrane/crane 2b0ddae8, except for two faults: it would never throttle, and restoring crashes."""
        return cls(
            excess=excess,
            settle_seconds=0.0,
            evict_daemons=True,
            counting=Counting.CUMULATIVE,
            order=Order.UPSTREAM,
            quirks=frozenset(UpstreamQuirk),
        )

    @classmethod
    def v06(cls) -> Self:
        """Count samples and apply the cool-down as Crane v0.6.0 does; everything else has its default."""
        return cls(counting=Counting.CONSECUTIVE)
