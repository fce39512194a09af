"""Parses the responses of InfluxDB, or of a server in front of it.

The response to InfluxQL has one JSON document per series, the response to Flux is annotated CSV. Both may have status
200 and contain an error in the body, and a truncated body may be recognisable only by its missing end. Everything is
therefore validated, and series are decoded one at a time: decoding megabytes in one call would hold Python's global
lock and block the event loop.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from watcher.arrays import F64
from watcher.core.messages import printable
from watcher.decoding.json_text import JsonDecoder
from watcher.platform.net.http_body import ERROR_BYTES
from watcher.sources.errors import (
    ProviderError,
    ProviderMalformed,
    ProviderRefused,
    ProviderUnreachable,
    StatusHints,
    malformed_response,
    status_error,
)
from watcher.sources.http import HttpResponse
from watcher.sources.influxdb.cpu_load import Points

API = "the InfluxDB API"
TAKES_TOO_LONG = ("timeout", "deadline exceeded", "timed out", "context canceled")
NAMES_WHAT_IS_NOT_THERE = ("not found", "not find", "dbrp")
NUMBERS = frozenset({"double", "long", "unsignedLong"})
NO_TAGS = frozenset({"", "result", "table", "_start", "_stop", "_time", "_value", "_field", "_measurement"})

Tags = tuple[tuple[str, str], ...]


# --- InfluxQL --------------------------------------------------------------------------------------------------------


class _InfluxqlSeries(msgspec.Struct, frozen=True):
    tags: dict[str, str] = {}
    columns: list[str] = []
    values: list[list[float | None]] = []
    partial: bool = False


class _Result(msgspec.Struct, frozen=True):
    series: list[msgspec.Raw] = []
    error: str = ""
    partial: bool = False


class _InfluxqlDocument(msgspec.Struct, frozen=True):
    results: list[_Result] | None = None
    error: str = ""


_DOCUMENT = JsonDecoder(_InfluxqlDocument)
_SERIES = JsonDecoder(_InfluxqlSeries)


def read_influxql(body: bytes, *, content_type: str) -> list[Points]:
    """Series of a response with status 200, with one document per line or a single document. Raises ProviderError."""
    found: dict[Tags, list[tuple[Sequence[str], F64]]] = {}
    unfinished = False
    lines = [line for line in body.splitlines() if line.strip()]
    if not lines:
        raise ProviderMalformed("the response is empty")
    for line in lines:
        unfinished = False
        for result in _results(line, content_type=content_type):
            unfinished |= result.partial
            for raw in result.series:
                series = _series(raw)
                unfinished |= series.partial
                found.setdefault(tuple(sorted(series.tags.items())), []).append((series.columns, _rows(series)))
    if unfinished:
        raise ProviderMalformed("the response is truncated", hint="Check for a row limit in InfluxDB or in a proxy.")
    return [_points(tags, parts) for tags, parts in found.items()]


def _results(line: bytes, *, content_type: str) -> list[_Result]:
    try:
        document = _DOCUMENT.decode(line)
    except msgspec.DecodeError as error:
        raise _not_as_expected(line, expected="JSON", content_type=content_type, problem=str(error)) from error
    for reason in (document.error, *(result.error for result in document.results or ())):
        if reason:
            raise refused_query(reason)
    if document.results is None:
        raise ProviderMalformed(
            f"the JSON is not a response to InfluxQL: {printable(line[:1024].decode(errors='replace'))}",
            hint="Check that provider.address is the address of an InfluxDB.",
        )
    return document.results


def _series(raw: msgspec.Raw) -> _InfluxqlSeries:
    try:
        series = _SERIES.decode(raw)
    except msgspec.DecodeError as error:
        raise ProviderMalformed(
            f"a value of the series is not a number: {printable(str(error))}",
            hint="The fields must be numbers, as written by Telegraf.",
        ) from error
    if "time" not in series.columns or any(len(row) != len(series.columns) for row in series.values):
        raise ProviderMalformed(
            "rows of a series have no time, or their number of values differs from the columns: "
            + printable(", ".join(series.columns)),
            hint="A configured query must be a SELECT.",
        )
    return series


def _rows(series: _InfluxqlSeries) -> F64:
    """Array of shape (rows, columns); NaN for a missing value."""
    flat = [np.nan if value is None else value for row in series.values for value in row]
    return np.array(flat, dtype=np.float64).reshape(len(series.values), len(series.columns))


def _points(tags: Tags, parts: Sequence[tuple[Sequence[str], F64]]) -> Points:
    """Join the parts of one series, in ascending times. `parts` are pairs of column names and rows."""
    columns = parts[0][0]
    if any(list(other) != list(columns) for other, _ in parts):
        raise ProviderMalformed(f"the columns of a series change within the response: {printable(', '.join(columns))}")
    rows = np.concatenate([part for _, part in parts]) if len(parts) > 1 else parts[0][1]
    at = list(columns).index("time")
    time = rows[:, at]
    if np.isnan(time).any():
        raise ProviderMalformed("a point of the series has no time")
    if np.any(np.diff(time) < 0):
        rows = rows[np.argsort(time, kind="stable")]
        time = rows[:, at]
    fields = {name: rows[:, k] for k, name in enumerate(columns) if k != at}
    return Points(dict(tags), time / 1000.0, fields)


# --- Flux ------------------------------------------------------------------------------------------------------------


def read_flux(body: bytes, *, content_type: str) -> list[Points]:
    """Tables of a response with status 200, joined to one series per set of tags. Raises ProviderError."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_as_expected(
            body, expected="CSV", content_type=content_type, problem="it is not valid UTF-8"
        ) from error
    if text.lstrip()[:1] in ("<", "{"):
        raise _not_as_expected(body, expected="CSV", content_type=content_type, problem="it is HTML or JSON")
    if text.strip() and not text.endswith("\n"):
        raise ProviderMalformed("the response is truncated in the middle of a line")
    found: dict[Tags, dict[str, list[_Table]]] = {}
    try:
        for block in _blocks(csv.reader(io.StringIO(text, newline=""), strict=True)):
            for table in block.tables():
                found.setdefault(table.tags, {}).setdefault(table.field, []).append(table)
    except csv.Error as error:
        raise _not_as_expected(body, expected="CSV", content_type=content_type, problem=str(error)) from error
    return [_joined(tags, fields) for tags, fields in found.items()]


