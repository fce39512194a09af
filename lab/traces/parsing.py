"""Parses the rows of a trace. Errors contain the line, the column and a hint.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from lab.traces.records import (
    COLUMNS,
    MOST_PODS,
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
from watcher.core.messages import nearest

LARGEST = 1e18
"""Maximum of all numbers in a trace."""
MAX_QUOTED = 60  # maximum length of an invalid value quoted in an error
DOCUMENTED = "see docs/concepts/simulation.md#format for the columns of each record"


class TraceError(ValueError):
    """An invalid or unreadable trace. The message contains the file, if known the line and column, and the problem;
    `hint` describes a fix."""

    def __init__(self, where: str, message: str, hint: str) -> None:
        super().__init__(f"{where}: {message}")
        self.hint = hint


Fields = tuple[str, ...]
_NEEDED: dict[str, tuple[str, ...]] = {
    "trace": (),
    "node": ("node", "cpu", "memory"),
    "load": ("node",),
    "pod": ("uid", "pod"),
    "usage": ("uid",),
    "bind": ("uid", "node"),
    "remove": (),
    "end": (),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "trace": ("note",),
    "node": ("allocatable_cpu", "allocatable_memory", "pods"),
    "load": ("cpu", "memory"),
    "pod": ("cpu", "memory", "cpu_limit", "memory_limit", "lifetime", "priority", "owner"),
    "usage": ("cpu", "memory"),
    "bind": (),
    "remove": ("uid", "node"),
    "end": (),
}
_AT = {name: i for i, name in enumerate(COLUMNS)}


class _Reader:
    """Parser state: the position in the file, and the nodes and pods so far. One method per record kind."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line = 1
        self.time = -LARGEST
        self.count = 0
        self.ended = self.has_nodes = False
        self.nodes: set[str] = set()
        self.pods: set[str] = set()

    def wrong(self, column: str, message: str, hint: str = DOCUMENTED) -> TraceError:
        where = f"{self.name}, line {self.line}"
        return TraceError(f"{where}, column {column}" if column else where, message, hint)

    # --- one value ---------------------------------------------------------------------------------------------------

    def number(self, fields: Fields, column: str, *, lowest: float = 0.0) -> float:
        text = fields[_AT[column]]
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{_shown(text)} is not a number", "use a number like 1.5") from None
        if not lowest <= value <= LARGEST or "_" in text:
            raise self.wrong(column, f"{_shown(text)} is out of range", f"use a number from {lowest:g} to {LARGEST:g}")
        return value

    def maybe(self, fields: Fields, column: str) -> float | None:
        return self.number(fields, column) if fields[_AT[column]] else None

    def whole(self, fields: Fields, column: str, *, lowest: float = 0.0) -> int:
        value = self.number(fields, column, lowest=lowest)
        if value != int(value):
            text = fields[_AT[column]]
            raise self.wrong(column, f"{_shown(text)} is not a whole number", "use a whole number")
        return int(value)

    def maybe_whole(self, fields: Fields, column: str) -> int | None:
        return self.whole(fields, column) if fields[_AT[column]] else None

    def known(self, fields: Fields, column: str, there: set[str]) -> str:
        name = fields[_AT[column]]
        if name not in there:
            before = "node" if column == "node" else "pod"
            raise self.wrong(
                column, f"unknown {before} {_shown(name)}", f"add a {before} record for it before this line"
            )
        return name

    # --- one record --------------------------------------------------------------------------------------------------

    def trace(self, fields: Fields, time: float) -> Record:
        if self.count > 1:
            raise self.wrong("record", "trace is not the first record", "move it to the beginning or remove it")
        return Begin(time, fields[_AT["note"]])

    def node(self, fields: Fields, time: float) -> Record:
        name = fields[_AT["node"]]
        cores, size = self.number(fields, "cpu"), self.whole(fields, "memory")
        for column, amount in (("cpu", cores), ("memory", size)):
            if not amount:
                raise self.wrong(column, "the size of a node cannot be 0", "use the size of the machine")
        self.nodes.add(name)
        self.has_nodes = True
        pods = self.maybe_whole(fields, "pods")
        return NodeRecord(
            time,
            name,
            cores,
            size,
            self.maybe(fields, "allocatable_cpu"),
            self.maybe_whole(fields, "allocatable_memory"),
            MOST_PODS if pods is None else pods,
        )

    def load(self, fields: Fields, time: float) -> Record:
        node = self.known(fields, "node", self.nodes)
        return LoadRecord(time, node, self.maybe(fields, "cpu"), self.maybe_whole(fields, "memory"))

    def pod(self, fields: Fields, time: float) -> Record:
        uid, name = fields[_AT["uid"]], fields[_AT["pod"]]
        if uid in self.pods:
            raise self.wrong("uid", f"duplicate pod uid {_shown(uid)}", "use a unique uid for each pod")
        namespace, slash, short = name.partition("/")
        if not (namespace and slash and short) or "/" in short:
            raise self.wrong("pod", f"{_shown(name)} is not a pod name", "use NAMESPACE/NAME")
        self.pods.add(uid)
        priority = fields[_AT["priority"]]
        return PodRecord(
            time,
            uid,
            name,
            self.maybe(fields, "cpu") or 0.0,
            self.maybe_whole(fields, "memory") or 0,
            self.maybe(fields, "cpu_limit"),
            self.maybe_whole(fields, "memory_limit"),
            self.maybe(fields, "lifetime"),
            self.whole(fields, "priority", lowest=-LARGEST) if priority else 0,
            fields[_AT["owner"]],
        )

    def usage(self, fields: Fields, time: float) -> Record:
        uid = self.known(fields, "uid", self.pods)
        return UsageRecord(time, uid, self.maybe(fields, "cpu"), self.maybe_whole(fields, "memory"))

    def bind(self, fields: Fields, time: float) -> Record:
        return BindRecord(time, self.known(fields, "uid", self.pods), self.known(fields, "node", self.nodes))

    def remove(self, fields: Fields, time: float) -> Record:
        uid, node = fields[_AT["uid"]], fields[_AT["node"]]
        if bool(uid) == bool(node):
            said = "both are set" if uid else "both are empty"
            raise self.wrong("uid" if uid else "node", f"remove needs either uid or node, but {said}")
        if uid:
            return RemoveRecord(time, uid=self.known(fields, "uid", self.pods))
        self.known(fields, "node", self.nodes)
        self.nodes.discard(node)
        return RemoveRecord(time, node=node)

    def end(self, _fields: Fields, time: float) -> Record:
        self.ended = True
        return EndRecord(time)


