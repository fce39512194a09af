"""What the files of control groups say.

Pure: bytes in, numbers out; ValueError for what the kernel never writes. Who read them names the file.
"""

from __future__ import annotations

from agent.cgroups.base import Averages, Pressure, Quota

UNLIMITED_V1 = 2**62
"""Version 1 writes a limit of memory that is none as the largest number of whole pages, close to 2**63."""


def natural(content: bytes) -> int:
    """A whole number that is not negative."""
    text = content.strip()
    if not text.isdigit():  # int would take signs, and underscores within
        raise ValueError(content)
    return int(text)


def integer(content: bytes) -> int:
    """A whole number, negative ones too."""
    text = content.strip()
    return -natural(text[1:]) if text[:1] == b"-" else natural(text)


def positive(content: bytes) -> int:
    """A whole number above 0: of a period, by which is divided."""
    number = natural(content)
    if not number:
        raise ValueError(content)
    return number


def naturals(content: bytes) -> tuple[int, ...]:
    """A number a line."""
    return tuple(natural(line) for line in content.split())


def limit(content: bytes) -> int | None:
    """A number of bytes, or None where it is "max", or version 1's largest."""
    if content.strip() == b"max":
        return None
    number = natural(content)
    return None if number >= UNLIMITED_V1 else number


def field(content: bytes, key: bytes) -> int | None:
    """The number beside a key, of lines of keys and numbers; None where there is no such key."""
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
    """The same where it must be there."""
    found = field(content, key)
    if found is None:
        raise ValueError(content)
    return found


def cpu_max(content: bytes) -> Quota:
    """Version 2's cpu.max: "max 100000" or "20000 100000"."""
    quota, period = content.split()
    return Quota(None if quota == b"max" else positive(quota), positive(period))


def pressure(content: bytes) -> Pressure:
    """A file of pressure: lines `some` and, but for the CPU of older kernels, `full`."""
    lines = {}
    for line in content.splitlines():
        name, *pairs = line.split()
        values = dict(pair.split(b"=", 1) for pair in pairs)
        avg10, avg60, avg300 = (_percent(values[key]) for key in (b"avg10", b"avg60", b"avg300"))
        lines[name] = Averages(avg10, avg60, avg300, natural(values[b"total"]))
    return Pressure(lines[b"some"], lines.get(b"full"))


def _percent(text: bytes) -> float:
    number = float(text)
    if not 0.0 <= number <= 100.0:  # nor what is no number at all
        raise ValueError(text)
    return number
