"""Atomic files: the checkpoint of the manager and the state files of the plug-ins.

A write creates a new file, syncs it to disk, renames it to the final name, and syncs the directory. Files that cannot
be read are renamed, never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
import zlib
from pathlib import Path
from typing import Any

import msgspec

from agent.qrm.store.checkpoint import fnv1a
from watcher.decoding.json_text import decode_json

log = logging.getLogger(__name__)

CHECKSUM = "crc32"
EARLIER_CHECKSUM = "checksum"  # FNV-1a, which state files had before


class BadState(ValueError):
    """The content of a state file is invalid or was changed. The message does not contain the file name."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file completely, synced to disk. Raises OSError; the previous content then remains."""
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
        if error.errno != errno.EINVAL:  # not supported by the file system
            raise
    finally:
        os.close(descriptor)


def set_aside(path: Path, why: str) -> Path:
    """Rename an unusable file, and log it. Returns the new path."""
    stem, number = f"{path.name}.corrupt-{int(time.time())}", 0
    while (kept := path.with_name(stem if not number else f"{stem}-{number}")).exists():
        number += 1
    os.replace(path, kept)
    log.error("%s is unusable: %s; renamed it to %s and starting without it", path, why, kept)
    return kept


class StateFile:
    """The state of one plug-in, an object with at least one key, as canonical JSON with its CRC-32. The file is written
    only if the state has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = b""

    def read(self) -> dict[str, Any] | None:
        """The stored state; None if the file does not exist. Raises BadState and OSError."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            document = decode_json(data, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise BadState(f"it is not a JSON object: {error}") from None
        earlier = EARLIER_CHECKSUM in document
        written = document.pop(EARLIER_CHECKSUM if earlier else CHECKSUM, None)
        expected = (fnv1a if earlier else zlib.crc32)(_canonical(document))
        if written != expected:
            raise BadState(f"the checksum is {written}, but {expected} was expected")
        self._written = data
        return document

    def write(self, document: dict[str, Any]) -> None:
        """Raises OSError; the file then remains unchanged."""
        canonical = _canonical(document)
        data = b'%b,"%b":%d}' % (canonical[:-1], CHECKSUM.encode(), zlib.crc32(canonical))
        if data != self._written:
            write_atomic(self.path, data)
            self._written = data


def _canonical(document: dict[str, Any]) -> bytes:
    return msgspec.json.encode(document, order="deterministic")
