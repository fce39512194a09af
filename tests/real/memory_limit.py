"""A memory limit for a process of a test, as a container has it: a cgroup of version 1 or 2."""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.waiting import wait_for

ROOT = Path("/sys/fs/cgroup")
MIB = 1 << 20


class MemoryLimit:
    """A cgroup with a memory limit and without swap. Without a writable cgroup file system the test is skipped, or
    fails where real parts are required."""

    def __init__(self, size: int) -> None:
        name = f"load-watcher-test-{os.getpid()}-{secrets.token_hex(4)}"
        self._v1 = (ROOT / "memory").is_dir()
        self._group = ROOT / "memory" / name if self._v1 else ROOT / name
        self._size = size

    def __enter__(self) -> Self:
        try:
            self._group.mkdir()
            if self._v1:
                (self._group / "memory.limit_in_bytes").write_text(str(self._size))
            else:
                (self._group / "memory.max").write_text(str(self._size))
                (self._group / "memory.swap.max").write_text("0")
        except OSError as error:
            self._give_up(f"no memory limit can be set in {self._group}: {error}")
        return self

    def _give_up(self, reason: str) -> None:
        if self._group.is_dir():
            self._group.rmdir()
        if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
            pytest.fail(reason)
        pytest.skip(reason)

    def command(self, *command: str | Path) -> Sequence[str]:
        """The command line that runs a command in the group. The process keeps its id."""
        script = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        return ("/bin/sh", "-c", script, str(self._group), *map(str, command))

    @property
    def peak(self) -> int:
        """The largest number of bytes in use."""
        name = "memory.max_usage_in_bytes" if self._v1 else "memory.peak"
        return int((self._group / name).read_text())

    @property
    def kills(self) -> int:
        """How often the kernel ended a process because of the limit."""
        name = "memory.oom_control" if self._v1 else "memory.events"
        values = dict(line.split() for line in (self._group / name).read_text().splitlines())
        return int(values["oom_kill"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wait_for(partial(_removed, self._group), what=f"{self._group} to be free")


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return False
    return True
