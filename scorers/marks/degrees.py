"""Which nodes have soft taints, and how many.

kube-scheduler counts the PreferNoSchedule taints that a pod does not tolerate, and scores a node by the share that it
has of the highest count (TaintToleration, weight 3). A node of degree 2 has two taints. Taints are unique by key and
effect, so each degree has a key of its own.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from scorers.marks.excess import FleetLoad, excess, paused, with_hysteresis
from watcher.arrays import F64, I64
from watcher.core.kubernetes.objects import Taint

KEYS = ("load-watcher.io/hot", "load-watcher.io/hot-2", "load-watcher.io/hot-3")
"""Keys of the taints of a node of degree 3; one of degree 1 has only the first."""
EFFECT = "PreferNoSchedule"


@dataclass(frozen=True, slots=True)
class DegreeRules:
    """A degree begins at `begins` points of excess (one value per degree, ascending) and ends `release` points below
    it. At most a `share` of the nodes is tainted, but always one may be. A node is changed once in `pause_s`
    seconds."""

    begins: tuple[float, ...] = (10.0, 20.0, 30.0)
    release: float = 5.0
    share: float = 0.25
    pause_s: float = 600.0


def next_degrees(load: FleetLoad, before: I64, changed_at: F64, rules: DegreeRules, now: float) -> I64:
    """Return the degree of each node, 0 to 3 [n], from those `before` [n]; `changed_at` [n] as in `paused`.

    Unknown nodes have degree 0 at once. Of more hot nodes than the share allows, those with the highest excess are
    tainted; a node that is already tainted counts as `release` points hotter.
    """
    above = excess(load)
    known = ~np.isnan(above)
    held = known & paused(changed_at, now, rules.pause_s)
    begins = np.array(rules.begins)
    safe = np.where(known, above, -np.inf)
    reached = np.searchsorted(begins, safe, side="right")
    left = np.searchsorted(begins - rules.release, safe, side="right")
    wanted = np.where(held, before, with_hysteresis(before, reached, left))
    order = np.lexsort((np.array(load.names), -(safe + rules.release * (before > 0)), ~(held & (before > 0))))
    tainted = order[wanted[order] > 0]
    most = max(1, int(rules.share * len(load.names)))
    wanted[tainted[most:]] = np.where(held, before, 0)[tainted[most:]]
    return wanted


def taints_of(degree: int) -> list[Taint]:
    """Return the taints of a node of this degree."""
    return [Taint(key, EFFECT) for key in KEYS[:degree]]


def degree_of(taints: Collection[Taint]) -> int:
    """Return how many of the taints are marks."""
    return sum(taint.key in KEYS and taint.effect == EFFECT for taint in taints)
