"""The file of a recording: whole to the last minute, whatever becomes of the process.

A minute is written at once, and through gzip as a member of its own, of which a file may have any number: a process
that is killed leaves a file that reads like any other. A minute that does not fit on the disk is taken back.
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
    """A new file at `path`. Raises OSError where it cannot be made, also because there is one."""

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
        """Write these, all or none. Raises OSError where they cannot be written."""
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
