"""Reads the rows of a CSV table, plain or compressed with gzip, with the line and the column in each error."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from lab.backtest.usage import BacktestError

_GZIP = b"\x1f\x8b"
_LONGEST_LINE = 100_000  # characters; a row of 288 values has about 1,000
_QUOTED = 60  # characters of an invalid value in an error
LARGEST = 1e15


class TableRow:
    """One row: `text` and `number` return the value of a column, and `wrong` an error at its place."""

    def __init__(self, where: str, values: dict[str, str]) -> None:
        self.where = where
        self._values = values

    def wrong(self, column: str, message: str, hint: str) -> BacktestError:
        return BacktestError(f"{self.where}, column {column}: {message}", hint)

    def text(self, column: str) -> str:
        value = self._values[column].strip()
        if not value:
            raise self.wrong(column, "is empty", "complete the row or remove it")
        return value

    def number(self, column: str, *, lowest: float = 0.0) -> float:
        return self.parsed(column, self.text(column), lowest=lowest)

    def parsed(self, column: str, text: str, *, lowest: float = 0.0) -> float:
        """Return the number in `text`, a part of the column's value."""
        shown = repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "…")
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, f"{shown} is not a number", "use a number like 1.5") from None
        if not (math.isfinite(value) and lowest <= value <= LARGEST):
            raise self.wrong(column, f"{shown} is out of range", f"use a number from {lowest:g} to {LARGEST:g}")
        return value


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[TableRow]:
    """Yield the rows of a table with these columns and any others. Raises BacktestError for an invalid or unreadable
    table."""
    with _opened(path) as lines:
        rows = csv.reader(_bounded(lines, path), strict=True)
        try:
            header = [name.strip() for name in next(rows, [])]
            places = _places(path, header, columns)
            for row in rows:
                if not any(row):
                    continue
                where = f"{path}, line {rows.line_num}"
                if len(row) != len(header):
                    message = f"{where}: {len(row)} values, but the header has {len(header)} columns"
                    raise BacktestError(message, "complete the row or remove it")
                yield TableRow(where, {name: row[place] for name, place in places.items()})
        except csv.Error as error:
            raise BacktestError(f"{path}, line {rows.line_num}: invalid CSV: {error}", "save it as CSV again") from None


def _places(path: Path, header: Sequence[str], columns: Sequence[str]) -> dict[str, int]:
    for name in columns:
        if header.count(name) != 1:
            found = "missing" if name not in header else "duplicate"
            hint = f"the first line must name the columns {', '.join(columns)}; --layout selects another layout"
            raise BacktestError(f"{path}, line 1: {found} column {name}", hint)
    return {name: header.index(name) for name in columns}


def _bounded(lines: io.TextIOWrapper, path: Path) -> Iterator[str]:
    number = 0
    while line := lines.readline(_LONGEST_LINE):
        number += 1
        if len(line) == _LONGEST_LINE:
            message = f"{path}, line {number}: longer than {_LONGEST_LINE:,} characters"
            raise BacktestError(message, "check that the file is a CSV table")
        yield line


@contextmanager
def _opened(path: Path) -> Iterator[io.TextIOWrapper]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(len(_GZIP)) == _GZIP
            raw.seek(0)
            content = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
            # utf-8-sig: spreadsheets write a byte order mark at the start of a UTF-8 file
            with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as lines:
                yield lines
    except UnicodeDecodeError as error:
        raise BacktestError(f"{path}: invalid UTF-8: {error.reason}", "save the file as CSV in UTF-8") from None
    except EOFError:
        raise BacktestError(f"{path}: the compressed file is truncated", "copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise BacktestError(f"{path}: invalid gzip data: {error}", "copy or download it again") from None
    except OSError as error:
        raise BacktestError(f"{path}: cannot be read: {error.strerror or error}", "check the path") from None
