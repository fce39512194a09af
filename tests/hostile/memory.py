"""Runs a process in a memory cgroup of its own, of version 1 or 2, and tells whether the kernel ended it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import wait_for

ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20


@dataclass(frozen=True)
class MemoryGroup:
    """A cgroup with a memory limit."""

    directory: Path

    def command(self, *command: str) -> Sequence[str]:
        """The command line that runs a command in the group."""
        return ("/bin/sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self.directory), *command)

    def peak(self) -> int:
        """The most memory in bytes that was used so far; 0 if the kernel does not tell."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self.directory / name).exists():
                return int((self.directory / name).read_text())
        return 0


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """A group with a limit in bytes. Skips the test where such groups cannot be made."""
    first = (ROOT / "memory").exists()
    directory = (ROOT / "memory" if first else ROOT) / f"hostile-{os.getpid()}-{secrets.token_hex(4)}"
    file = "memory.limit_in_bytes" if first else "memory.max"
    try:
        directory.mkdir()
        (directory / file).write_text(str(limit))
    except OSError as error:
        if directory.exists():
            directory.rmdir()
        if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1" and first:
            pytest.fail(f"no memory cgroup can be made: {error}")
        pytest.skip(f"no memory cgroup can be made: {error}")
    try:
        yield MemoryGroup(directory)
    finally:
        wait_for(lambda: _removed(directory), what="the cgroup to be empty")


def _removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except OSError:
        return False
    return True
