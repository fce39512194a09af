"""Parsers for the content of cgroup files.

Pure functions from bytes to numbers; they raise ValueError for content that the kernel never writes. The caller adds
the name of the file.
"""

from __future__ import annotations

from agent.cgroups.base import Pressure, PressureAverages, Quota

UNLIMITED_V1 = 2**62
"""Version 1 writes an unlimited memory limit as the largest number of whole pages, close to 2**63."""


def natural(content: bytes) -> int:
    """A whole number that is not negative."""
    text = content.strip()
    if not text.isdigit():  # int() would also accept signs and underscores
        raise ValueError(content)
    return int(text)


def integer(content: bytes) -> int:
    """A whole number, possibly negative."""
    text = content.strip()
    return -natural(text[1:]) if text[:1] == b"-" else natural(text)


def positive(content: bytes) -> int:
    """A whole number above 0, such as a period, which is used as a divisor."""
    number = natural(content)
    if not number:
        raise ValueError(content)
    return number


def naturals(content: bytes) -> tuple[int, ...]:
    """Whole numbers separated by whitespace, normally one per line."""
    return tuple(natural(line) for line in content.split())


def limit(content: bytes) -> int | None:
    """A number of bytes; None for "max" and for the "unlimited" value of version 1."""
    if content.strip() == b"max":
        return None
    number = natural(content)
    return None if number >= UNLIMITED_V1 else number


def field(content: bytes, key: bytes) -> int | None:
    """The number that follows a key, in a file with one key and one number per line; None if the key is missing."""
    start = content.find(b"\n" + key + b" ") + 1
    if not start and not content.startswith(key + b" "):
        return None
    start += len(key) + 1
    end = content.find(b"\n", start)
    text = content[start:] if end < 0 else content[start:end]
    if not text.isdigit():
        raise ValueError(content)
    return int(text)


def required(content: bytes, key: bytes) -> int:
    """Like `field`, but raises ValueError if the key is missing."""
    found = field(content, key)
    if found is None:
        raise ValueError(content)
    return found


def cpu_max(content: bytes) -> Quota:
    """The cpu.max file of version 2: "max 100000" or "20000 100000" (quota and period in microseconds)."""
    quota, period = content.split()
    return Quota(None if quota == b"max" else positive(quota), positive(period))


def pressure(content: bytes) -> Pressure:
    """A pressure file: the lines `some` and `full`. Older kernels do not write `full` for the CPU."""
    lines = {}
    for line in content.splitlines():
        name, *pairs = line.split()
        values = dict(pair.split(b"=", 1) for pair in pairs)
        avg10, avg60, avg300 = (_percent(values[key]) for key in (b"avg10", b"avg60", b"avg300"))
        lines[name] = PressureAverages(avg10, avg60, avg300, natural(values[b"total"]))
    return Pressure(lines[b"some"], lines.get(b"full"))


def _percent(text: bytes) -> float:
    number = float(text)
    if not 0.0 <= number <= 100.0:  # also rejects NaN
        raise ValueError(text)
    return number
