"""The memory limit of this process, in a real cgroup."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile.memory import MIB, memory_group
from watcher.platform.memory import LARGEST, SMALLEST, memory_limit, resident_memory

REPOSITORY = Path(__file__).resolve().parents[3]


def test_the_limit_of_this_machine_is_within_its_bounds():
    assert SMALLEST <= memory_limit() <= LARGEST
    assert 1 * MIB < resident_memory()


@pytest.mark.slow
def test_the_limit_is_that_of_the_cgroup():
    code = "from watcher.platform.memory import memory_limit; print(memory_limit())"
    with memory_group(200 * MIB) as group:
        done = subprocess.run(
            group.command(sys.executable, "-c", code),
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == [str(200 * MIB)]
