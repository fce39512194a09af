"""Kubernetes quantities: "250m", "123456789n", "16Gi", "1e3", and "4k", which is the canonical form of "4000".

A quantity is a decimal number with a suffix, with a precision of one billionth. As an integer number of billionths it
is exact in Python, so the only rounding occurs in the final division of two quantities.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re

NANO = 10**9
LARGEST = (2**63 - 1) * NANO
"""Larger quantities are reduced to this, as in Kubernetes."""

_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{0,60})(?:\.(?P<fraction>\d{0,60}))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)


def nano(quantity: str | int | float) -> int:
    """A quantity in billionths: nano("250m") is 250,000,000. Smaller fractions are rounded away from zero, as in
    Kubernetes (resource.Quantity, "larger or more precise will be capped or rounded up"). JSON may contain a plain
    number instead of a string. Raises ValueError for an invalid quantity."""
    text = quantity if isinstance(quantity, str) else repr(quantity)
    match = _QUANTITY.fullmatch(text)
    digits = ((match["whole"] or "") + (match["fraction"] or "")) if match else ""
    if match is None or not digits:
        raise ValueError(f"{text[:40]!r} is not a Kubernetes quantity")
    suffix = match["suffix"] or ""
    power = 9 - len(match["fraction"] or "")
    power += int(match["exponent"]) if match["exponent"] else _DECIMAL.get(suffix, 0)
    size: int = int(digits) * _BINARY.get(suffix, 1)
    size = size * 10**power if power >= 0 else -(-size // 10**-power)
    return min(size, LARGEST) * (-1 if match["sign"] == "-" else 1)