def _blocks(rows: Iterable[list[str]]) -> Iterator[_CsvBlock]:
    """Blocks of tables. Tables with the same schema share a header; an empty line separates schemas."""
    block: _CsvBlock | None = None
    annotations: dict[str, list[str]] = {}
    for row in rows:
        if not row or row[0].startswith("#"):
            if block is not None:
                yield block
                block, annotations = None, {}
            if row:
                annotations[row[0]] = row
        elif block is None:
            block = _CsvBlock(row, annotations)
        else:
            block.take(row)
    if block is not None:
        yield block


@dataclass(frozen=True, slots=True)
class _Table:
    """Times and values of one field of one series, as strings."""

    tags: Tags
    field: str
    times: list[str]
    values: list[str]


class _CsvBlock:
    """Rows under one header. Raises ProviderError if they are not points or contain a query error."""

    def __init__(self, header: list[str], annotations: Mapping[str, list[str]]) -> None:
        self._header = header
        self._defaults = annotations.get("#default", [])
        self._tables: dict[str, _Table] = {}
        self._is_error = "error" in header and "_value" not in header
        if self._is_error:
            return
        if "_time" not in header or "_value" not in header:
            columns = printable(", ".join(name for name in header if name)) or "none"
            raise ProviderMalformed(
                f"the tables have the columns {columns}, not _time and _value",
                hint="Check that the server is an InfluxDB. A configured query must return these two columns.",
            )
        self._time, self._value = header.index("_time"), header.index("_value")
        self._table = header.index("table") if "table" in header else None
        types = annotations.get("#datatype", [])
        kind = types[self._value] if self._value < len(types) else "double"
        if kind not in NUMBERS:
            raise ProviderMalformed(
                f"the values of the tables have the type {printable(kind)}", hint="The fields must be numbers."
            )

    def take(self, row: list[str]) -> None:
        """Add a row to its table. Raises ProviderError."""
        if len(row) != len(self._header):
            raise ProviderMalformed(f"a row has {len(row)} values for {len(self._header)} columns")
        if self._is_error:
            raise refused_query(row[self._header.index("error")])
        key = row[self._table] if self._table is not None else ""
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = self._begun(row)
        table.times.append(row[self._time])
        table.values.append(row[self._value])

    def _begun(self, row: list[str]) -> _Table:
        given = {name: row[k] or self._default(k) for k, name in enumerate(self._header)}
        tags = tuple(sorted((name, value) for name, value in given.items() if name not in NO_TAGS and value))
        return _Table(tags, given.get("_field") or "_value", [], [])

    def _default(self, column: int) -> str:
        return self._defaults[column] if column < len(self._defaults) else ""

    def tables(self) -> Iterable[_Table]:
        """All complete tables of the block."""
        return self._tables.values()


def _joined(tags: Tags, fields: Mapping[str, list[_Table]]) -> Points:
    """Join the fields of a series by time, NaN for a field without a value at a time."""
    columns = {name: _column(tables) for name, tables in fields.items()}
    times = [time for time, _ in columns.values()]
    if all(np.array_equal(time, times[0]) for time in times[1:]):
        return Points(dict(tags), times[0] / 1000.0, {name: value for name, (_, value) in columns.items()})
    every = np.unique(np.concatenate(times))
    joined = {}
    for name, (time, value) in columns.items():
        joined[name] = np.full(len(every), np.nan)
        joined[name][np.searchsorted(every, time)] = value
    return Points(dict(tags), every / 1000.0, joined)


