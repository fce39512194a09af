"""Sets of CPUs (and of NUMA nodes) in the kernel's list format: "0-1,8-9".

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

CpuSet = frozenset[int]

EMPTY: CpuSet = frozenset()
MAX_CPU = 1 << 16
"""Numbers from this value on are rejected: the largest kernels support 8,192 CPUs, and a parsed range is expanded in
memory."""

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def parse(text: str) -> CpuSet:
    """Parse a list of CPUs. Surrounding whitespace is allowed, because kernel files end with a newline.

    Raises ValueError that quotes the invalid part.
    """
    stripped = text.strip()
    if not stripped:
        return EMPTY
    found: set[int] = set()
    for part in stripped.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{_shown(part)} in {_shown(text)} is neither a number nor a range like 0-3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ValueError(f"the range {_shown(part)} in {_shown(text)} ends before it begins")
        if last >= MAX_CPU:
            raise ValueError(f"{_shown(part)} in {_shown(text)} is greater than {MAX_CPU - 1}")
        found.update(range(first, last + 1))
    return frozenset(found)


def text(cpus: Iterable[int]) -> str:
    """The list format: ascending, consecutive numbers as ranges; empty text for the empty set."""
    ordered = sorted(set(cpus))
    parts: list[str] = []
    start = 0
    for i, cpu in enumerate(ordered):
        if i + 1 < len(ordered) and ordered[i + 1] == cpu + 1:
            continue
        first = ordered[start]
        parts.append(str(cpu) if first == cpu else f"{first}-{cpu}")
        start = i + 1
    return ",".join(parts)


def canonical(given: str) -> str:
    """The list format of a set. Raises ValueError that quotes the invalid part."""
    return text(parse(given))


def canonical_or_unchanged(given: str) -> str:
    """The list format of a set; unchanged if it is not a set."""
    try:
        return canonical(given)
    except ValueError:
        return given


def _shown(given: str) -> str:
    """The text quoted and shortened, because it may come from any file."""
    return repr(given if len(given) <= 60 else given[:57] + "…")
