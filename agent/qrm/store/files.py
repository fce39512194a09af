"""Files that are whole or not there: the checkpoint of the manager, the state of each plug-in.

A write goes to a new file beside the old one, is forced to disk, and takes its place; then the directory is forced to
disk too. What cannot be read is set aside under a name of its own, never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from pathlib import Path
from typing import Any

import msgspec

from agent.qrm.store.checkpoint import fnv1a

log = logging.getLogger(__name__)

CHECKSUM = "checksum"


class BadState(ValueError):
    """A file is not as it was written. The message names it."""


def write_atomic(path: Path, data: bytes) -> None:
    """All of it, on disk, or nothing. Raises OSError, and then what was there before is there still."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    _sync_directory(path.parent)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no such thing
            raise
    finally:
        os.close(descriptor)


def set_aside(path: Path, why: str) -> Path:
    """Move a file that cannot be used out of the way, and say so. Returns where it is now."""
    stem, number = f"{path.name}.corrupt-{int(time.time())}", 0
    while (kept := path.with_name(stem if not number else f"{stem}-{number}")).exists():
        number += 1
    os.replace(path, kept)
    log.error("%s cannot be used: %s. It is kept as %s, and we begin without it", path, why, kept)
    return kept


class StateFile:
    """One plug-in's document with a checksum: canonical JSON, written where it differs from what is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = b""

    def read(self) -> dict[str, Any] | None:
        """None where there is none yet. Raises BadState, and OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise BadState(f"{self.path} is no JSON object: {error}") from None
        written = document.pop(CHECKSUM, None)
        expected = fnv1a(_canonical(document))
        if written != expected:
            raise BadState(f"{self.path}: its checksum is {written}, and its content's {expected}")
        self._written = data
        return document

    def write(self, document: dict[str, Any]) -> None:
        """Raises OSError, and then the file is as before."""
        canonical = _canonical(document)
        data = _canonical({**document, CHECKSUM: fnv1a(canonical)})
        if data != self._written:
            write_atomic(self.path, data)
            self._written = data


def _canonical(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document, order="deterministic")
