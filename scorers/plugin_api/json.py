"""Convert values to JSON: NumPy results without NaN and infinity, and documents without nulls.

Pure: no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python value; a value that is not finite becomes None."""
    found = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


def plain_map(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert all values of a map and its nested maps."""
    return {name: plain_map(value) if isinstance(value, Mapping) else plain(value) for name, value in values.items()}


def without_nulls(document: Any) -> Any:
    """Remove keys with null values at all levels: Go, and therefore Kubernetes, treats them as absent."""
    if isinstance(document, Mapping):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(each) for each in document] if isinstance(document, list) else document
