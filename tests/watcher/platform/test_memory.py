"""The memory that the samples of the history may use: a share of the lowest limit of the cgroups."""

from __future__ import annotations

from pathlib import Path

import pytest

from watcher.platform.memory import WITHOUT_LIMIT, history_budget

MIB = 1 << 20


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
        ("0::/\n", {"memory.max": f"{640 * MIB}\n"}, 128 * MIB),  # as in a container
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{320 * MIB}\n"}, 64 * MIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{160 * MIB}\n", "a/memory.max": f"{320 * MIB}\n"}, 32 * MIB),
        ("0::/a\n", {"a/memory.max": "max\n"}, WITHOUT_LIMIT),
        ("0::/a\n", {}, WITHOUT_LIMIT),
        ("", {}, WITHOUT_LIMIT),
        ("3:cpu:/a\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": f"{640 * MIB}\n"}, 128 * MIB),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": "9223372036854771712\n"}, WITHOUT_LIMIT),
    ],
)
def test_a_fifth_of_the_lowest_limit(tmp_path: Path, own: str, limits: dict[str, str], expected: int) -> None:
    assert budget(tmp_path, own, limits) == expected


def test_this_machine_has_a_budget() -> None:
    assert history_budget() > 0
