"""Converts Alibaba's cluster-trace-v2018 to a trace: machines become nodes, containers become pods.

The tables have no header; TABLES lists the columns that are read (https://github.com/alibaba/clusterdata, schema.txt).
Times are seconds since the start of Alibaba's trace and are not changed. Memory is given in percent of the largest
machine, which is assumed to have LARGEST bytes. The usage of a container is interpreted as a percentage of its request.
The usage of machines beyond their containers, mostly batch jobs, becomes the load of the node.

Usage is averaged over five minutes. container_usage has tens of gigabytes: it is read once, row by row, and only rows
of the selected machines and hours are stored.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.traces.parsing import LARGEST as LARGEST_NUMBER
from lab.traces.parsing import TraceError
from lab.traces.records import (
    Begin,
    BindRecord,
    EndRecord,
    LoadRecord,
    NodeRecord,
    PodRecord,
    Record,
    RemoveRecord,
    UsageRecord,
)

TABLES: Mapping[str, Mapping[str, int]] = {
    "machine_meta": {"machine_id": 0, "cpu_num": 4, "mem_size": 5},
    "machine_usage": {"machine_id": 0, "time_stamp": 1, "cpu_util_percent": 2, "mem_util_percent": 3},
    "container_meta": {
        name: place
        for place, name in enumerate(
            ("container_id", "machine_id", "time_stamp", "app_du", "status", "cpu_request", "cpu_limit", "mem_size")
        )
    },
    "container_usage": {"container_id": 0, "time_stamp": 2, "cpu_util_percent": 3, "mem_util_percent": 4},
}
"""Name of a table -> the columns that are read -> their index."""
LARGEST = 512 * 2**30
EVERY_S = 300.0
ENDED = "stopped"
SOURCE = "https://github.com/alibaba/clusterdata/blob/master/cluster-trace-v2018/trace_2018.md"


Tell = Callable[[str], object]


def convert(
    directory: Path, *, machines: int, start: float, hours: float, on_progress: Tell = lambda _: None
) -> Iterator[Record]:
    """Convert the first `machines` machines by name, from hour `start` for `hours` hours. Reads DIRECTORY/TABLE.csv or
    .csv.gz, and passes a progress message for each file to `on_progress`. Raises TraceError."""
    begins, ends = 3600.0 * start, 3600.0 * (start + hours)
    tables = _Tables(directory, on_progress)
    nodes = _nodes(tables, machines)
    pods = _pods(tables, nodes, begins, ends)
    _read_pod_usage(tables, pods, begins, ends)
    load = _load(tables, nodes, begins, ends)
    note = f"Alibaba cluster-trace-v2018: {len(nodes)} machines, {len(pods)} containers, from hour {start:g}"
    yield Begin(begins, note)
    for name, node in sorted(nodes.items()):
        yield NodeRecord(begins, name, node.cores, node.bytes)
    events = [_events(uid, pod, begins, ends) for uid, pod in sorted(pods.items())]
    yield from heapq.merge(*events, _load_records(nodes, pods, load, begins), key=lambda record: record.time)
    yield EndRecord(ends)


@dataclass(frozen=True, slots=True)
class _Machine:
    cores: float
    bytes: int


Sums = dict[float, tuple[float, float, int]]
"""Start of a five-minute slot (seconds) -> sum of CPU percentages, sum of memory percentages, number of readings."""


@dataclass(slots=True)
class _AlibabaContainer:
    node: str
    time: float
    group: str
    cores: float
    limit: float
    bytes: int
    ended: float | None = None
    usage: Sums = field(default_factory=dict)


# --- tables ----------------------------------------------------------------------------------------------------------


class _TableRow:
    """A row of a table with access to columns by name."""

    def __init__(self, table: str, where: str, cells: list[str]) -> None:
        self._places = TABLES[table]
        self._where = where
        self._cells = cells

    def text(self, column: str) -> str:
        place = self._places[column]
        if place >= len(self._cells):
            raise TraceError(
                f"{self._where}, column {column}", f"only {len(self._cells)} columns", f"see {SOURCE} for the tables"
            )
        return self._cells[place]

    def number(self, column: str) -> float | None:
        """The number in a column, None if empty. Invalid percentages of the original (-1, 101) are returned as is."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not -LARGEST_NUMBER <= value <= LARGEST_NUMBER:
            raise TraceError(f"{self._where}, column {column}", f"{text[:40]!r} is not a number", f"see {SOURCE}")
        return value


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables in a directory."""

    directory: Path
    tell: Tell

    def rows(self, table: str) -> Iterator[_TableRow]:
        names = (f"{table}.csv", f"{table}.csv.gz")
        found = [path for name in names if (path := self.directory / name).exists()]
        if not found:
            what = f"neither {' nor '.join(names)} found"
            raise TraceError(str(self.directory), what, f"see {SOURCE} for the download")
        path = found[0]
        self.tell(f"reading {path}")
        try:
            with path.open("rb") as raw:
                content = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
                with io.TextIOWrapper(content, encoding="utf-8", newline="") as lines:
                    rows = csv.reader(lines, strict=True)
                    for cells in rows:
                        yield _TableRow(table, f"{path}, line {rows.line_num}", cells)
        except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
            raise TraceError(str(path), f"cannot be read: {error}", "download the file again") from None


def _nodes(tables: _Tables, machines: int) -> dict[str, _Machine]:
    """The first `machines` machines by name, each with its last listed size."""
    found: dict[str, _Machine] = {}
    for row in tables.rows("machine_meta"):
        cores, size = row.number("cpu_num"), row.number("mem_size")
        if cores and size and cores > 0.0 and size > 0.0:
            found[row.text("machine_id")] = _Machine(cores, _bytes(size))
    if not found:
        raise TraceError(str(tables.directory), "machine_meta has no machine with a size", f"see {SOURCE}")
    return {name: found[name] for name in sorted(found)[:machines]}


def _pods(tables: _Tables, nodes: Mapping[str, _Machine], begins: float, ends: float) -> dict[str, _AlibabaContainer]:
    """The containers whose first row names one of `nodes` and that exist between `begins` and `ends` (seconds)."""
    found: dict[str, _AlibabaContainer] = {}
    for row in tables.rows("container_meta"):
        uid, time = row.text("container_id"), row.number("time_stamp")
        if row.text("machine_id") not in nodes or time is None:
            continue
        if (known := found.get(uid)) is None:
            cores, limit, size = (row.number(each) or 0.0 for each in ("cpu_request", "cpu_limit", "mem_size"))
            found[uid] = _AlibabaContainer(
                row.text("machine_id"), time, row.text("app_du"), cores / 100.0, limit / 100.0, _bytes(size)
            )
        elif row.text("status") == ENDED and time > known.time:
            known.ended = time if known.ended is None else min(known.ended, time)
    return {uid: pod for uid, pod in found.items() if pod.time < ends and (pod.ended is None or pod.ended > begins)}


def _read_pod_usage(tables: _Tables, pods: Mapping[str, _AlibabaContainer], begins: float, ends: float) -> None:
    for row in tables.rows("container_usage"):
        if (pod := pods.get(row.text("container_id"))) is not None:
            _count(row, pod.usage, begins, ends)


def _load(tables: _Tables, nodes: Mapping[str, _Machine], begins: float, ends: float) -> dict[str, Sums]:
    """The total usage of machines, by name and slot."""
    found: dict[str, Sums] = {name: {} for name in nodes}
    for row in tables.rows("machine_usage"):
        if (sums := found.get(row.text("machine_id"))) is not None:
            _count(row, sums, begins, ends)
    return found


def _count(row: _TableRow, sums: Sums, begins: float, ends: float) -> None:
    """Add a row to its five-minute slot. Rows with missing or invalid values, or outside of the hours, are skipped."""
    time, cpu, memory = (row.number(each) for each in ("time_stamp", "cpu_util_percent", "mem_util_percent"))
    if time is None or cpu is None or memory is None or not begins <= time < ends or min(cpu, memory) < 0.0:
        return
    slot = begins + (time - begins) // EVERY_S * EVERY_S
    before = sums.get(slot, (0.0, 0.0, 0))
    sums[slot] = before[0] + cpu, before[1] + memory, before[2] + 1


def _bytes(size: float) -> int:
    return max(0, round(size / 100.0 * LARGEST))


# --- records ---------------------------------------------------------------------------------------------------------


def _events(uid: str, pod: _AlibabaContainer, begins: float, ends: float) -> Iterator[Record]:
    """The records of one container in order of time."""
    time = max(pod.time, begins)
    yield PodRecord(
        time,
        uid,
        f"{_label(pod.group)}/{_label(uid)}",
        pod.cores,
        pod.bytes,
        pod.limit or None,
        pod.bytes or None,
        owner=f"ReplicaSet/{_label(pod.group)}",
    )
    yield BindRecord(time, uid, pod.node)
    for slot, used in sorted(_used(pod).items()):
        if pod.ended is None or slot < pod.ended:
            yield UsageRecord(max(slot, time), uid, round(used[0], 4), round(used[1]))
    if pod.ended is not None and pod.ended < ends:
        yield RemoveRecord(pod.ended, uid)


def _used(pod: _AlibabaContainer) -> dict[float, tuple[float, float]]:
    """The average usage (cores, bytes) of a container by slot."""
    return {
        slot: (pod.cores * cpu / count / 100.0, pod.bytes * memory / count / 100.0)
        for slot, (cpu, memory, count) in pod.usage.items()
    }


def _load_records(
    nodes: Mapping[str, _Machine], pods: Mapping[str, _AlibabaContainer], load: Mapping[str, Sums], begins: float
) -> Iterator[Record]:
    """The usage of machines beyond their containers, one record per machine and slot."""
    of_pods: dict[tuple[str, float], tuple[float, float]] = {}
    for pod in pods.values():
        for slot, (cores, size) in _used(pod).items():
            before = of_pods.get((pod.node, slot), (0.0, 0.0))
            of_pods[pod.node, slot] = before[0] + cores, before[1] + size
    found = []
    for name, sums in load.items():
        for slot, (cpu, memory, count) in sums.items():
            node, theirs = nodes[name], of_pods.get((name, slot), (0.0, 0.0))
            cores = max(0.0, node.cores * cpu / count / 100.0 - theirs[0])
            size = max(0.0, node.bytes * memory / count / 100.0 - theirs[1])
            found.append(LoadRecord(slot, name, round(cores, 4), round(size)))
    yield from sorted(found, key=lambda record: (record.time, record.node))


def _label(text: str) -> str:
    """The text as a valid Kubernetes name."""
    return text.replace("_", "-").replace("/", "-").lower() or "none"
