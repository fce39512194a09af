"""Traces in files: CSV in UTF-8, through gzip where the name ends in .gz."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from watcher.traces.parsing import TraceError, parse
from watcher.traces.records import Record
from watcher.traces.writing import TraceWriter

_LEVEL = 6  # of gzip
CUT_OFF = "gzip -dc FILE > whole.csv brings out what is in it; then remove the last line, which is cut off"


def read_trace(path: Path) -> Iterator[Record]:
    """The records of a file, as it is read. Raises TraceError, also for a file that cannot be read."""
    try:
        with path.open("rb") as raw:
            content = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
            # utf-8-sig: spreadsheets put a mark at the beginning of what they save as UTF-8
            with io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as lines:
                yield from parse(lines, name=str(path))
    except UnicodeDecodeError as error:
        raise TraceError(str(path), f"this is no UTF-8: {error.reason}", "save it as CSV in UTF-8") from None
    except EOFError:
        raise TraceError(str(path), "the file is cut off: whoever wrote it did not finish", CUT_OFF) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        hint = "a name without .gz is read as it is; else make the trace again"
        raise TraceError(str(path), f"this is no gzip: {error}", hint) from None
    except OSError as error:
        raise TraceError(str(path), f"cannot be read: {error.strerror or error}", "check the path") from None


@contextmanager
def open_writer(path: Path) -> Iterator[TraceWriter]:
    """A writer into this file, which is replaced. Raises OSError where it cannot be written."""
    with path.open("wb") as raw:
        # Neither name nor time go into it, so that the same trace is the same file.
        below = cast(BinaryIO, gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0)) if path.suffix == ".gz" else raw
        with io.TextIOWrapper(below, encoding="utf-8", newline="") as text:
            yield TraceWriter(text)
