"""Values as JSON can have them: what NumPy computed, without NaN and infinities; and what JSON has, without nulls.

Pure: no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """The same in Python's own types; what is not finite is None."""
    found = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


def plain_map(values: Mapping[str, Any]) -> dict[str, Any]:
    """All that is in a map, and in the maps in it."""
    return {name: plain_map(value) if isinstance(value, Mapping) else plain(value) for name, value in values.items()}


def without_nulls(document: Any) -> Any:
    """What JSON has, without the keys that are null, however deep: to Go, and so to Kubernetes, they are not there."""
    if isinstance(document, Mapping):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(each) for each in document] if isinstance(document, list) else document
