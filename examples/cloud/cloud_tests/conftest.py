"""The package as pip installs it, and the fixtures of load-watcher's own tests."""

from pathlib import Path

import pytest

from tests.conftest import clean_environment, own_logging, run_service, running
from tests.outside_packages import unpacked

__all__ = ["clean_environment", "own_logging", "run_service", "running"]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the path, with the modules and the entry points."""
    return unpacked(Path(__file__).parents[1], tmp_path_factory)


@pytest.fixture
def reachable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points are found in this process and in those that it starts."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    return installed
