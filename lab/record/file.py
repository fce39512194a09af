"""The trace file, complete up to the last minute even if the process is killed.

Each minute is written immediately, with gzip as a separate member (a gzip file may have any number of members), so the
file is readable at any time. A minute that does not fit on the disk is removed from the file.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.traces.records import Record
from lab.traces.writing import TraceWriter
from load_watcher.cli.output_file import is_regular, open_in_place


class RecordingFile:
    """A new file at `path`, also at the end of a symbolic link; "-" is the standard output, and a device or a pipe is
    written in place. Raises OSError if a regular file exists or cannot be created."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.records = 0
        self._packed = path.suffix == ".gz"
        self._regular = is_regular(path)
        self._file = _opened(path)
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
            if self._regular:
                self._file.truncate(self.size)
            raise
        self.size += len(data)
        self.records += count

    def remove(self) -> None:
        """Remove the file; a device and a pipe stay."""
        if self._regular:
            self.path.resolve().unlink()


def _opened(path: Path) -> FileIO:
    return FileIO(path.resolve(), "xb") if is_regular(path) else open_in_place(path)