def _column(tables: Sequence[_Table]) -> tuple[F64, F64]:
    """Ascending times in unix milliseconds, and values."""
    texts = [text for table in tables for text in table.times]
    try:
        time = _milliseconds(texts)
        value = np.array([_number(text) for table in tables for text in table.values], dtype=np.float64)
    except ValueError as error:
        raise ProviderMalformed(f"a time or value of the tables cannot be read: {printable(str(error))}") from error
    if np.any(np.diff(time) < 0):
        order = np.argsort(time, kind="stable")
        return time[order], value[order]
    return time, value


def _number(text: str) -> str:
    """Value as a string for NumPy. A missing value becomes NaN. A NaN computed by Flux becomes infinity, so that the
    review reports it."""
    return "inf" if text.lower() == "nan" else text or "nan"


_UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", re.ASCII)


def _milliseconds(texts: Sequence[str]) -> F64:
    """Unix milliseconds of RFC 3339 times in UTC, the only time format of InfluxDB; truncated to milliseconds as in
    InfluxQL."""
    for text in texts:
        if not _UTC.fullmatch(text):  # NumPy accepts other zones, with a warning
            raise ValueError(text or "no time")
    return np.array([text[:-1] for text in texts], dtype="datetime64[ns]").astype("datetime64[ms]").astype(np.float64)


# --- errors ----------------------------------------------------------------------------------------------------------


class _Error(msgspec.Struct, frozen=True):
    """Error body: InfluxDB 1.x uses `error`, 2.x and 3.x use `message`."""

    error: str = ""
    message: str = ""


_ERROR = JsonDecoder(_Error)


_GRANT = "Grant the account of provider.token or provider.username (GRANT READ ON database TO user) permission to read"
_HINTS = StatusHints(
    API,
    "Set provider.token or provider.token_file, or, for 1.x, provider.username and provider.password_file.",
    f"{_GRANT}.",
    f"{_GRANT}; no credentials were sent.",
    "Check that provider.address is an InfluxDB with the right path, and check provider.dialect: 1.x and 3.x support "
    "influxql, 2.x flux.",
)


def error_of(answer: HttpResponse, location: str, authorised: bool) -> ProviderError:
    """Convert a response with a status other than 200 to an error, without the address. `authorised`: whether
    credentials were sent; `location`: the redirect target without credentials."""
    status, body = answer.status, answer.body[:ERROR_BYTES]
    said = _said(body)
    if status == 404 and "page not found" not in said and any(words in said for words in NAMES_WHAT_IS_NOT_THERE):
        return refused_query(said)
    if error := status_error(status, said, _HINTS, location=location, authorised=authorised):
        return error
    if body.lstrip()[:1] == b"<":
        return _not_as_expected(
            body, expected="a response of InfluxDB", content_type=answer.content_type, problem=str(status)
        )
    return refused_query(f"{status} {said}")


def _said(body: bytes) -> str:
    """Error text of a response, extracted from the JSON if possible."""
    try:
        error = _ERROR.decode(body)
    except msgspec.DecodeError:
        error = _Error()
    return printable(error.error or error.message or body[:4096].decode(errors="replace"))


def refused_query(reason: str) -> ProviderError:
    """Error for a query that the server rejected or aborted; `reason` is the server's message."""
    lower, said = reason.lower(), printable(reason)
    if any(words in lower for words in TAKES_TOO_LONG):
        return ProviderUnreachable(f"the query timed out on the server ({said})")
    if "database not found" in lower or "retention policy not found" in lower or "dbrp" in lower:
        hint = "Set provider.database to the database that Telegraf writes to. On 2.x, a bucket is a database only with"
        return ProviderRefused(said, hint=f"{hint} a DBRP mapping: instead, set provider.bucket and provider.org.")
    if "could not find bucket" in lower or ("bucket" in lower and "not found" in lower):
        return ProviderRefused(
            said, hint="Set provider.bucket. A bucket is not visible to a token without read permission."
        )
    if "organization" in lower and "not found" in lower:
        return ProviderRefused(said, hint="Set provider.org to the organisation that owns the bucket.")
    hint = "Check the expression in provider.queries; it must be in the language of provider.dialect."
    return ProviderRefused(f"the query was rejected: {said}", hint=hint)


def _not_as_expected(body: bytes, *, expected: str, content_type: str, problem: str) -> ProviderMalformed:
    return malformed_response(body, expected=expected, api=API, content_type=content_type, problem=problem)
