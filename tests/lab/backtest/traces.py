"""Small generated traces, as files of each layout."""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.traces.files import open_writer
from lab.traces.records import EndRecord, LoadRecord, NodeRecord

SLOT = 300
DAY = 288
BEGUN = 1_400_000_100
"""A multiple of 300, but not of an hour."""
CAPACITY = 10_000.0
"""MHz of each VM, with 4 CPUs: above 2,000 MHz per CPU, so it is not multiplied."""

Usage = Mapping[str, Sequence[float | None]]


def vms(count: int, *, days: int, seed: int) -> dict[str, list[float | None]]:
    """The MHz of `count` VMs with a daily course, noise and rare peaks."""
    rng = np.random.default_rng(seed)
    slots = np.arange(days * DAY)
    found: dict[str, list[float | None]] = {}
    for i in range(count):
        course = 2000.0 + 150.0 * i + 1000.0 * np.sin(2 * np.pi * (slots / DAY + rng.random()))
        course += rng.gamma(1.0, 300.0, len(slots)) + 3000.0 * (rng.random(len(slots)) < 0.003)
        found[f"{i + 1}"] = [round(float(value), 3) for value in np.clip(course, 0.0, CAPACITY)]
    return found


def write_bitbrains(folder: Path, usage: Usage, *, name: str = "usage.csv") -> tuple[Path, Path]:
    """Write the files of usage and sizes; None is a gap. Compressed if the name ends in .gz."""
    lines = ["vm,unix_s,covers_s,cpu_mhz"]
    for vm, values in usage.items():
        lines += [f"{vm},{BEGUN + SLOT * i + 17},300,{v}" for i, v in enumerate(values) if v is not None]
    text = "\n".join(lines) + "\n"
    path, sizes = folder / name, folder / f"vms-{name.partition('.')[0]}.csv"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    sizes.write_text("vm,cpus,capacity_mhz,memory_kib\n" + "".join(f"{vm},4,{CAPACITY},1\n" for vm in usage))
    return path, sizes


def write_planetlab(path: Path, days: Mapping[str, Mapping[str, Sequence[float]]]) -> Path:
    rows = [f"{day},{vm},{';'.join(map(str, values))}\n" for day, each in days.items() for vm, values in each.items()]
    path.write_text("day,vm,cpu_percent_5min_x288\n" + "".join(rows))
    return path


def write_recording(path: Path, nodes: Mapping[str, Sequence[float]], *, cores: float = 16.0, every: int = 60) -> Path:
    """A recording with the percentages of CPU of each node, one every `every` seconds."""
    length = max(map(len, nodes.values()))
    with open_writer(path) as writer:
        for name in nodes:
            writer.write(NodeRecord(float(BEGUN), name, cores, 1 << 34))
        for i in range(length):
            for name, values in nodes.items():
                writer.write(LoadRecord(float(BEGUN + every * i), name, round(values[i] / 100.0 * cores, 4), 1 << 30))
        writer.write(EndRecord(float(BEGUN + every * length)))
    return path
