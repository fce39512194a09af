"""Reads files again when their contents change: tokens, certificates and keys.

Kubernetes replaces the files of a mounted secret by exchanging a symbolic link, cert-manager and administrators write
certificate and key one after the other. Therefore the contents are compared, and a change is applied when two checks in
a row find the same contents. A file that cannot be used is refused, and the former value stays in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from watcher.decoding.text import read_text

log = logging.getLogger(__name__)

CHECK_S = 5.0


class ReloadedFiles:
    """Files that are used together, such as a certificate and its key. `name` is the name of their settings in
    messages; `load` reads the files and returns a function that puts the new value in use. It is called in a thread,
    and raises OSError or ValueError (ssl.SSLError is an OSError) with the reason if the files cannot be used."""

    def __init__(self, name: str, paths: Sequence[Path], load: Callable[[], Callable[[], None]]) -> None:
        self._name = name
        self._paths = tuple(paths)
        self._load = load
        self._in_use = self._last = self._digest()

    async def check(self, *, at_once: bool = False) -> None:
        """Apply changed contents, `at_once` or when the check before has found the same contents."""
        found = await asyncio.to_thread(self._digest)
        stable, self._last = found == self._last, found
        if found == self._in_use or not (stable or at_once):
            return
        self._in_use = found  # also if they are refused: the reason is logged once
        where = f"{self._name} ({', '.join(map(str, self._paths))})"
        try:
            apply = await asyncio.to_thread(self._load)
        except (OSError, ValueError) as error:
            log.error("%s changed and cannot be used: %s; the former value stays in use", where, _reason(error))
            return
        apply()
        log.info("%s changed and was read again", where)

    def _digest(self) -> tuple[bytes | None, ...]:
        return tuple(_digest_of(path) for path in self._paths)


class FileReloader:
    """Checks all `files` every `every_s` seconds while it runs."""

    def __init__(self, files: Sequence[ReloadedFiles], *, every_s: float = CHECK_S) -> None:
        self._files = tuple(files)
        self._every_s = every_s
        self._checking = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def life(self, _app: Any = None) -> AsyncIterator[None]:
        """Check the files until the context ends."""
        task = asyncio.create_task(self._run(), name="reload-files")
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def check(self, *, at_once: bool = True) -> None:
        async with self._checking:
            for each in self._files:
                await each.check(at_once=at_once)

    def request_check(self) -> None:
        """Start a check at once, for example at SIGHUP."""
        task = asyncio.create_task(self.check(), name="check-files")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        while self._files:
            await asyncio.sleep(self._every_s)
            await self.check(at_once=False)


class ReloadedToken:
    """A bearer token whose file is read again; None without a file. `read` raises OSError or ValueError."""

    def __init__(self, name: str, path: Path | None, read: Callable[[], str | None]) -> None:
        self.value = read()
        self.files: tuple[ReloadedFiles, ...] = () if path is None else (ReloadedFiles(name, (path,), self._load),)
        self._read = read

    def _load(self) -> Callable[[], None]:
        token = self._read()

        def apply() -> None:
            self.value = token

        return apply


def read_token(path: Path) -> str:
    """The token in a file. Raises OSError, and ValueError if the file is empty or not text."""
    try:
        token = read_text(path).strip()
    except msgspec.DecodeError:
        raise ValueError("the file is not a text file") from None
    if not token:
        raise ValueError("the file is empty")
    return token


def _digest_of(path: Path) -> bytes | None:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).digest()
    except OSError:
        return None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
