"""The trace file, complete up to the last minute even if the process is killed.

Each minute is written immediately, with gzip as a separate member (a gzip file may have any number of members), so the
file is readable at any time. A minute that does not fit on the disk is removed from the file.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from watcher.traces.records import Record
from watcher.traces.writing import TraceWriter


class RecordingFile:
    """A new file at `path`. Raises OSError if it exists or cannot be created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.records = 0
        self._packed = path.suffix == ".gz"
        self._file = path.open("xb", buffering=0)
        self._text = io.StringIO(newline="")
        self._writer = TraceWriter(self._text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, records: Iterable[Record]) -> None:
        """Append all records or none. Raises OSError if the file cannot be written."""
        count = 0
        for record in records:
            self._writer.write(record)
            count += 1
        text = self._text.getvalue().encode()
        self._text.seek(0)
        self._text.truncate()
        data = gzip.compress(text, mtime=0) if self._packed else text
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self.size)
            raise
        self.size += len(data)
        self.records += count
