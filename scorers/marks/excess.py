"""By how much the load of each node is above that of the fleet.

Marks are relative to the fleet: a threshold in percent would mark no node of an idle fleet and all of a busy one, and
neither helps a scheduler to choose. For the same reason, a fleet with the same load everywhere has no excess.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watcher.arrays import F64, I64, Bool
from watcher.model import MetricType

LEAST_KNOWN = 0.5
"""Share of the nodes below which nothing is known of the fleet: a mark would then only separate the nodes that are
measured from those that are not."""


LOWEST = {MetricType.CPU: 40.0, MetricType.MEMORY: 60.0}
"""Load in percent below which a node is not hot, by resource; memory in use is seldom given back."""


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The load of n nodes in percent: `windows` [resources, n], and `bounds` [resources, n], the forecast bounds, NaN
    where there is none (without forecasts: all). `names` are unique. A node is unknown if one of its windows is NaN. A
    load below `lowest` [resources] percent is not hot, whatever the rest of the fleet has: such a node has room."""

    names: Sequence[str]
    windows: F64
    bounds: F64
    lowest: F64

    @property
    def known(self) -> Bool:
        """Whether the load of each node is known [n]; no node is if fewer than LEAST_KNOWN of them are."""
        known: Bool = np.logical_and.reduce(~np.isnan(self.windows), axis=0)
        enough = len(self.windows) > 0 and np.count_nonzero(known) >= LEAST_KNOWN * len(known)
        return known if enough else np.zeros(len(self.names), dtype=np.bool_)

    @property
    def worst(self) -> F64:
        """Return the highest load or bound of each node in percent [n], NaN for unknown nodes."""
        highest = np.fmax.reduce(np.concatenate([self.windows, self.bounds]), axis=0, initial=np.nan)
        return np.where(self.known, highest, np.nan)


def distances(load: FleetLoad) -> F64:
    """Return by how many percentage points each node is above the mean of the fleet [resources, n], for the measure
    (window or bound) in which it is higher above; negative if it is below in both. NaN for unknown nodes. Loads below
    `lowest` are at most 0 points above."""
    known = load.known
    found = np.full_like(load.windows, np.nan)
    for measure in (load.windows, load.bounds):
        for i, row in enumerate(np.where(known, measure, np.nan)):
            present = ~np.isnan(row)
            if present.any():
                distance = row - row[present].mean()
                room = row < load.lowest[i]
                found[i] = np.fmax(found[i], np.where(room, np.minimum(distance, 0.0), distance))
    return found


def excess(load: FleetLoad) -> F64:
    """Return the distance of each node from the fleet for the resource in which it is highest above [n]."""
    return np.max(distances(load), axis=0, initial=-np.inf) if len(load.windows) else np.full(len(load.names), np.nan)


def paused(changed_at: F64, now: float, pause_s: float) -> Bool:
    """Return whether each node was changed less than `pause_s` seconds ago [n]; `changed_at` in unix seconds, -inf for
    nodes that were not. A time after `now` (the clock was set back) does not count."""
    age = now - changed_at
    return (age >= 0) & (age < pause_s)


def with_hysteresis(level: I64, begins: I64, ends: I64) -> I64:
    """Return the new levels [n]: at least `begins`, where a rise is due, and at most `ends`, where a fall is."""
    return np.maximum(np.minimum(level, ends), begins)
