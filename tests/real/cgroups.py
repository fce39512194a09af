"""Real control groups of version 1 for tests, and processes in them, on a machine that is also used by others.

Rules: groups have a name of this process and are removed with the test, also if it fails; child processes end with the
test process; no other group is changed. Child processes burn CPU in short bursts, so that other processes of the
machine can run.
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

# Waits for a line, so that it can be moved into its group first; ends with its parent process.
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
    """Skip the test (or fail if real parts are required) if the groups of version 1 cannot be written."""
    missing = [name for name in CONTROLLERS if not os.access(ROOT / name, os.W_OK)]
    if not missing:
        return
    reason = f"{', '.join(str(ROOT / name) for name in missing)} cannot be written: no control groups of version 1 here"
    # A machine with version 2 only has none of these files; the machines of CI must have them.
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1" and not (ROOT / "cgroup.controllers").exists():
        pytest.fail(reason)
    pytest.skip(reason)


class Groups:
    """A separate group for this test in each controller's tree, and the groups below it."""

    def __init__(self, *, controllers: Sequence[str] = CONTROLLERS) -> None:
        # Not only the process id: a killed process with the same id may have left its groups.
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
        """The path from the root of a tree."""
        return f"/{self.name}/{below}".rstrip("/")

    def directories(self, below: str) -> Iterator[Path]:
        return (ROOT / controller / self.path(below).lstrip("/") for controller in self._controllers)

    def make(self, below: str) -> str:
        """Make a group and its parents; return its path."""
        parts = [part for part in below.split("/") if part]
        for depth in range(len(parts) + 1):
            path = "/".join(parts[:depth])
            if path not in self._made:
                for directory in self.directories(path):
                    directory.mkdir()
                self._made.append(path)
        return self.path(below)

    def remove(self, below: str) -> None:
        """Remove it, as the runtime does when a container has ended."""
        for directory in self.directories(below):
            wait_for(partial(_removed, directory), what=f"{directory} to be free")

    def run(self, below: str, program: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a child process in a group."""
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
    """Retry: a group is busy for a moment after its last process has ended."""
    try:
        directory.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
