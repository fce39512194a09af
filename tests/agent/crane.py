"""Golden cases of upstream's agent, tests/vectors/crane.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "crane.json").read_text())["vectors"]


def cases(kind: str) -> pytest.MarkDecorator:
    """Parametrises a test by the cases of a kind; at least one there must be."""
    found = [each for each in VECTORS if each["kind"] == kind]
    assert found, kind
    return pytest.mark.parametrize("case", found, ids=lambda case: case["id"])
