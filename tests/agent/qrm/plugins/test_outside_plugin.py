"""A resource plug-in in its own package: built as pip does, found by its entry point, and allocated with."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.external import outside_plugins
from agent.qrm.roles import DEFAULT_ROLES
from tests.agent.qrm.grpc.test_grpc_server import serving
from tests.agent.qrm.plugins.test_plugins import SEED, cpu_plugin
from tests.agent.qrm.test_main import World, given, world
from tests.outside_packages import on_path, unpacked
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for
from watcher.platform.entry_points import ExtensionError

__all__ = ["world"]  # a fixture
OUTSIDE = REPOSITORY / "tests" / "outside_qrm_plugin"
MODULE = "load_watcher_scratch_disks"
DISKS = "nvme0=0 nvme1=1 nvme2=1"
SCRATCH = "example.org/scratch"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(OUTSIDE, tmp_path_factory)


@pytest.fixture
def reachable(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCRATCH_DISKS", DISKS)
    return on_path(installed, tmp_path, MODULE, monkeypatch)


def found(*builtin: ResourcePlugin) -> list[ResourcePlugin]:
    return outside_plugins(SEED, DEFAULT_ROLES, builtin)


def refused(*builtin: ResourcePlugin) -> tuple[str, str]:
    with pytest.raises(ExtensionError) as raised:
        found(*builtin)
    return str(raised.value), raised.value.hint


@pytest.mark.slow
def test_pods_get_disks_of_the_plugin_through_the_manager(
    world: World, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is served, registered, merged with the hints of the built-in plug-ins, kept over a restart, and refuses when
    nothing is left."""
    monkeypatch.setenv("SCRATCH_DISKS", DISKS)
    path = {"PYTHONPATH": f"{REPOSITORY}:{installed}"}
    one, two, three = (f"{number}1111111-0000-4000-8000-000000000000" for number in range(3))
    lines = ('reserved_cpus = "0-1,40-41"', "nic_plugin = false")

    def has(qrm: Any, pod: str) -> dict[str, Any]:
        what: dict[str, Any] = given(qrm).get(pod, {}).get(SCRATCH, {})
        return what

    world.pod("default/one", one, "storage-service", cpu="4", requests={SCRATCH: "2"})
    with world.run(*lines, mode="dry-run", env=path) as qrm:
        first = wait_for(lambda: has(qrm, "default/one"), what="two disks")
        assert (first["allocation_result"], first["envs"]) == ("nvme1,nvme2", {"SCRATCH": "nvme1,nvme2"})
        cpus = given(qrm)["default/one"]["cpu"]["allocation_result"]
        assert cpus == "42-45", "on the node of the disks"
    world.pod("default/two", two, "storage-service", cpu="4", requests={SCRATCH: "1"})
    with world.run(*lines, mode="dry-run", env=path) as qrm:
        assert wait_for(lambda: has(qrm, "default/two"), what="the last disk")["allocation_result"] == "nvme0"
        assert has(qrm, "default/one") == first
        world.pod("default/three", three, "storage-service", cpu="4", requests={SCRATCH: "1"})
        (no,) = wait_for(lambda: qrm.state()["inadmissible"], what="the pod for which there is no disk")
        assert (no["pod"], no["reason"]) == ("default/three", "TopologyAffinityError")


def test_the_plugin_does_not_exist_without_its_package() -> None:
    assert found() == []


def test_the_plugin_is_found_beside_the_builtin_ones(reachable: Path) -> None:
    (plugin,) = found(cpu_plugin())
    assert (plugin.name, plugin.resource, plugin.capacity_by_node()) == ("scratch_disks", SCRATCH, {0: 1.0, 1: 2.0})


async def test_its_total_is_reported_for_the_status_of_the_node(reachable: Path, tmp_path: Path) -> None:
    """The plug-in reports it itself; the kubelet reports the CPUs."""

    async def reported(plugin: ResourcePlugin) -> tuple[float, bool, bool]:
        async with serving(tmp_path, plugin=plugin) as (_, endpoint):
            _, whole = (await endpoint.allocatable())[plugin.resource]
            return whole.total, whole.is_node_resource, whole.is_scalar_resource

    (plugin,) = found()
    assert await reported(plugin) == (3.0, True, True)
    assert await reported(cpu_plugin()) == (80.0, False, True)


def test_the_error_names_a_package_that_cannot_be_imported(reachable: Path) -> None:
    (reachable / f"{MODULE}.py").write_text("import no_such_library")
    message, hint = refused()
    assert "cannot load the plug-in scratch from the package load-watcher-scratch-disks: ModuleNotFound" in message
    assert "no_such_library" in message
    assert hint.startswith("Check that load-watcher-scratch-disks supports this version")


def test_an_error_of_the_plugin_is_reported(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH_DISKS", "nvme0=7")
    assert "SCRATCH_DISKS names NUMA nodes that do not exist on this machine: [7]" in refused()[0]


@pytest.mark.parametrize(
    ("changed", "to", "problem"),
    [
        ("    return ScratchDisks(numbered)", "    return 7", "is not a resource plug-in but int"),
        ('name = "scratch_disks"', 'name = "../scratch"', "has the name '../scratch', resource 'example.org/scratch'"),
        ('RESOURCE = "example.org/scratch"', 'RESOURCE = ""', "has the name 'scratch_disks', resource ''"),
        ('RESOURCE = "example.org/scratch"', 'RESOURCE = "cpu"', "serves cpu, which the built-in plug-in also serves"),
        ('name = "scratch_disks"', 'name = "qrm_cpu_plugin"', "has the name qrm_cpu_plugin, which is already used"),
    ],
)
def test_an_invalid_plugin_is_an_error_with_its_reason(reachable: Path, changed: str, to: str, problem: str) -> None:
    file = reachable / f"{MODULE}.py"
    text = file.read_text()
    assert changed in text
    file.write_text(text.replace(changed, to))
    assert problem in refused(cpu_plugin())[0]


def test_two_packages_with_one_name_are_an_error(reachable: Path) -> None:
    """Neither is chosen silently."""
    (info,) = reachable.glob("*.dist-info")
    other = reachable / "other_disks-2.0.dist-info"
    shutil.copytree(info, other)
    metadata = (other / "METADATA").read_text().replace("load-watcher-scratch-disks", "other-disks")
    (other / "METADATA").write_text(metadata)
    assert refused() == (
        "several packages provide the plug-in scratch: load-watcher-scratch-disks, other-disks",
        "Uninstall all but one of them.",
    )


def test_a_page_contains_the_code_of_the_package() -> None:
    page = (REPOSITORY / "docs" / "learn" / "own-resource-plugin.md").read_text()
    parts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    module = (OUTSIDE / f"{MODULE}.py").read_text()
    assert len(parts) == 3
    assert [part for part in parts if part not in module] == []
    project = (OUTSIDE / "pyproject.toml").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [line for line in shown.splitlines() if line not in project.splitlines()] == []