def parse(lines: Iterable[str], *, name: str) -> Iterator[Record]:
    """Yield the records of `lines` while reading them; `name` is the file name for messages. Raises TraceError at the
    first invalid or misplaced row, and for a trace without nodes."""
    reader = _Reader(name)
    rows = csv.reader(lines, strict=True)
    try:
        header = next(rows, [])
        canonical = _canonical(header, reader)
        width = len(header)
        kinds = _kinds(reader)
        for row in rows:
            reader.line = rows.line_num
            if not any(row):
                continue  # empty row written by a spreadsheet
            if len(row) != width:
                raise reader.wrong("", f"{len(row)} columns, but the header has {width}")
            row.append("")
            yield _record(canonical(row), kinds, reader)
    except csv.Error as error:
        reader.line = rows.line_num
        raise reader.wrong("", f"invalid CSV: {error}") from None
    if not reader.has_nodes:
        what = "no node record" if reader.count else "no record after the header"
        raise TraceError(name, f"the trace is empty: {what}", DOCUMENTED)


def _record(fields: Fields, kinds: dict[str, _Kind], reader: _Reader) -> Record:
    text = fields[1]
    kind = kinds.get(text)
    if kind is None:
        raise reader.wrong("record", f"unknown record {_shown(text)}", f"known: {', '.join(_NEEDED)}")
    reader.count += 1
    time = reader.number(fields, "time")
    if time < reader.time:
        hint = "records must be in order of time: sort the rows by time"
        raise reader.wrong("time", f"{fields[0]} is before the previous record ({reader.time:.3f})", hint)
    if reader.ended:
        raise reader.wrong("record", f"record {text} after end", "end must be the last record")
    reader.time = time
    needed, empty, read = kind
    for i in needed:
        if not fields[i]:
            raise reader.wrong(COLUMNS[i], f"is empty, but required in a record {text}")
    if any(empty(fields)):
        column = next(COLUMNS[i] for i in _unused(text) if fields[i])
        raise reader.wrong(
            column, f"{_shown(fields[_AT[column]])} is not allowed in a record {text}", "leave the column empty"
        )
    return read(fields, time)


_Kind = tuple[tuple[int, ...], Callable[[Fields], Fields], Callable[[Fields, float], Record]]


def _kinds(reader: _Reader) -> dict[str, _Kind]:
    """Record kind -> its required columns, a getter for its unused columns, and its parser."""
    return {
        kind: (tuple(_AT[each] for each in needed), itemgetter(*_unused(kind)), getattr(reader, kind))
        for kind, needed in _NEEDED.items()
    }


def _unused(kind: str) -> tuple[int, ...]:
    used = {"time", "record", *_NEEDED[kind], *_OPTIONAL[kind]}
    return tuple(i for i, column in enumerate(COLUMNS) if column not in used)


def _canonical(header: list[str], reader: _Reader) -> Callable[[list[str]], Fields]:
    """A function that reorders a row, with "" appended, to the order of COLUMNS."""
    if not any(header):
        raise TraceError(reader.name, "the trace is empty: no header", DOCUMENTED)
    if len(header) == 1 and ";" in header[0]:
        raise reader.wrong("", "columns are separated by semicolons", "save the file as CSV with commas")
    for column in header:
        if column not in _AT:
            near = nearest(column, COLUMNS)
            cure = f"did you mean {near}?" if near else f"known: {', '.join(COLUMNS)}"
            raise reader.wrong(column[:MAX_QUOTED] or '""', "unknown column", cure)
        if header.count(column) > 1:
            raise reader.wrong(column, "duplicate column", "remove one of them")
    for column in ("time", "record"):
        if column not in header:
            raise reader.wrong(column, "missing in the header", "list the columns in the first line: time,record,…")
    places = [header.index(column) if column in header else len(header) for column in COLUMNS]
    return itemgetter(*places)


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "…")
