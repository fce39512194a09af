"""The memory limit of this process, in a real cgroup, and the share of it that the history may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.memory_limit import MIB, MemoryLimit
from watcher.core.windows.resolution import history_bytes
from watcher.platform.memory import (
    LARGEST,
    SMALLEST,
    WITHOUT_LIMIT,
    MemoryBudget,
    history_budget,
    memory_limit,
    most_nodes,
    resident_memory,
)

REPOSITORY = Path(__file__).resolve().parents[3]


def budget(tmp_path: Path, own: str, limits: dict[str, str]) -> int:
    """The budget of a process in the cgroup `own` with these limits by file."""
    root = tmp_path / "cgroup"
    for name, text in limits.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "own").write_text(own)
    return history_budget(root, tmp_path / "own")


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("0::/\n", {"memory.max": f"{1280 * MIB}\n"}, 128 * MIB),  # as in a container
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{640 * MIB}\n"}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{320 * MIB}\n", "a/memory.max": f"{640 * MIB}\n"}, 32 * MIB),
        ("0::/a\n", {"a/memory.max": "max\n"}, WITHOUT_LIMIT),
        ("0::/a\n", {}, WITHOUT_LIMIT),
        ("", {}, WITHOUT_LIMIT),
        ("3:cpu:/a\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{1280 * MIB}\n"}, 128 * MIB),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, WITHOUT_LIMIT),
    ],
)
def test_a_tenth_of_the_lowest_limit(tmp_path: Path, own: str, limits: dict[str, str], expected: int) -> None:
    assert budget(tmp_path, own, limits) == expected


def test_the_shipped_limit_leaves_memory_for_requests_of_whole_nodes(tmp_path: Path) -> None:
    """With 5,000 nodes, slots of 10 s fit (the peak was 507 MiB), and with slots of 5 s the kernel ended the process
    (tests/real/test_request_memory.py with this setting)."""
    shipped = budget(tmp_path, "0::/\n", {"memory.max": f"{512 * MIB}\n"})
    need = {width: history_bytes(width, nodes=5000, metrics=6, seconds=1065.0) for width in (5, 10)}
    assert need[10] <= shipped < need[5]


def test_this_machine_has_a_budget() -> None:
    assert history_budget() > 0


def test_the_limit_of_this_machine_is_within_its_bounds():
    assert SMALLEST <= memory_limit() <= LARGEST
    assert 1 * MIB < resident_memory()


@pytest.mark.slow
def test_the_limit_is_that_of_the_cgroup():
    code = "from watcher.platform.memory import memory_limit; print(memory_limit())"
    with MemoryLimit(200 * MIB) as group:
        done = subprocess.run(
            group.command(sys.executable, "-c", code),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == [str(200 * MIB)]


def test_a_full_process_accepts_objects_again_only_well_below_the_limit() -> None:
    """Otherwise each further object would be accepted and refused in turn."""
    for used, full, room in ((700, False, True), (701, False, False), (800, False, False), (801, True, False)):
        budget = MemoryBudget(limit=lambda: 1000, used=lambda size=used: size)  # type: ignore[misc]
        assert (budget.is_full(), budget.has_room()) == (full, room), used


def test_refusals_are_reported_until_they_end() -> None:
    budget = MemoryBudget(limit=lambda: 1000, used=lambda: 0)
    budget.refuse("list of pods", "too many")
    assert budget.refused == {"list of pods": "too many"}
    budget.accept("list of pods")
    assert budget.refused == {}


@pytest.mark.parametrize(
    ("mib", "nodes"), [(256, 5_120), (512, 10_240), (1320, 61_952), (2048, 108_544)], ids=lambda value: str(value)
)
def test_the_limit_on_nodes_is_above_the_number_for_the_memory_limit(mib: int, nodes: int) -> None:
    """docs/tasks/deploy.md: max(512, 420 + 18 * nodes / 1,000) MiB."""
    assert nodes == most_nodes(mib * MIB)
    assert nodes >= (mib - 420) / 18 * 1000
