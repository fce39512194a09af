"""The Python that runs the checks, and the jobs of GitHub."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
BASE = getattr(sys, "_base_executable", sys.executable)

# Runs its code as a Python of another version, or without a module.
OTHER = """import collections, sys
Version = collections.namedtuple("Version", "major minor micro releaselevel serial")
sys.version_info = Version({version}, 0, "{level}", 0)
sys.prefix = sys.base_prefix + "{prefix}"
if "{without}":
    sys.modules["{without}"] = None
exec(sys.argv[1])
"""
PROBLEM = "3.11 or newer, and none was found"


def python(
    directory: Path, name: str, version: str, *, level: str = "final", prefix: str = "", without: str = ""
) -> str:
    """A program that behaves like this version of Python; its path."""
    directory.mkdir(parents=True, exist_ok=True)
    code = directory / f"{name}.code"
    code.write_text(OTHER.format(version=version.replace(".", ", "), level=level, prefix=prefix, without=without))
    path = directory / name
    path.write_text(f'#!/bin/sh\nexec {BASE} -c "$(cat {code})" "$2"\n')
    path.chmod(0o755)
    return str(path)


def shim(directory: Path, name: str) -> None:
    """A program as pyenv creates for an inactive version."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f'#!/bin/sh\necho "pyenv: {name}: command not found" >&2\nexit 127\n')
    path.chmod(0o755)


def find(*directories: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    (tools := directories[0].parent / "tools").mkdir(exist_ok=True)
    for tool in ("sort", "tail", "cat"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    path = ":".join(map(str, (*directories, tools)))
    home = str(directories[0].parent / "home")
    return subprocess.run(
        ["/bin/sh", REPOSITORY / "scripts" / "find-python"],
        env={"PATH": path, "HOME": home, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_newest_python_is_found_and_shims_are_skipped(tmp_path: Path) -> None:
    """Versions are compared as numbers, and the first of equal ones is taken."""
    shim(tmp_path / "a", "python3.13")
    shim(tmp_path / "a", "python3")
    python(tmp_path / "a", "python3.11", "3.11")
    newest = python(tmp_path / "b", "python3.12", "3.12")
    python(tmp_path / "c", "python3.12", "3.12")
    python(tmp_path / "c", "python3.9", "3.9")
    done = find(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert (f"{newest}\n", "") == (done.stdout, done.stderr)


@pytest.mark.parametrize("root", ["", "elsewhere"])
def test_versions_of_pyenv_are_found_beside_path(root: str, tmp_path: Path) -> None:
    shim(tmp_path / "a", "python3.13")
    python(tmp_path / "a", "python3", "3.11")
    pyenv = tmp_path / root if root else tmp_path / "home" / ".pyenv"
    newest = python(pyenv / "versions" / "3.13.0" / "bin", "python3.13", "3.13")
    environment = {"PYENV_ROOT": str(pyenv)} if root else {}
    assert f"{newest}\n" == find(tmp_path / "a", **environment).stdout


def test_a_machine_with_one_python_uses_it(tmp_path: Path) -> None:
    only = python(tmp_path / "a", "python3", "3.11")
    python(tmp_path / "a", "python3.15", "3.15", level="beta")
    python(tmp_path / "a", "python", "3.13", prefix="/a-virtual-environment")
    python(tmp_path / "a", "python3.14", "3.14", without="ensurepip")
    assert f"{only}\n" == find(tmp_path / "a").stdout


@pytest.mark.parametrize(
    ("version", "without", "problem"),
    [("3.10", "", PROBLEM), ("3.11", "ensurepip", "cannot make virtual environments"), (None, "", PROBLEM)],
)
def test_a_missing_python_is_an_error(version: str | None, without: str, problem: str, tmp_path: Path) -> None:
    shim(tmp_path / "a", "python3.13")
    if version is not None:
        python(tmp_path / "a", "python3", version, without=without)
    done = find(tmp_path / "a")
    assert (1, "") == (done.returncode, done.stdout)
    assert problem in done.stderr


def environment(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The environment of `make venv`; `python -m venv` is not run."""
    command = ["make", "--silent", "venv", f"VENV={path / 'venv'}", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def test_make_refuses_an_older_python_that_is_named(tmp_path: Path) -> None:
    old = python(tmp_path, "python3.10", "3.10")
    done = environment(tmp_path, f"PYTHON={old}")
    assert 0 != done.returncode
    assert f"requires Python 3.11 or newer, and {old} is not" in done.stderr


@pytest.fixture(scope="module")
def jobs() -> Mapping[str, Any]:
    found: Mapping[str, Any] = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    return found


def test_lint_types_and_tests_are_jobs(jobs: Mapping[str, Any]) -> None:
    assert {name: f"bash .ci/run {name}" for name in ("lint", "types", "tests")} == {
        name: job["steps"][-1]["run"] for name, job in jobs.items()
    }


def test_tests_run_on_the_oldest_python_and_on_that_of_the_image(jobs: Mapping[str, Any]) -> None:
    image = re.search(r"^ARG PYTHON_IMAGE=python:(3\.\d+)", (REPOSITORY / "Dockerfile").read_text(), re.M)
    assert image is not None
    oldest = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["requires-python"].lstrip(">=")
    assert [oldest, image[1]] == jobs["tests"]["strategy"]["matrix"]["python"]
    assert "python${{ matrix.python }}" == jobs["tests"]["env"]["PYTHON"]


def test_an_unknown_part_is_refused() -> None:
    done = subprocess.run(
        ["bash", ".ci/run", "tset"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 2 == done.returncode
    assert "unknown part tset" in done.stderr


TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("at", range({broken}))
def test_broken(at):
    assert False

def test_late():
    seen = Path("seen")
    assert seen.exists() or seen.touch()

def test_other():
    pass
"""


def run_tests(path: Path, *, broken: int) -> subprocess.CompletedProcess[str]:
    """Run `.ci/run tests` where one test fails the first time, and `broken` fails each time."""
    for name in (".ci", "scripts", "bin", ".venv/bin"):
        (path / name).mkdir(parents=True)
    for name in (".ci/run", "scripts/find-python"):
        shutil.copy(REPOSITORY / name, path / name)
    (path / "test_some.py").write_text(TESTS.format(broken=broken))
    (path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (path / "bin/make").write_text('#!/bin/sh\ncase "$*" in test) exec .venv/bin/python -m pytest ;; esac\n')
    for name in (".venv/bin/python", "bin/make"):
        (path / name).chmod(0o755)
    steady = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        ["bash", ".ci/run", "tests"],
        cwd=path,
        env={**steady, "PATH": f"{path / 'bin'}:{os.environ['PATH']}", "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_a_test_that_passes_alone_is_named_and_fails_no_run(tmp_path: Path) -> None:
    done = run_tests(tmp_path, broken=0)
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "1 failed beside other tests" in done.stdout
    assert '"test_some.py::test_late": true' in done.stdout
    assert "1 passed" in done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(("broken", "last"), [(1, "1 failed, 1 passed"), (10, "11 failed, 1 passed")])
def test_a_test_that_fails_alone_as_well_fails_the_run(broken: int, last: str, tmp_path: Path) -> None:
    """More than ten failures do not run again."""
    done = run_tests(tmp_path, broken=broken)
    assert 1 == done.returncode, done.stdout + done.stderr
    assert last in done.stdout.splitlines()[-1]
    assert (broken == 10) == ("beside other tests" not in done.stdout)
