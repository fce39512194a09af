"""Files that a command writes to a path which the user names."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import BinaryIO

import click

STDOUT = Path("-")
MOST_LINKS = 40
"""Symbolic links that Linux follows in one path."""
_STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}
_DESCRIPTOR = re.compile(r"/dev/(stdin|stdout|stderr)|/(?:dev|proc/([^/]+)(?:/task/\d+)?)/fd/(\d+)")


def check_stdout(named: Mapping[str, Path | None], *, output: str) -> bool:
    """Whether one of the files, by option, is the standard output; other results then go to the standard error. Raises
    click.UsageError if two of them are, or if `output` is printed there, too."""
    found = [f"{option} -" for option, path in named.items() if path == STDOUT]
    if found and output != "text":
        found.append(f"-o {output}")
    if len(found) > 1:
        raise click.UsageError(f"{found[0]} and {found[1]} would be mixed on the standard output: name a file")
    return bool(found)


def is_regular(path: Path) -> bool:
    """Whether a regular file is or can be created at the path, also through symbolic links. A device, a pipe, an open
    descriptor (/dev/stdout, /dev/fd/3) and "-" (the standard output) are written in place."""
    return path != STDOUT and _descriptor(path) is None and (path.is_file() or not path.exists())


def open_in_place(path: Path) -> FileIO:
    """A file that is not regular. An open descriptor is continued where it is. Raises OSError."""
    if path == STDOUT:
        return FileIO(os.dup(sys.stdout.fileno()), "wb")
    descriptor = _descriptor(path)
    if descriptor is None:
        return FileIO(path, "wb")
    return FileIO(os.dup(descriptor), "wb") if descriptor >= 0 else FileIO(path, "ab")


def _descriptor(path: Path) -> int | None:
    """The descriptor of this process at the path or the end of its symbolic links; -1 for one of another process, None
    without one. The links of the kernel are not followed: they lead to the open file."""
    for _ in range(MOST_LINKS):
        text = os.path.abspath(path)
        if found := _DESCRIPTOR.fullmatch(text):
            name, process, number = found.groups()
            own = process in (None, "self", "thread-self", str(os.getpid()))
            return (_STANDARD[name] if name else int(number)) if own else -1
        if not os.path.islink(text):
            return None
        path = Path(text).parent / os.readlink(text)
    return None


@contextmanager
def written_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file for the new content of `path`. A regular file is replaced as a whole at the end, unless the
    block raises; a symbolic link stays, and its target is replaced. Raises OSError."""
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not is_regular(path):
        with BufferedWriter(open_in_place(path)) as file:
            yield file
        return
    target = path.resolve()
    unfinished = target.with_name(f".unfinished-{target.name}")
    try:
        with unfinished.open("wb") as file:
            yield file
        _replace(unfinished, target)
    finally:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)


def _replace(unfinished: Path, target: Path) -> None:
    if target.exists():
        shutil.copymode(target, unfinished)
    try:
        os.replace(unfinished, target)
    except OSError as error:
        if error.errno != errno.EBUSY:  # the file itself is mounted, as in a container
            raise
        shutil.copyfile(unfinished, target)
