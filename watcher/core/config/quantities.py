"""Kinds of values: durations (seconds) and sizes (bytes)."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

from watcher.core.config.values import InvalidValue, ValueKind, write_text

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0
_DIGITS = r"\d{1,20}(?:\.\d{1,30})?"
_PARTS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_DURATION = re.compile("".join(rf"(?:({_DIGITS}){unit})?" for unit in ("d", "h", "m", "s", "ms")), re.ASCII)
_NUMBER = re.compile(_DIGITS, re.ASCII)
_DURATION_PATTERN = r"^\s*(\d+(\.\d+)?(d|h|m|s|ms)?)+\s*$"


def read_duration(value: Any) -> float:
    """Parse "60s", "15m", "1h30m", "250ms" or a number of seconds (also as text) into seconds ≥ 0. Raises Unfit."""
    if type(value) in (int, float):
        # Compared before the conversion: a TOML integer may be too large for a float.
        if not 0 <= value <= 1e15 or math.isnan(value):
            raise InvalidValue
        return float(value)
    if not isinstance(value, str):
        raise InvalidValue
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise InvalidValue
    weights = (*(Decimal(weight) for _, weight in _PARTS), Decimal("0.001"))
    return float(sum(Decimal(part) * weight for part, weight in zip(match.groups(), weights, strict=True) if part))


def write_duration(seconds: float) -> str:
    """Format seconds without loss: 900 is "15m", 5400 "1h30m", 0.25 "250ms", 1.5 "1.5s"."""
    exact = Decimal(repr(seconds)).normalize()
    if exact != int(exact):
        millis = exact * 1000
        return f"{int(millis)}ms" if exact < 1 and millis == int(millis) else f"{exact:f}s"
    rest, written = int(exact), ""
    for unit, weight in _PARTS[1:]:  # no days: 24h, not 1d
        count, rest = divmod(rest, weight)
        written += f"{count}{unit}" if count else ""
    return written or "0s"


def duration(*, lowest: float = 0, highest: float = 366 * 86400) -> ValueKind:
    """Return the kind of durations from `lowest` to `highest` seconds; values are float seconds."""

    def read(value: Any) -> float:
        seconds = read_duration(value)
        if not lowest <= seconds <= highest:
            raise InvalidValue
        return seconds

    bounds = f", from {write_duration(lowest)} to {write_duration(highest)}"
    accepts = f'a duration like "60s", "15m", "1h30m" or "250ms", or a number of seconds{bounds}'
    schema = _duration_schema(lowest, highest)
    return ValueKind(accepts, read, schema, write=_write_quoted_duration, brief=f"duration{bounds}")


def _duration_schema(lowest: float, highest: float) -> dict[str, Any]:
    return {"type": ["string", "number"], "pattern": _DURATION_PATTERN, "minimum": lowest, "maximum": highest}


def _write_quoted_duration(seconds: float) -> str:
    return write_text(write_duration(seconds))


def whole_seconds(*, lowest: int, highest: int) -> ValueKind:
    """Return the kind of durations from `lowest` to `highest` whole seconds; values are int seconds."""

    def read(value: Any) -> int:
        seconds = read_duration(value)
        if seconds != int(seconds) or not lowest <= seconds <= highest:
            raise InvalidValue
        return int(seconds)

    accepts = f'a duration of whole seconds, like "{write_duration(min(15, highest))}", from {lowest}s to {highest}s'
    brief = f"whole seconds, from {lowest}s to {highest}s"
    schema = _duration_schema(lowest, highest)
    return ValueKind(accepts, read, schema, write=_write_quoted_duration, brief=brief)


def whole_hours(*, highest: int) -> ValueKind:
    """Return the kind of durations from one to `highest` whole hours; values are hours."""
    seconds = whole_seconds(lowest=int(HOUR), highest=highest * int(HOUR))

    def read(value: Any) -> int:
        hours, rest = divmod(seconds.read(value), int(HOUR))
        if rest:
            raise InvalidValue
        return int(hours)

    accepts = f'a duration of whole hours, like "6h", of at most {highest}h'
    return ValueKind(accepts, read, seconds.schema, write=lambda hours: write_text(f"{hours}h"))


def whole_seconds_or_auto(*, lowest: int, highest: int) -> ValueKind:
    """Return the kind of `whole_seconds` that also accepts "auto"; the value is then 0."""
    seconds = whole_seconds(lowest=lowest, highest=highest)

    def read(value: Any) -> int:
        return 0 if value == AUTO else int(seconds.read(value))

    def write(value: int) -> str:
        return _write_quoted_duration(value) if value else write_text(AUTO)

    schema = {**seconds.schema, "pattern": f"^{AUTO}$|{seconds.schema['pattern']}"}
    brief = f"auto, or {seconds.brief}"
    return ValueKind(f'"auto" or {seconds.accepts}', read, schema, write=write, brief=brief)


AUTO = "auto"
_BYTES = {"B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_SIZE = re.compile(rf"({_DIGITS})\s*([A-Za-z]*)", re.ASCII)
_SIZE_PATTERN = r"^\s*\d+(\.\d+)?\s*(([KkMmGgTt][Ii]?)?[Bb])?\s*$"


def write_size(size: int) -> str:
    """Format bytes in the largest binary unit that divides them: 2147483648 is "2GiB", 1500 "1500B"."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def size(*, lowest: int) -> ValueKind:
    """Return the kind of sizes of at least `lowest` bytes; values are int bytes."""

    def read(value: Any) -> int:
        if isinstance(value, str):
            value = _size_of(value)
        if type(value) is not int or not lowest <= value <= 2**60:
            raise InvalidValue
        return value

    accepts = f'a size like "2GiB" or "500MB", or a number of bytes, at least {write_size(lowest)}'
    brief = f"size, at least {write_size(lowest)}"
    schema = {"type": ["string", "integer"], "pattern": _SIZE_PATTERN, "minimum": lowest, "maximum": 2**60}
    return ValueKind(accepts, read, schema, write=lambda value: write_text(write_size(value)), brief=brief)


def _size_of(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    unit = (match[2] or "B").upper().replace("I", "i") if match else ""
    if match is None or unit not in _BYTES:
        raise InvalidValue
    return int(Decimal(match[1]) * _BYTES[unit])
