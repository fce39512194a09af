"""What goes wrong in a simulated cluster, so that there is something to be found: each fault has its node and its time.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from watcher.fleet.noise import F64, key_of

Bool = npt.NDArray[np.bool_]

WILD_SHARE = 0.66  # of the hot node's cores
IMPOSSIBLE_PERCENT = 6553.5
# From so many nodes on: fewer would be an outage of the monitoring, whose list is refused, and not a fault of one node.
FEWEST = {"hot": 2, "impossible": 4, "silent": 8, "frozen": 12}


@dataclass(frozen=True, slots=True)
class Cycle:
    """Again and again: `lasts` seconds of every `every`, for the first time from unix time `first` on."""

    first: float
    lasts: float
    every: float

    def active(self, time: F64) -> Bool:
        """Whether it is on, at each of these times."""
        on: Bool = (time >= self.first) & ((time - self.first) % self.every < self.lasts)
        return on

    def beginning(self, time: F64) -> F64:
        """When it began, at times when it is on."""
        began: F64 = time - (time - self.first) % self.every
        return began


@dataclass(frozen=True, slots=True)
class Faults:
    """The nodes with a fault each, "" where the cluster is too small for one. `hot`: a process runs wild. `silent`: its
    monitoring gives nothing for some minutes. `frozen`: its exporter repeats itself for some minutes. `impossible`: now
    and then its exporter says that it uses 6553.5 % of its CPU."""

    hot: str = ""
    silent: str = ""
    frozen: str = ""
    impossible: str = ""
    silence: Cycle = Cycle(0.0, 0.0, 1.0)
    freeze: Cycle = Cycle(0.0, 0.0, 1.0)
    nonsense: Cycle = Cycle(0.0, 0.0, 1.0)

    def told(self) -> list[str]:
        """One sentence each."""
        sentences = (
            (self.hot, "runs hot: a process has run wild"),
            (self.silent, f"goes silent for {_minutes(self.silence.lasts)} in every {_minutes(self.silence.every)}"),
            (self.frozen, f"has an exporter that freezes for {_minutes(self.freeze.lasts)} in every "
             f"{_minutes(self.freeze.every)}"),
            (self.impossible, f"says at times that it uses {IMPOSSIBLE_PERCENT:g} % of its CPU"),
        )  # fmt: skip
        return [f"{name} {what}" for name, what in sentences if name]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minutes"


def choose(names: Sequence[str], *, seed: int, begun: float) -> Faults:
    """Which of these nodes have faults, in a cluster that is looked at from unix time `begun` on: by then each has
    shown itself, for there to be something to see."""
    order = sorted(names, key=lambda name: key_of(seed, "fault", name))
    chosen = {
        fault: order[i] if len(names) >= fewest else "" for i, (fault, fewest) in enumerate(FEWEST.items())
    }  # fmt: skip
    return Faults(
        chosen["hot"],
        chosen["silent"],
        chosen["frozen"],
        chosen["impossible"],
        silence=Cycle(begun - 150.0, 390.0, 1500.0),
        freeze=Cycle(begun - 240.0, 600.0, 1800.0),
        nonsense=Cycle(begun - 3600.0, 15.0, 200.0),
    )


# --- what the monitoring shows ---------------------------------------------------------------------------------------


def shown_at(names: Sequence[str], time: F64, faults: Faults) -> F64:
    """Of which time [n] the values are that the nodes [n] show at their times [n]: a frozen exporter shows those of the
    moment in which it froze."""
    shown = np.array(time)
    if faults.frozen:
        row = names.index(faults.frozen)
        at = time[row : row + 1]
        shown[row] = np.where(faults.freeze.active(at), faults.freeze.beginning(at), at)[0]
    return shown


def heard(names: Sequence[str], time: F64, faults: Faults) -> Bool:
    """Which nodes [n] give samples at their times [n]."""
    there = np.ones(len(names), dtype=bool)
    if faults.silent:
        row = names.index(faults.silent)
        there[row] = not faults.silence.active(time[row : row + 1])[0]
    return there


def as_measured(names: Sequence[str], time: F64, percent: F64, faults: Faults) -> F64:
    """CPU percentages [n] as the exporters give them."""
    if not faults.impossible:
        return percent
    row = names.index(faults.impossible)
    if not faults.nonsense.active(time[row : row + 1])[0]:
        return percent
    measured = percent.copy()
    measured[row] = IMPOSSIBLE_PERCENT
    return measured
