"""Deals VMs to simulated machines at random. The same seed gives the same machines.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lab.backtest.usage import BacktestError, UsageGrid, check_size
from watcher.arrays import F64, I64

MOST_GAPS = 0.2
LEAST_USE = 0.002
"""VMs with less mean use, as a share of their capacity, are idle and are not dealt."""


@dataclass(frozen=True, slots=True)
class Machines:
    """m machines: `load` [slots, m] and `capacity` [m], the sums of their VMs in the unit of the trace. `series` is the
    number of VMs or nodes in the trace, `usable` that of those which are used."""

    names: tuple[str, ...]
    load: F64
    capacity: F64
    series: int
    usable: int


def deal(grid: UsageGrid, *, per_machine: int, deals: int, seed: int) -> Machines:
    """Deal the usable VMs of each group `deals` times, in random order, to machines of `per_machine` VMs; VMs that do
    not fill a machine are left out of that deal. Nodes are machines already. Raises BacktestError if there are none."""
    usable = _usable(grid)
    if grid.are_machines:
        if not len(usable):
            raise BacktestError(
                _none(grid, 0), "a node needs a mean of more than 0.2 % CPU, and gaps in less than 20 % of the slots"
            )
        columns = usable[:, None]
        names = tuple(grid.names[i] for i in usable)
    else:
        dealt = list(_dealt(grid, usable, per_machine=per_machine, deals=deals, seed=seed))
        if not dealt:
            raise BacktestError(_none(grid, len(usable)), f"set --per-machine to less than {per_machine}")
        names, columns = tuple(name for name, _ in dealt), np.stack([members for _, members in dealt])
    hint = "use fewer --deals, fewer VMs or a shorter trace"
    check_size(len(grid.usage), len(columns), where="the machines of all deals", hint=hint)
    capacity = grid.capacity
    load = np.stack([grid.usage[:, members].sum(axis=1) for members in columns], axis=1)
    return Machines(names, load, capacity[columns].sum(axis=1), len(grid.names), len(usable))


def _usable(grid: UsageGrid) -> I64:
    """The indices of VMs with few gaps that are not idle."""
    if not len(grid.usage):
        return np.zeros(0, dtype=np.int64)
    busy = grid.usage.mean(axis=0) > LEAST_USE * grid.capacity
    return np.flatnonzero((1.0 - grid.present < MOST_GAPS) & busy)


def _dealt(grid: UsageGrid, usable: I64, *, per_machine: int, deals: int, seed: int) -> Iterator[tuple[str, I64]]:
    """Yield the name of each machine and the indices of its VMs."""
    rng = np.random.default_rng(seed)
    groups = np.unique(grid.group[usable])
    for group in groups:
        members = usable[grid.group[usable] == group]
        prefix = f"{grid.names[members[0]].partition('/')[0]}/" if len(groups) > 1 else ""
        for number in range(1, deals + 1):
            order = members[rng.permutation(len(members))]
            for k in range(len(members) // per_machine):
                name = f"{prefix}{number}/{k + 1}"
                yield name, order[k * per_machine : (k + 1) * per_machine]


def _none(grid: UsageGrid, usable: int) -> str:
    kind = "nodes" if grid.are_machines else "VMs"
    return f"the trace has {usable:,} usable {kind} of {len(grid.names):,}, too few for one machine"
