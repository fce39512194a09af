"""Looking at a database as a start would, without starting: for `load-watcher doctor`. Changes nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from watcher.store import database
from watcher.store.database import SMALL_BYTES, StoreError
from watcher.store.schema import REVISIONS

TRIED_BYTES = 1 << 20
"""What is written on trial: more than a tick of a few hundred nodes, less than anyone misses."""


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen. `where` is for people; `revision` is None where there is no schema yet, `newest` the one that
    this version has; `holder` says in words who has the database open, "" if nobody; sizes in bytes, None where the
    database does not tell."""

    where: str
    revision: str | None
    newest: str
    holder: str
    size: int | None
    free: int | None


def look(url: str) -> Look:
    """See whether `serve` could use the database at `url`. Raises StoreError where it could not, for another reason
    than that somebody has it open."""
    path = database.file_of(url)
    database.check_place(path)
    revision = database.revision_of(path)
    size = database.size_on_disk(path)
    if revision is not None:
        database.check_pages(path, all_of_them=size <= SMALL_BYTES)
    _try_to_write(path.parent)
    return Look(
        where=str(path),
        revision=revision,
        newest=REVISIONS[-1],
        holder=database.holder_of(path),
        size=size,
        free=shutil.disk_usage(path.parent).free,
    )


def _try_to_write(folder: Path) -> None:
    """Write a file without a name into the folder of the database, which is gone when it is closed."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(os.urandom(TRIED_BYTES))  # what compresses well might fit where data does not
            os.fsync(file.fileno())
    except OSError as error:
        hint = "make room on its file system, or let this user write there; store.max_size bounds the database"
        raise StoreError(f"nothing can be written to {folder}: {error.strerror}", hint=hint) from error
