"""The memory that this process may use: the limit of its control group, which is the memory limit of the container.

Bounds on answers of other programs and on the history are shares of this limit, so an answer that is too large fails
before the kernel ends the process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from pathlib import Path

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
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UNLIMITED = 1 << 50  # version 1 shows a limit that is not set as the largest whole number of pages


@cache
def memory_limit() -> int:
    """Bytes: the limit of the cgroup, or the memory of the machine, between SMALLEST and LARGEST. Read once, when the
    process first needs it."""
    limit = cgroup_limit() or LARGEST
    return max(SMALLEST, min(_PAGE * os.sysconf("SC_PHYS_PAGES"), LARGEST, limit))


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
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""
