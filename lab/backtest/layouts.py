"""Reads the three layouts of traces: VMs of a month (bitbrains), VMs of single days (planetlab), and a recording of
`load-watcher record`."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from lab.backtest.tables import TableRow, read_rows
from lab.backtest.usage import MOST_DAYS, BacktestError, UsageGrid, check_size
from lab.traces.files import read_trace
from lab.traces.pattern import CPU, TracePattern, pattern_of
from watcher.arrays import F64
from watcher.core.forecast.maxima import DAY_SLOTS, SLOT_S

MHZ_PER_CPU = 2000.0
"""A capacity up to this much per CPU is that of one CPU."""
DAY_SERIES = f"cpu_percent_5min_x{DAY_SLOTS}"
_LATEST_S = 1e11  # unix seconds, the year 5138: beyond it, a time is probably in milliseconds


# --- bitbrains --------------------------------------------------------------------------------------------------------


def read_bitbrains(usage: Path, vms: Path) -> UsageGrid:
    """Read the usage (columns vm, unix_s, cpu_mhz) and the sizes of the VMs (columns vm, cpus, capacity_mhz).

    A value belongs to the slot of its time alone; the highest counts if a slot has several. Raises BacktestError.
    """
    sizes = _sizes(vms)
    names = sorted(sizes, key=lambda name: (len(name), name))  # numbers in their order
    index = {name: i for i, name in enumerate(names)}
    slots, series, values = array("q"), array("l"), array("d")
    first, last = 0, -1
    for row in read_rows(usage, ("vm", "unix_s", "cpu_mhz")):
        name = row.text("vm")
        if name not in index:
            raise row.wrong("vm", f"VM {name} is not in {vms}", "add a row for it to the file of --vms")
        slot = _slot(row)
        first, last = (slot, slot) if last < 0 else (min(first, slot), max(last, slot))
        if (last - first) * SLOT_S > MOST_DAYS * 86400:
            hint = "use unix seconds, and a trace of at most a year"
            raise row.wrong("unix_s", f"more than {MOST_DAYS} days from another row", hint)
        slots.append(slot)
        series.append(index[name])
        values.append(row.number("cpu_mhz"))
    if last < 0:
        raise BacktestError(f"{usage}: no rows after the header", "check that it is the file with the usage")
    check_size(last - first + 1, len(names), where=str(usage), hint="use fewer VMs or fewer days")
    grid = np.full((last - first + 1, len(names)), np.nan)
    np.fmax.at(grid, (np.array(slots) - first, np.array(series)), np.array(values))
    provisioned = np.array([sizes[name] for name in names])
    return _grid(tuple(names), grid, provisioned)


def _sizes(vms: Path) -> dict[str, float]:
    """The provisioned MHz of each VM."""
    sizes: dict[str, float] = {}
    for row in read_rows(vms, ("vm", "cpus", "capacity_mhz")):
        name, cpus, mhz = row.text("vm"), row.number("cpus", lowest=1.0), row.number("capacity_mhz")
        if name in sizes:
            raise row.wrong("vm", f"VM {name} has a row already", "remove one of the rows")
        if not mhz:
            raise row.wrong("capacity_mhz", "the capacity cannot be 0", "use the provisioned MHz")
        sizes[name] = mhz * cpus if mhz <= MHZ_PER_CPU * cpus else mhz
    if not sizes:
        raise BacktestError(f"{vms}: no rows after the header", "check that it is the file with the sizes of the VMs")
    return sizes


def _slot(row: TableRow) -> int:
    time = row.number("unix_s")
    if time > _LATEST_S:
        raise row.wrong("unix_s", f"{time:.0f} is out of range", "use unix seconds")
    return int(time // SLOT_S)


# --- planetlab --------------------------------------------------------------------------------------------------------


def read_planetlab(path: Path) -> UsageGrid:
    """Read VMs of single days (columns day, vm, and 288 values of percent, separated by `;`). Raises BacktestError.

    All days share the slots 0 to 287; VMs of different days are in different groups.
    """
    found: dict[tuple[str, str], F64] = {}
    for row in read_rows(path, ("day", "vm", DAY_SERIES)):
        key = row.text("day"), row.text("vm")
        if key in found:
            raise row.wrong("vm", f"VM {key[1]} of day {key[0]} has a row already", "remove one of the rows")
        parts = row.text(DAY_SERIES).split(";")
        if len(parts) != DAY_SLOTS:
            message = f"{len(parts)} values instead of {DAY_SLOTS}"
            raise row.wrong(DAY_SERIES, message, f"separate {DAY_SLOTS} values by semicolons")
        found[key] = np.array([row.parsed(DAY_SERIES, part) for part in parts])
        check_size(DAY_SLOTS, len(found), where=str(path), hint="use fewer days or fewer VMs")
    if not found:
        raise BacktestError(f"{path}: no rows after the header", "check that it is the file with the usage")
    keys = sorted(found, key=lambda key: (key[0], len(key[1]), key[1]))
    days = sorted({day for day, _ in keys})
    names = tuple(f"{day}/{vm}" for day, vm in keys)
    group = np.array([days.index(day) for day, _ in keys])
    usage = np.stack([found[key] for key in keys], axis=1)
    return UsageGrid(names, usage, np.ones(len(keys)), np.full(len(keys), 100.0), group)


# --- record -----------------------------------------------------------------------------------------------------------


def read_recorded(path: Path) -> UsageGrid:
    """Read the CPU of each node of a recording: the highest percentage of each slot, counted from the first record.

    A value is valid until the node's next one. A last slot that is not complete is omitted. Raises BacktestError, and
    TraceError for an invalid trace.
    """
    try:
        pattern = pattern_of(read_trace(path))
    except ValueError as error:
        if hasattr(error, "hint"):  # a TraceError
            raise
        raise BacktestError(f"{path}: {error}", "record for longer; see docs/tasks/record.md") from None
    slots = int(pattern.length_s // SLOT_S)
    check_size(slots, len(pattern.nodes), where=str(path), hint="use a recording of fewer nodes or fewer days")
    grid = _recorded_maxima(pattern, slots)
    return _grid(pattern.nodes, grid, np.full(len(pattern.nodes), 100.0), are_machines=True)


def _recorded_maxima(pattern: TracePattern, slots: int) -> F64:
    """The highest value of each slot and node [slots, nodes]; NaN for slots without a value."""
    grid = np.full((slots, len(pattern.nodes)), np.nan)
    for node in range(len(pattern.nodes)):
        steps = slice(int(pattern.first[node]), int(pattern.first[node + 1]))
        time, percent = pattern.time[steps], pattern.percent[CPU][steps]
        slot = (time // SLOT_S).astype(np.int64)
        inside = slot < slots
        np.fmax.at(grid[:, node], slot[inside], percent[inside])
        before = np.searchsorted(time, np.arange(slots) * float(SLOT_S), side="right") - 1
        held = np.where(before >= 0, percent[np.maximum(before, 0)] if len(percent) else np.nan, np.nan)
        grid[:, node] = np.fmax(grid[:, node], held)
    return grid


def _grid(names: tuple[str, ...], grid: F64, provisioned: F64, *, are_machines: bool = False) -> UsageGrid:
    """A grid with one group, from values [slots, n] with NaN where there is none; changes `grid`."""
    present = np.mean(~np.isnan(grid), axis=0) if len(grid) else np.zeros(len(names))
    grid[np.isnan(grid)] = 0.0
    group = np.zeros(len(names), dtype=np.int64)
    return UsageGrid(names, grid, present, provisioned, group, are_machines)
