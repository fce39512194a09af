"""The memory that this process may use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

HISTORY_SHARE = 0.2
"""Share of the memory limit that the samples of the history may use. The computation of a tick, the encoded documents
and the rest of the process need the remainder (docs/scale.md)."""
WITHOUT_LIMIT = 256 << 20
"""Bytes for the samples of the history if the process has no memory limit."""


def history_budget(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the bytes that the samples of the history may use."""
    limit = memory_limit(root, own)
    return WITHOUT_LIMIT if limit is None else int(HISTORY_SHARE * limit)


def memory_limit(root: Path, own: Path) -> int | None:
    """Return the lowest memory limit in bytes of the cgroup of this process and its parents, None without a limit.
    `root` is the mounted hierarchy, `own` the file that names the cgroup; versions 1 and 2."""
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


_UNLIMITED = 1 << 50  # version 1 shows a limit that is not set as the largest whole number of pages


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""
