"""The memory that this process may use: the limit of its control group, which is the memory limit of the container.

Bounds on answers of other programs are shares of this limit, so an answer that is too large fails before the kernel
ends the process.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path, PurePosixPath

CGROUP_ROOT = Path("/sys/fs/cgroup")
LARGEST = 2 << 30
"""Bytes; a larger limit, or the memory of a larger machine, counts as this."""
SMALLEST = 64 << 20
_PAGE = os.sysconf("SC_PAGE_SIZE")


@cache
def memory_limit() -> int:
    """Bytes: the smallest limit of this process's control group and the groups above it, or the memory of the machine,
    between SMALLEST and LARGEST. Read once, when the process first needs it."""
    physical = _PAGE * os.sysconf("SC_PHYS_PAGES")
    return max(SMALLEST, min(physical, LARGEST, *_limits()))


def resident_memory() -> int:
    """Resident memory of this process in bytes; 0 where /proc does not exist."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _limits() -> list[int]:
    found: list[int] = []
    for directory, name in _files(_read(Path("/proc/self/cgroup"))):
        for group in (directory, *directory.parents):
            if CGROUP_ROOT not in (group, *group.parents):
                break
            text = _read(group / name).strip()
            if text.isdecimal():  # "max" and a missing file are not
                found.append(int(text))
    return found


def _files(membership: str) -> list[tuple[Path, str]]:
    """Directories and file names of the memory limit, from the content of /proc/self/cgroup. A container may see the
    path of the host, which does not exist below its own mount; the parents of that path do."""
    files = []
    for line in membership.splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        below = PurePosixPath(path).relative_to("/") if path.startswith("/") else PurePosixPath()
        if number == "0" and not controllers:
            files += [(CGROUP_ROOT / below, "memory.max")]
        elif "memory" in controllers.split(","):
            files += [(CGROUP_ROOT / "memory" / below, "memory.limit_in_bytes")]
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
