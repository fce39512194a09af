"""Each optional part of the project can be removed: the rest runs, and its tests pass.

`make removal` runs all fast tests of the remaining packages for each part; `make test` only imports the tests, for
one part.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.real.parts import REPOSITORY

PARTS = ("agent", "agent/qrm", "lab")
CODE = ("load_watcher", "lab", "watcher", "scorers", "agent", "migrations")
TESTS = ("tests/watcher", "tests/scorers", "tests/lab", "tests/load_watcher", "tests/agent")
BLOCKED = """import sys
sys.modules["{module}"] = None  # the environment has the whole project, and would find the part there
"""
ALL = os.environ.get("LOAD_WATCHER_REMOVAL") == "all"
MAIN = "import removed, sys; from load_watcher.main import main; main(sys.argv[1:])"


@pytest.fixture(params=PARTS if ALL else PARTS[:1])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the project without one part and its tests; its environment does not have the part, either."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True, text=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (REPOSITORY / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, tmp_path / name)
    part: str = request.param
    shutil.rmtree(tmp_path / part)
    shutil.rmtree(tmp_path / "tests" / part)
    (tmp_path / "removed.py").write_text(BLOCKED.format(module=part.replace("/", ".")))
    return tmp_path


def environment(copy: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(copy)}


def run(copy: Path, arguments: Sequence[str], *, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment(copy), capture_output=True, text=True, timeout=timeout
    )


@pytest.mark.slow
def test_the_commands_of_the_rest_work(copy: Path, request: pytest.FixtureRequest):
    """Help and serve; the command of the part names the missing package."""
    helped = run(copy, ["-c", MAIN, "--help"])
    assert (helped.returncode, "serve" in helped.stdout) == (0, True), helped.stderr
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "serve", "--port", "0"],
        cwd=copy,
        env=environment(copy),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as service:
        assert service.stdout is not None
        listening = service.stdout.readline()
        service.send_signal(signal.SIGTERM)
        _, log = service.communicate(timeout=60)
    assert "listens on" in listening, log
    assert service.returncode == 0
    trace = copy / "trace.csv"
    trace.write_text("")
    command = {"agent": ["agent"], "qrm": ["qrm"], "lab": ["simulate", str(trace)]}[
        request.node.callspec.params["copy"].rpartition("/")[2]
    ]
    failed = run(copy, ["-c", MAIN, *command])
    assert failed.returncode == 2
    assert "this installation does not contain" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.slow
def test_the_tests_of_the_rest_are_complete(copy: Path):
    """No test of another package needs the part."""
    pytest_of = ["-m", "pytest", "-q", "-p", "removed", "-p", "no:cacheprovider", "-m", "not slow"]
    tests = [each for each in TESTS if (copy / each).exists()]
    how = ["-n", "2"] if ALL else ["--collect-only"]
    done = run(copy, [*pytest_of, *how, *tests], timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
