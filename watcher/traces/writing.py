"""Records to rows of a trace: the same bytes for the same records, and nothing that the reader would refuse.

Pure but for the file that it is given.
"""

from __future__ import annotations

import csv
from typing import TextIO

from watcher.traces.records import (
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

_REST = [""] * (len(COLUMNS) - 6)  # of the columns after the first six, which most records have


class TraceWriter:
    """Writes records into a text file opened with newline="" as they come."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        self._time = ""
        self._newest = float("-inf")

    def write(self, record: Record) -> None:
        """Append one. Raises ValueError for a time before that of the one before, and for a carriage return
        in a text."""
        if record.time < self._newest:
            raise ValueError(f"a record of {record.time} cannot follow one of {self._newest}")
        if record.time != self._newest:
            self._newest, self._time = record.time, _text(record.time, 3)
        self._rows.writerow(_row(record, self._time))

    def flush(self) -> None:
        """What was written can be read from now on."""
        self._file.flush()


def _row(record: Record, time: str) -> list[str]:
    match record:
        case UsageRecord():
            return [time, "usage", "", record.uid, _cores(record.cores), _bytes(record.bytes), *_REST]
        case LoadRecord():
            return [time, "load", record.node, "", _cores(record.cores), _bytes(record.bytes), *_REST]
        case BindRecord():
            return [time, "bind", record.node, record.uid, "", "", *_REST]
        case RemoveRecord():
            return [time, "remove", record.node, record.uid, "", "", *_REST]
        case EndRecord():
            return [time, "end", "", "", "", "", *_REST]
        case Begin():
            return [time, "trace", "", "", "", "", *_REST[:-1], _line(record.note)]
        case NodeRecord():
            return _node(record, time)
        case PodRecord():
            return _pod(record, time)


def _node(record: NodeRecord, time: str) -> list[str]:
    return [
        *(time, "node", _line(record.node), "", _cores(record.cores), _bytes(record.bytes), "", "", "", "", "", ""),
        _cores(record.allocatable_cores),
        _bytes(record.allocatable_bytes),
        "" if record.pods == MOST_PODS else str(record.pods),
        "",
    ]


def _pod(record: PodRecord, time: str) -> list[str]:
    return [
        *(time, "pod", "", _line(record.uid), _cores(record.cores), _bytes(record.bytes), _line(record.pod)),
        _cores(record.cores_limit),
        _bytes(record.bytes_limit),
        "" if record.lifetime is None else _text(record.lifetime, 3),
        str(record.priority) if record.priority else "",
        _line(record.owner),
        *("", "", "", ""),
    ]


def _cores(value: float | None) -> str:
    return "" if value is None else _text(value, 4)


def _bytes(value: int | None) -> str:
    return "" if value is None else str(value)


def _line(text: str) -> str:
    if "\r" in text:  # Python's csv puts no quotes around it, and whoever reads it finds a row that ends there
        raise ValueError(f"{text!r} has a carriage return in it")
    return text


def _text(value: float, digits: int) -> str:
    """A decimal without zeros at its end."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".")
