"""Writes records as rows of a trace. Equal records produce equal bytes; the reader accepts all written rows.

Pure, except for writing to the given file.
"""

from __future__ import annotations

import csv
from typing import TextIO

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

_REST = [""] * (len(COLUMNS) - 6)  # empty columns after the first six, which most records use


class TraceWriter:
    """Writes records to a text file that was opened with newline=""."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._rows = csv.writer(file, lineterminator="\n")
        self._rows.writerow(COLUMNS)
        self._time = ""
        self._newest = float("-inf")

    def write(self, record: Record) -> None:
        """Append a record. Raises ValueError if its time is before that of the previous record, or if a text contains a
        carriage return."""
        if record.time < self._newest:
            raise ValueError(f"time {record.time} is before the previous record ({self._newest})")
        if record.time != self._newest:
            self._newest, self._time = record.time, _text(record.time, 3)
        self._rows.writerow(_row(record, self._time))

    def flush(self) -> None:
        """Flush the file, so that all written records are readable."""
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
    if "\r" in text:  # Python's csv writes it without quotes, so a reader would end the row there
        raise ValueError(f"{text!r} contains a carriage return")
    return text


def _text(value: float, digits: int) -> str:
    """A decimal number without trailing zeros."""
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".")
