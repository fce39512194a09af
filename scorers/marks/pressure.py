"""The pressure of each node, 0 to 1: a signal with which a balancer without memory comes to rest.

A balancer that compares a load with thresholds evicts in loops: the load moves around the threshold, the window shows a
move only after its length, and the pod may be placed on a node that looks idle for the same reason. The pressure
therefore has three ranges with gaps between them:

    cold     0    to 0.3   far enough below the mean of the fleet: the node may receive pods
    middle   0.4  to 0.6   leave the node alone
    hot      0.7  to 1     far enough above the mean: a pod may be moved away

One resource makes a node hot. A cold node is below the mean of the fleet in the mean over the resources, and clearly
above it in none. A node changes its range only beyond the end of a hysteresis. After a move from or to the node, it is
in the middle until its windows show the result, and for longer after each further move. It is hot again only if its
load rises clearly above what it was during that time, or after it had cooled; and it is hot for some minutes only. So
with a constant demand, a node that moves do not cool is left alone. Thresholds in the gaps, 0.35 and 0.65, are crossed
only by a change of range.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scorers.marks.excess import FleetLoad, distances, excess, with_hysteresis
from watcher.arrays import F64, I64, Bool

COLD, MIDDLE, HOT = -1, 0, 1
RANGES = ((0.0, 0.3), (0.4, 0.6), (0.7, 1.0))


@dataclass(frozen=True, slots=True)
class PressureRules:
    """A node is hot from `hot` points of excess until it is below `cooled`. It is cold from `cold` points, in the mean
    over the resources, until it is above `warmed`; `slack` points of excess count as `warmed`. `span` points above the
    mean are a pressure of 1. A move keeps the node in the middle for `cooldown_s` seconds, each further one of the last
    `memory_s` seconds doubles it, up to `longest_s`. Until it has cooled, such a node is hot again only from `rise`
    points above its highest excess of that time. The same applies to a node that was hot for `act_s` seconds without
    a move."""

    hot: float = 10.0
    cooled: float = 5.0
    cold: float = -5.0
    warmed: float = 0.0
    slack: float = 10.0
    span: float = 50.0
    rise: float = 5.0
    act_s: float = 600.0
    cooldown_s: float = 1200.0
    longest_s: float = 7200.0
    memory_s: float = 21600.0


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves from or to each of n nodes: the time of the last one (unix seconds, -inf if there was none) and their
    number within the memory of the rules; each [n]. A time with the number 0 is that from which moves are known."""

    last: F64
    count: I64

    @classmethod
    def none(cls, nodes: int) -> Moves:
        """No moves of this number of nodes."""
        return cls(np.full(nodes, -np.inf), np.zeros(nodes, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class PressureState:
    """What the pressure of n nodes depends on beside their load, each [n]: the range (COLD, MIDDLE or HOT; MIDDLE for
    unknown nodes) without cool-downs; since when a hot node is hot (unix seconds); and the highest excess that was
    answered since the node had cooled, by a move or by a time without one (-inf: none)."""

    ranges: I64
    hot_since: F64
    answered: F64

    @classmethod
    def start(cls, nodes: int) -> PressureState:
        """The state of this number of nodes before the first pressure."""
        return cls(np.zeros(nodes, dtype=np.int64), np.full(nodes, np.inf), np.full(nodes, -np.inf))


@dataclass(frozen=True, slots=True)
class NodePressures:
    """The pressure of n nodes, NaN where it is unknown, the state for the next call, and the nodes in a cool-down."""

    values: F64
    state: PressureState
    cooling: Bool


def next_pressures(
    load: FleetLoad, before: PressureState, moves: Moves, rules: PressureRules, now: float
) -> NodePressures:
    """Return the pressures, from the state that the last call returned."""
    known = load.known
    above = np.where(known, excess(load), 0.0)
    below = np.maximum(
        np.where(known, distances(load), 0.0).sum(axis=0) / max(1, len(load.windows)), above - rules.slack
    )
    cooling = known & (now < quiet_until(moves, rules))
    tried = (before.ranges == HOT) & (now - before.hot_since >= rules.act_s)
    answered = np.where(known & ~cooling & (above < rules.cooled), -np.inf, before.answered)
    was_moved = cooling & (moves.count > 0)
    answered = np.where(was_moved | tried, np.maximum(answered, above), answered)
    reached = np.where(
        above >= np.maximum(rules.hot, answered + rules.rise), HOT, np.where(below > rules.warmed, MIDDLE, COLD)
    )
    left = np.where(below <= rules.cold, COLD, np.where((above < rules.cooled) | cooling | tried, MIDDLE, HOT))
    ranges = np.where(
        known, with_hysteresis(before.ranges, np.where(cooling, np.minimum(reached, MIDDLE), reached), left), MIDDLE
    )
    hot_since = np.where(ranges != HOT, np.inf, np.minimum(before.hot_since, now))
    shown = np.where(cooling, MIDDLE, ranges)
    low, high = np.array(RANGES).T[:, shown - COLD]
    values = np.clip(0.5 + np.where(ranges == COLD, below, above) / (2.0 * rules.span), low, high)
    return NodePressures(np.where(known, values, np.nan), PressureState(ranges, hot_since, answered), cooling)


def quiet_until(moves: Moves, rules: PressureRules) -> F64:
    """Return when the cool-down of each node ends (unix seconds) [n]; -inf for nodes without moves."""
    length = rules.cooldown_s * 2.0 ** np.clip(moves.count - 1, 0, 16)
    ends: F64 = moves.last + np.minimum(length, rules.longest_s)
    return ends
