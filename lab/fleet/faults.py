"""Faults of a simulated cluster, as examples for findings: each fault has a node and a schedule.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lab.fleet.noise import key_of
from watcher.arrays import F64, Bool

WILD_SHARE = 0.66  # share of the hot node's cores that a runaway process uses
IMPOSSIBLE_PERCENT = 6553.5
# Minimum number of nodes for each fault: in smaller clusters the fault would count as an outage of the monitoring.
FEWEST = {"hot": 2, "impossible": 4, "silent": 8, "frozen": 12}


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Periodic schedule: active for `lasts` seconds of every `every` seconds, first at unix time `first`."""

    first: float
    lasts: float
    every: float

    def active(self, time: F64) -> Bool:
        """Whether the fault is active at each of these times (unix seconds)."""
        on: Bool = (time >= self.first) & ((time - self.first) % self.every < self.lasts)
        return on

    def beginning(self, time: F64) -> F64:
        """Return the begin of the active period at each of these times (unix seconds); valid only while active."""
        began: F64 = time - (time - self.first) % self.every
        return began


@dataclass(frozen=True, slots=True)
class Faults:
    """The node of each fault, "" if the cluster is too small. `hot`: a runaway process uses CPU. `silent`: no samples
    for some minutes. `frozen`: the exporter repeats its values for some minutes. `impossible`: the exporter sometimes
    reports 6553.5 % CPU usage.
    """

    hot: str = ""
    silent: str = ""
    frozen: str = ""
    impossible: str = ""
    silence: FaultSchedule = FaultSchedule(0.0, 0.0, 1.0)
    freeze: FaultSchedule = FaultSchedule(0.0, 0.0, 1.0)
    nonsense: FaultSchedule = FaultSchedule(0.0, 0.0, 1.0)

    def descriptions(self) -> list[str]:
        """Return one sentence for each fault."""
        sentences = (
            (self.hot, "is hot: it has a runaway process"),
            (self.silent, f"sends no samples for {_minutes(self.silence.lasts)} in every "
             f"{_minutes(self.silence.every)}"),
            (self.frozen, f"has an exporter that repeats its values for {_minutes(self.freeze.lasts)} in every "
             f"{_minutes(self.freeze.every)}"),
            (self.impossible, f"sometimes reports a CPU usage of {IMPOSSIBLE_PERCENT:g} %"),
        )  # fmt: skip
        return [f"{name} {what}" for name, what in sentences if name]


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:g} minutes"


def choose(names: Sequence[str], *, seed: int, begun: float) -> Faults:
    """Choose the nodes with faults for a cluster that begins at unix time `begun`. Every fault has been active before
    that time, so that it is visible at once.
    """
    order = sorted(names, key=lambda name: key_of(seed, "fault", name))
    chosen = {
        fault: order[i] if len(names) >= fewest else "" for i, (fault, fewest) in enumerate(FEWEST.items())
    }  # fmt: skip
    return Faults(
        chosen["hot"],
        chosen["silent"],
        chosen["frozen"],
        chosen["impossible"],
        silence=FaultSchedule(begun - 150.0, 390.0, 1500.0),
        freeze=FaultSchedule(begun - 240.0, 600.0, 1800.0),
        nonsense=FaultSchedule(begun - 3600.0, 15.0, 200.0),
    )


# --- effect on samples -----------------------------------------------------------------------------------------------


def reported_time(names: Sequence[str], time: F64, faults: Faults) -> F64:
    """Return the times [n] of the values that the nodes [n] report at the times [n] (unix seconds): a frozen exporter
    reports the values of the time at which it froze.
    """
    shown = np.array(time)
    if faults.frozen:
        row = names.index(faults.frozen)
        at = time[row : row + 1]
        shown[row] = np.where(faults.freeze.active(at), faults.freeze.beginning(at), at)[0]
    return shown


def has_samples(names: Sequence[str], time: F64, faults: Faults) -> Bool:
    """Return whether each of the nodes [n] sends samples at its time [n] (unix seconds)."""
    there = np.ones(len(names), dtype=bool)
    if faults.silent:
        row = names.index(faults.silent)
        there[row] = not faults.silence.active(time[row : row + 1])[0]
    return there


def reported_cpu(names: Sequence[str], time: F64, percent: F64, faults: Faults) -> F64:
    """Return the CPU usage [n] in percent as reported by the exporters at the times [n] (unix seconds)."""
    if not faults.impossible:
        return percent
    row = names.index(faults.impossible)
    if not faults.nonsense.active(time[row : row + 1])[0]:
        return percent
    measured = percent.copy()
    measured[row] = IMPOSSIBLE_PERCENT
    return measured
