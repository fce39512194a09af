"""Real control groups of version 1 for tests, and processes in them, on a machine that others use too.

Manners (crane.md §10): groups have a name of this process's own and are gone with the test, whatever happened in it;
children die with us; nothing of anybody else's is touched. Children burn CPU in short bursts, so that they leave the
machine to others.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.waiting import wait_for

ROOT = Path("/sys/fs/cgroup")
CONTROLLERS = ("cpu", "cpuacct", "memory")

# Waits for a line, so that it can be put into its group first; dies with who started it.
_CHILD = """
import ctypes, os, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
sys.stdin.readline()
"""
BUSY = (
    _CHILD
    + """
share, began = float(sys.argv[2]), time.process_time()
while True:
    start = time.process_time()
    while time.process_time() - start < 0.1 * share:
        pass
    if share < 1:
        time.sleep(0.1 * (1 - share))
"""
)
HOLD = (
    _CHILD
    + """
held = os.urandom(1 << 20) * int(sys.argv[2])
print("held", flush=True)
sys.stdin.readline()
"""
)
CACHE = (
    _CHILD
    + """
with open(sys.argv[2], "wb") as file:
    for _ in range(int(sys.argv[3])):
        file.write(os.urandom(1 << 20))
    file.flush()
    os.fsync(file.fileno())
with open(sys.argv[2], "rb") as file:
    while file.read(1 << 20):
        pass
print("cached", flush=True)
sys.stdin.readline()
"""
)


def need_cgroup_v1() -> None:
    """Skip the test, or fail it where real parts are required, on a machine whose version 1 we may not write."""
    missing = [name for name in CONTROLLERS if not os.access(ROOT / name, os.W_OK)]
    if not missing:
        return
    reason = f"{', '.join(str(ROOT / name) for name in missing)} cannot be written: no control groups of version 1 here"
    # A machine of version 2 alone has none of these files, and is no worse for it; on CI's they must be there.
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1" and not (ROOT / "cgroup.controllers").exists():
        pytest.fail(reason)
    pytest.skip(reason)


class Groups:
    """A group of this test's own in each controller's tree, and what is made below it."""

    def __init__(self, *, controllers: Sequence[str] = CONTROLLERS) -> None:
        # Not of the process alone: one before it, which was killed, may have had the same number and left its groups.
        self.name = f"crane-e2e-{os.getpid()}-{secrets.token_hex(4)}"
        self._controllers = controllers
        self._children: list[subprocess.Popen[str]] = []
        self._made: list[str] = []

    def __enter__(self) -> Self:
        self.make("")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()
        for path in reversed(self._made):
            for directory in self.directories(path):
                if directory.exists():
                    wait_for(partial(_removed, directory), what=f"{directory} to be free")

    def path(self, below: str) -> str:
        """From the root of a tree."""
        return f"/{self.name}/{below}".rstrip("/")

    def directories(self, below: str) -> Iterator[Path]:
        return (ROOT / controller / self.path(below).lstrip("/") for controller in self._controllers)

    def make(self, below: str) -> str:
        """Make a group, and those above it; its path."""
        parts = [part for part in below.split("/") if part]
        for depth in range(len(parts) + 1):
            path = "/".join(parts[:depth])
            if path not in self._made:
                for directory in self.directories(path):
                    directory.mkdir()
                self._made.append(path)
        return self.path(below)

    def remove(self, below: str) -> None:
        """As the runtime does when a container has ended."""
        for directory in self.directories(below):
            wait_for(partial(_removed, directory), what=f"{directory} to be free")

    def run(self, below: str, program: str, *arguments: object) -> subprocess.Popen[str]:
        """A child in a group, which has begun."""
        command = [sys.executable, "-S", "-c", program, str(os.getpid()), *map(str, arguments)]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        for directory in self.directories(below):
            (directory / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
        return child


def _removed(directory: Path) -> bool:
    """A group is busy for a moment after its last process has ended."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
