"""Third-party packages as pip installs them: built as wheels, unpacked, added to the path."""

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder


def unpacked(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the path with the files that pip unpacks: the module, and metadata with the entry point."""
    source, directory = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    shutil.copytree(package, source, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    (wheel,) = WheelBuilder(str(source)).build(directory=str(source), versions=["standard"])
    with zipfile.ZipFile(wheel) as built:
        built.extractall(directory)
    return directory


def on_path(installed: Path, directory: Path, module: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it on the path of this process, which a test may change; it is removed afterwards."""
    copy = directory / "site"
    shutil.copytree(installed, copy)
    monkeypatch.syspath_prepend(str(copy))
    monkeypatch.delitem(sys.modules, module, raising=False)
    return copy
