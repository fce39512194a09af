"""The memory that this process may use: the limit of its control group, which is the memory limit of the container.

Bounds on answers of other programs and on the history are shares of this limit, so an answer that is too large fails
before the kernel ends the process. Each answer is small, but their sum may be without bound: `BUDGET` compares the
memory of the whole process with the limit. Whatever keeps data of other programs asks it before it keeps more.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from watcher.platform.interpreter import release_free_memory

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
LARGEST = 2 << 30
"""Bytes; a larger limit, or the memory of a larger machine, counts as this."""
SMALLEST = 64 << 20
HISTORY_SHARE = 0.1
"""Share of the memory limit that the samples of the history may use. The computation of a tick, the encoded documents,
the requests that are handled at once and the rest of the process need the remainder (docs/concepts/scale.md)."""
WITHOUT_LIMIT = 256 << 20
"""Bytes for the samples of the history if the process has no memory limit."""
FULL_SHARE = 0.8
"""Share of the memory limit above which nothing more is kept; the rest is for ticks and requests."""
REQUEST_SHARE = 0.95
"""Share of the memory limit above which the bodies of requests are refused. Pages of files do not count, because the
kernel drops them before it ends the process."""
ROOM_SHARE = 0.7
"""Share of the memory limit up to which more is kept again."""
TRIM_EVERY_S = 1.0
REQUESTS = "requests"
"""What `MemoryBudget.refused` names without an effect on the data of this process."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 50  # version 1 shows a limit that is not set as the largest whole number of pages


@cache
def memory_limit() -> int:
    """Bytes: the limit of the cgroup, or the memory of the machine, between SMALLEST and LARGEST. Read once, when the
    process first needs it."""
    limit = cgroup_limit() or LARGEST
    return max(SMALLEST, min(_PAGE * os.sysconf("SC_PHYS_PAGES"), LARGEST, limit))


@cache
def process_limit() -> int:
    """Bytes: the limit of the cgroup, otherwise the memory of the machine."""
    machine = _PAGE * os.sysconf("SC_PHYS_PAGES")
    return min(machine, cgroup_limit() or machine)


def most_nodes(limit: int) -> int:
    """Return the number of nodes of which samples are kept within `limit` bytes: about twice those for which the
    manifests have this limit (docs/concepts/scale.md)."""
    mib = limit / (1 << 20)
    return int(20 * min(mib, 512) + 64 * max(mib - 512, 0))


def history_budget(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> int:
    """Return the bytes that the samples of the history may use."""
    limit = cgroup_limit(root, own)
    return WITHOUT_LIMIT if limit is None else int(HISTORY_SHARE * limit)


def cgroup_limit(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> int | None:
    """Return the lowest memory limit in bytes of the cgroup of this process and its parents, None without a limit.
    `root` is the mounted hierarchy, `own` the file that names the cgroup; versions 1 and 2. A container may see the
    path of the host, which does not exist below its own mount; the parents of that path do."""
    limits: list[int] = []
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, name = (root / "memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):
            if (text := _text(folder / name).strip()).isdecimal():
                limits.append(int(text))
            if folder == base:
                break
    lowest = min(limits, default=_UNLIMITED)
    return None if lowest >= _UNLIMITED else lowest


def resident_memory() -> int:
    """Resident memory of this process in bytes; 0 where /proc does not exist."""
    return _memory_pages()[0] * _PAGE


def private_memory() -> int:
    """Resident memory of this process in bytes without pages of files; 0 where /proc does not exist."""
    resident, of_files = _memory_pages()
    return (resident - of_files) * _PAGE


def _memory_pages() -> tuple[int, int]:
    """The resident pages, and those of them that belong to files."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        return int(fields[1]), int(fields[2])
    except (OSError, ValueError, IndexError):
        return 0, 0


class MemoryBudget:
    """The memory of this process and its limit, in bytes. `refused` says what is not kept, and why. Thread-safe."""

    def __init__(
        self,
        *,
        limit: Callable[[], int] = process_limit,
        used: Callable[[], int] = resident_memory,
        private: Callable[[], int] = private_memory,
    ) -> None:
        self._limit = limit
        self._used = used
        self._private = private
        self._trimmed = -TRIM_EVERY_S
        self._refused: dict[str, str] = {}
        self._lock = threading.Lock()

    def is_full(self) -> bool:
        """Whether nothing more may be kept: more than FULL_SHARE of the limit is used."""
        return self._exceeds(FULL_SHARE)

    def has_room(self) -> bool:
        """Whether what was refused may be tried again: at most ROOM_SHARE of the limit is used. Python returns little
        of the memory of many small objects to the system, but uses it for others: it may also be tried again once a
        part of them is gone."""
        return not self._exceeds(ROOM_SHARE)

    def for_requests(self) -> int:
        """Bytes that may be decoded from the bodies of requests, beside the memory in use."""
        return max(0, int(REQUEST_SHARE * self._limit()) - self._private())

    def _exceeds(self, share: float) -> bool:
        bound = share * self._limit()
        return self._used() > bound and self._used_after_trim() > bound

    def _used_after_trim(self) -> int:
        """The memory in use after free memory was returned to the system, at most once in TRIM_EVERY_S."""
        now = time.monotonic()
        if now - self._trimmed >= TRIM_EVERY_S:
            self._trimmed = now
            release_free_memory()
        return self._used()

    @property
    def refused(self) -> Mapping[str, str]:
        with self._lock:
            return dict(self._refused)

    def refuse(self, what: str, reason: str) -> None:
        """State that `what` is not kept, until `accept`."""
        with self._lock:
            self._refused[what] = reason

    def accept(self, what: str) -> None:
        """State that `what` is kept again."""
        with self._lock:
            self._refused.pop(what, None)


BUDGET = MemoryBudget()
"""The budget of this process."""


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""
