"""Golden cases of the Trimaran plug-ins, tests/vectors/trimaran.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "trimaran.json").read_text())["vectors"]


def cases(plugin: str, function: str) -> pytest.MarkDecorator:
    """Parametrize a test by the cases of a function; there must be at least one."""
    found = [each for each in VECTORS if each["plugin"] == plugin and each["function"] == function]
    assert found, (plugin, function)
    return pytest.mark.parametrize("case", found, ids=lambda case: case["id"])


def tolerance(case: dict[str, Any], value: float) -> Any:
    """`value` with the precision of the case."""
    given = case.get("tolerance", 0.0)
    if isinstance(given, str):
        return pytest.approx(value, rel=float(given.split()[-1]), abs=0.0)
    return pytest.approx(value, abs=float(given), rel=0.0)
