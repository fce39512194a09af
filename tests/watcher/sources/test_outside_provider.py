"""A provider in its own package: built as pip does, found by its entry point, and used by the service."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import RunService
from tests.outside_packages import unpacked
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for
from watcher.core.config.problems import SettingsError
from watcher.platform import provider_names
from watcher.service.settings.loading import load
from watcher.sources import registry
from watcher.sources.errors import ProviderRefused
from watcher.sources.settings import ProviderSettings

OUTSIDE = REPOSITORY / "tests" / "outside"
CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(OUTSIDE, tmp_path_factory)


@pytest.fixture
def reachable(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in this process; afterwards it is removed."""
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delitem(sys.modules, "load_watcher_from_file", raising=False)
    return installed


@pytest.mark.slow
def test_the_provider_is_found_by_its_name(reachable: Path, tmp_path: Path):
    """In any case, beside the built-in ones."""
    settings = load(flags={"provider.name": "File"}, environ={}, cwd=tmp_path)
    assert ("file", "File") == (settings[ProviderSettings].name, registry.build(settings).source)
    assert "file" in provider_names.known_names()


def test_without_its_package_the_provider_is_unknown(tmp_path: Path):
    """The error lists the existing ones."""
    with pytest.raises(SettingsError) as refused:
        load(flags={"provider.name": "file"}, environ={}, cwd=tmp_path)
    (problem,) = refused.value.problems
    assert "unknown provider" in problem.message
    assert "host, influxdb" in problem.cure


def test_settings_that_the_provider_refuses_are_errors(reachable: Path, tmp_path: Path):
    """By a ValueError of its factory."""
    flags = {"provider.name": "file", "provider.address": "http://nowhere"}
    with pytest.raises(ProviderRefused) as refused:
        registry.build(load(flags=flags, environ={}, cwd=tmp_path))
    assert "cannot work with these settings: provider.address: this source has none" in str(refused.value)
    assert "config show" in refused.value.hint


def test_the_error_names_a_package_that_cannot_be_imported(
    reachable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """For any exception of its import."""
    broken = tmp_path / "broken"
    shutil.copytree(reachable, broken)
    (broken / "load_watcher_from_file.py").write_text("raise RuntimeError('made for another version')")
    monkeypatch.setattr(sys, "path", [str(broken), *(each for each in sys.path if each != str(reachable))])
    with pytest.raises(ProviderRefused) as refused:
        registry.build(load(flags={"provider.name": "file"}, environ={}, cwd=tmp_path))
    assert "from the package load-watcher-from-file: RuntimeError: made for another version" in str(refused.value)
    assert "dependencies" in refused.value.hint


def test_two_packages_with_one_name_are_an_error(reachable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Neither is chosen silently."""
    (info,) = reachable.glob("*.dist-info")
    other = tmp_path / "another_files-2.0.dist-info"
    shutil.copytree(info, other)
    metadata = (other / "METADATA").read_text().replace("load-watcher-from-file", "another-files")
    (other / "METADATA").write_text(metadata)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ProviderRefused) as refused:
        registry.build(load(flags={"provider.name": "file"}, environ={}, cwd=tmp_path))
    assert "is in several packages: another-files, load-watcher-from-file" in str(refused.value)


@pytest.mark.slow
def test_the_service_runs_with_the_provider(installed: Path, run_service: RunService, tmp_path: Path):
    """From its file to GET /watcher; while the file does not exist, the health has the error of the package."""
    loads = tmp_path / "loads"
    environ = {"LOADS_FILE": str(loads), "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(installed)])}
    service = run_service("--provider", "file", "--interval", "1s", "--set", "refresh.resolution=1s", env=environ)
    reason = f"{loads} cannot be read: No such file"
    wait_for(lambda: reason in service.get("/watcher/health").text, what="the reason")

    ready = tmp_path / "loads.ready"
    ready.write_text("node-1 12.5 50\nnode-2 99 7.25\n")
    ready.rename(loads)
    document = service.wait_for_status(200).json()
    assert "File" == document["source"]
    nodes = document["data"]["NodeMetricsMap"]
    reported = {name: {each["name"]: each["value"] for each in node["metrics"]} for name, node in nodes.items()}
    assert {"node-1": {CPU: 12.5, MEMORY: 50.0}, "node-2": {CPU: 99.0, MEMORY: 7.25}} == reported


@pytest.mark.slow
def test_a_service_whose_provider_cannot_be_loaded_ends_with_an_error(
    installed: Path, run_service: RunService, tmp_path: Path
):
    """In one line, without a traceback."""
    broken = tmp_path / "broken"
    shutil.copytree(installed, broken)
    (broken / "load_watcher_from_file.py").write_text("import no_such_library")
    environ = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(broken)])}
    service = run_service("--provider", "file", env=environ, wait=False)
    wait_for(lambda: not service.is_running(), what="its end")
    assert service.process is not None
    assert 1 == service.process.returncode
    log = service.log()
    assert "the provider file cannot be loaded from the package load-watcher-from-file" in log
    assert "no_such_library" in log
    assert "Traceback" not in log
