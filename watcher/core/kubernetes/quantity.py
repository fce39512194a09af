"""Kubernetes' quantities: "250m", "123456789n", "16Gi", "1e3", and "4k", which is what it makes of a "4000".

A quantity is a decimal number with a suffix, and Kubernetes keeps it to the billionth. As a whole number of billionths
it is exact in Python, so nothing is lost before the one division that makes a percentage of two of them.

Pure: text in, numbers out.
"""

from __future__ import annotations

import re

NANO = 10**9
LARGEST = (2**63 - 1) * NANO
"""Larger ones are cut to this, as Kubernetes does."""

_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("KMGTPE", start=1)}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{0,60})(?:\.(?P<fraction>\d{0,60}))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)


def nano(quantity: str | int | float) -> int:
    """A quantity in billionths: nano("250m") is 250,000,000. Finer ones are rounded away from zero, as Kubernetes does
    (resource.Quantity, "larger or more precise will be capped or rounded up"). Raises ValueError for what is none.

    JSON may also have a plain number in its place.
    """
    text = quantity if isinstance(quantity, str) else repr(quantity)
    match = _QUANTITY.fullmatch(text)
    digits = ((match["whole"] or "") + (match["fraction"] or "")) if match else ""
    if match is None or not digits:
        raise ValueError(f"{text[:40]!r} is no Kubernetes quantity")
    suffix = match["suffix"] or ""
    power = 9 - len(match["fraction"] or "")
    power += int(match["exponent"]) if match["exponent"] else _DECIMAL.get(suffix, 0)
    size: int = int(digits) * _BINARY.get(suffix, 1)
    size = size * 10**power if power >= 0 else -(-size // 10**-power)
    return min(size, LARGEST) * (-1 if match["sign"] == "-" else 1)
