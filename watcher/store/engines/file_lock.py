"""Locks of an SQLite file: `<file>.lock`, and a byte of the file itself, which may have a second name (a hard link)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from pathlib import Path

import msgspec

from watcher.decoding.json_text import decode_json
from watcher.store.errors import StoreError, StoreInUse

OTHER_FILE = "stop the other process, or set a different store.url for this one"


class _Holder(msgspec.Struct):
    """Content of the lock file. `damaged`: the last holder found a damaged page."""

    pid: int
    owner: str = ""
    damaged: bool = False


class FileLock:
    """`<database>.lock`, locked while the database is open. The kernel releases the lock when the process ends, so a
    leftover file does no harm."""

    def __init__(self, path: Path, *, owner: str) -> None:
        self.path = path.with_name(path.name + ".lock")
        self.damage_seen = False
        self._database = path
        self._holder = _Holder(os.getpid(), owner)
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises StoreInUse, which names the holder, if it is taken."""
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            hint = "set store.url to a file in a directory that exists and that this user may write to"
            raise StoreError(f"cannot create the lock file {self.path}: {error.strerror}", hint=hint) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _read_holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise StoreInUse(f"{self._database} is in use by {_in_words(holder)}", hint=OTHER_FILE) from None
            hint = "put the database on a local file system"
            raise StoreError(f"cannot lock {self.path}: {error.strerror}", hint=hint) from error
        before = _read_holder(descriptor)
        self.damage_seen = before is not None and before.damaged
        self._descriptor = descriptor
        self._write()

    def mark_damaged(self) -> None:
        """Make the next start check every page, regardless of the file size."""
        self._holder.damaged = True
        self._write()

    def release(self) -> None:
        """Release the lock. The file is not removed: otherwise two processes could lock two files of the same name."""
        if self._descriptor is not None:
            if not self._holder.damaged:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self) -> None:
        """Write the holder to the lock file. A failure, such as a full disk, is ignored: the lock is held anyway."""
        if self._descriptor is None:
            return
        text = msgspec.json.encode(self._holder)
        with suppress(OSError):
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))


_LOCK_BYTE = 1 << 40
"""Offset of the locked byte: beyond the bytes that SQLite locks, which begin at 1 GiB."""
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)  # Linux


def lock_file(path: Path) -> int | None:
    """Lock a byte of a file, under whatever name it was opened, until the returned descriptor is closed. None where the
    system or the file system has no such locks. Raises StoreInUse if another process has locked it."""
    if _SET_LOCK is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None  # opening the database will give the reason
    try:
        fcntl.fcntl(descriptor, _SET_LOCK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, _LOCK_BYTE, 1, 0))
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise StoreInUse(f"{path} is in use by another process under another name", hint=OTHER_FILE) from None
        return None
    return descriptor


def _read_holder(descriptor: int) -> _Holder | None:
    try:
        return decode_json(os.pread(descriptor, 4096, 0), type=_Holder)
    except (msgspec.DecodeError, OSError):
        return None


def _in_words(holder: _Holder | None) -> str:
    who = "another process" if holder is None else f"process {holder.pid}"
    return who + (f" ({holder.owner})" if holder is not None and holder.owner else "")


def holder_of(path: Path) -> str:
    """Description of the process that holds the lock of the database at `path`; "" if none. Creates no file. A process
    that tries to take the lock during this check fails."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _in_words(_read_holder(descriptor))
    finally:
        os.close(descriptor)
    return ""
