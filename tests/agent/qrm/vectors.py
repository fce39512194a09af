"""Golden cases of the QoS Resource Manager (tests/vectors/qrm.json) and their machines."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu

_VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "qrm.json").read_text())


def group(name: str) -> list[dict[str, Any]]:
    """All cases of a group, which is not empty."""
    found: list[dict[str, Any]] = _VECTORS["groups"][name]["cases"]
    assert found
    return found


def cases(name: str) -> pytest.MarkDecorator:
    """Parametrises a test by the cases of a group."""
    found = group(name)
    return pytest.mark.parametrize("case", found, ids=[str(i) for i in range(len(found))])


@cache
def machine(name: str) -> CpuTopology:
    """A topology of the vectors."""
    topology = _VECTORS["topologies"][name]
    columns = zip(topology["core"], topology["socket"], topology["numa"], topology["l3"], strict=True)
    return CpuTopology({i: LogicalCpu(i, *column) for i, column in enumerate(columns)})
