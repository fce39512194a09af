"""Reads and writes trace files: CSV in UTF-8, compressed with gzip if the name ends in .gz."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from lab.traces.parsing import TraceError, parse
from lab.traces.records import Record
from lab.traces.writing import TraceWriter

_LEVEL = 6  # gzip compression level
CUT_OFF = "run gzip -dc FILE > whole.csv to extract the readable part, then remove the incomplete last line"


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a file while reading it. Raises TraceError for invalid or unreadable files."""
    try:
        with path.open("rb") as raw:
            content = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            # utf-8-sig: spreadsheets write a byte order mark at the start of a UTF-8 file
            with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as lines:
                yield from parse(lines, name=str(path))
    except UnicodeDecodeError as error:
        raise TraceError(str(path), f"invalid UTF-8: {error.reason}", "save the file as CSV in UTF-8") from None
    except EOFError:
        raise TraceError(str(path), "the file is truncated: its writer did not finish", CUT_OFF) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        hint = "rename the file without .gz if it is not compressed; otherwise create the trace again"
        raise TraceError(str(path), f"invalid gzip data: {error}", hint) from None
    except OSError as error:
        raise TraceError(str(path), f"cannot be read: {error.strerror or error}", "check the path") from None


@contextmanager
def open_writer(path: Path) -> Iterator[TraceWriter]:
    """Open a trace file for writing and replace existing content. Raises OSError if it cannot be written."""
    with path.open("wb") as raw, trace_writer(raw, packed=path.suffix == ".gz") as writer:
        yield writer


@contextmanager
def trace_writer(raw: BinaryIO, *, packed: bool) -> Iterator[TraceWriter]:
    """Write a trace to a binary file, which stays open. Raises OSError."""
    # The gzip header contains neither name nor time, so that equal traces produce equal files.
    below = cast(BinaryIO, gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0)) if packed else raw
    text = io.TextIOWrapper(below, encoding="utf-8", newline="")
    try:
        yield TraceWriter(text)
    finally:
        text.detach()
        if packed:
            below.close()  # writes the end of the gzip member
