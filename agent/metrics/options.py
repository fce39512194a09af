"""How the agent decides where documents, versions and good sense differ: one default, and the others by name.

The default is what this product means to be right: the seed's framework without the faults that were found in it.
`Options.upstream()` does what gocrane/crane of 2024-12 does (with its two repairs without which it does nothing), for
comparing and for those who move over; `Options.v06()` counts as its first release did.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Counting(StrEnum):
    """How samples above and below become "triggered" and "restored"."""

    LATCHED = "latched"
    """In a row, and only what was triggered is restored, in every cycle until that is done."""
    CONSECUTIVE = "consecutive"
    """v0.6: in a row; restored in every cycle below, also when nothing was ever triggered."""
    CUMULATIVE = "cumulative"
    """Today's upstream: a dip does not reset the count of those above; restored once an episode."""


class Order(StrEnum):
    """Whose chains of sort keys (agent/metrics/sorters.py)."""

    SEED = "seed"
    UPSTREAM = "upstream"


class Quirk(StrEnum):
    """What upstream does and this product does not, each by itself."""

    SCHEDULING = "scheduling"
    """Merges rules for scheduling in order, restarts the cool-down when it asks to restore too early, and lets
    throttled pods recover without waiting for it."""
    GRACE = "grace"
    """Forgets the action's grace period."""
    NOT_IN = "not-in"
    """Of several priorities that a scope excludes only the last counts."""
    ANY_MISSED = "any-missed"
    """A metric that no rule names counts as missed too, and then all pods are acted on."""
    RESTORE_MORE = "restore-more"
    """The excess factor makes a restore larger, not smaller."""
    OWN_GAP = "own-gap"
    """A release closes the gap of one metric only."""
    FUTILE = "futile"
    """Evicts pods that free nothing, or of which nobody knows what they free."""
    QUOTAS = "quotas"
    """Its arithmetic of quotas (agent/metrics/upstream_quota.py)."""
    RESTORE_FORWARD = "restore-forward"
    """The first pod to be throttled is the first to be restored."""


@dataclass(frozen=True, slots=True)
class Options:
    """`excess` widens the gap of throttling and evicting, and narrows that of restoring, by this share. Seconds:
    `settle_seconds` is what throttling gets to show its effect before somebody is evicted for the same resource;
    `effect_seconds` how long a new quota may take to show in the usage; `grace_slack_seconds` how much longer than its
    grace period an evicted pod may take to go. `evict_daemons`: also pods of DaemonSets, which come back at once."""

    excess: float = 0.10
    settle_seconds: float = 30.0
    effect_seconds: float = 30.0
    grace_slack_seconds: float = 30.0
    evict_daemons: bool = False
    counting: Counting = Counting.LATCHED
    order: Order = Order.SEED
    quirks: frozenset[Quirk] = frozenset()

    @classmethod
    def upstream(cls, *, excess: float = 0.10) -> Self:
        """As gocrane/crane 2b0ddae8 decides, repaired where it would never throttle and where restoring crashes."""
        return cls(
            excess=excess,
            settle_seconds=0.0,
            evict_daemons=True,
            counting=Counting.CUMULATIVE,
            order=Order.UPSTREAM,
            quirks=frozenset(Quirk),
        )

    @classmethod
    def v06(cls) -> Self:
        """Counting and cool-down as in v0.6.0; everything else as by default."""
        return cls(counting=Counting.CONSECUTIVE)
