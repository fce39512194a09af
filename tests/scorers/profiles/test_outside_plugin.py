"""A plug-in in its own package: built as pip does, found by its entry point, and used by a service."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from scorers.profiles.profiles import PluginSettings, ProfileSettings, validate
from scorers.profiles.ranking import ProfileRunner
from scorers.profiles.registry import known_names
from tests.conftest import RunService
from tests.fakes.kube import NODES, PODS, FakeKube
from tests.outside_packages import on_path, unpacked
from tests.real.parts import REPOSITORY
from tests.scorers.simulated_cluster import NOW, info, node, rows, table
from tests.service import Service
from tests.waiting import wait_for

OUTSIDE = REPOSITORY / "tests" / "outside_scorer"
MODULE = "load_watcher_fewest_pods"
PROFILE = {"default": {"plugins": [{"name": "FewestPods", "args": {"fullAt": 4}}]}}
CONFIG = """
[kubernetes]
kubeconfig = "{kubeconfig}"

[scheduler.default]
plugins = [{{ name = "FewestPods", args = {{ fullAt = 4 }} }}]
precise_scores = true
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(OUTSIDE, tmp_path_factory)


@pytest.fixture
def reachable(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return on_path(installed, tmp_path, MODULE, monkeypatch)


def problem() -> tuple[str, str, str]:
    """The only problem of a profile with the plug-in."""
    (found,) = validate(PROFILE)
    return found.key, found.message, found.cure


def test_the_plug_in_has_a_known_name_and_its_arguments_are_read(reachable: Path):
    assert "FewestPods" in known_names()
    assert [] == validate(PROFILE)
    (found,) = validate({"default": {"plugins": [{"name": "FewestPods", "args": {"fullAt": 0}}]}})
    assert found.key == "scheduler.default.plugins[0].args.fullAt"
    assert "must be a whole number above 0" in found.message


def test_without_its_package_the_plug_in_is_unknown():
    key, message, cure = problem()
    assert key == "scheduler.default.plugins[0].name"
    assert "unknown plug-in FewestPods; installed plug-ins: HighLoadFilter" in message
    assert cure == "check the spelling"


def test_the_error_names_a_package_that_cannot_be_imported(reachable: Path):
    """For any exception of its import; the message does not suggest the same name."""
    (reachable / f"{MODULE}.py").write_text("raise RuntimeError('made for another version')")
    _, message, cure = problem()
    assert "from package load-watcher-fewest-pods: RuntimeError: made for another version" in message
    assert "fix or uninstall load-watcher-fewest-pods" in cure


def test_a_class_that_is_not_a_plug_in_is_an_error_that_names_the_missing_methods(reachable: Path):
    (reachable / f"{MODULE}.py").write_text("class FewestPods:\n    name = 'FewestPods'\n")
    _, message, cure = problem()
    assert message == "plug-in FewestPods lacks arguments, score or filter"
    assert "docs/learn/own-plugin.md" in cure


FILTER = """
import numpy as np
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Verdicts

class FewestPods:
    name, arguments, filters_every_pod = "FewestPods", Arguments, {every}
    def __init__(self, arguments, table, *, profile="default"): ...
    def filter(self, pod, table, rows, *, now):
        return Verdicts(np.ones(len(rows), dtype=np.int64), ("", "full"))
"""


@pytest.mark.parametrize("every", [False, True])
def test_exempt_pods_pass_a_filter_that_does_not_ask_for_every_pod(reachable: Path, every: bool):
    """The plug-in needs no code for that."""
    (reachable / f"{MODULE}.py").write_text(FILTER.format(every=every))
    cluster = table([node("a", {"cpu": "4"})])
    runner = ProfileRunner(ProfileSettings("p", (PluginSettings("FewestPods", 1, {}, ("filter",)),)), cluster)
    daemon = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "cni", "controller": True}]}
    for metadata, passes in (({}, False), (daemon, not every)):
        found = runner.filter(info(metadata=metadata), rows(cluster), now=NOW)
        assert found.failures(["a"]) == ({} if passes else {"a": "full"})


def test_two_packages_with_one_plug_in_name_are_an_error(reachable: Path):
    """Neither is chosen silently."""
    (info,) = reachable.glob("*.dist-info")
    other = reachable / "other_pods-2.0.dist-info"
    shutil.copytree(info, other)
    metadata = (other / "METADATA").read_text().replace("load-watcher-fewest-pods", "other-pods")
    (other / "METADATA").write_text(metadata)
    _, message, cure = problem()
    assert message == "plug-in FewestPods is provided by several packages: load-watcher-fewest-pods, other-pods"
    assert cure == "uninstall all but one"


def test_the_page_has_the_code_of_the_package():
    """So that the code on the page is the tested code."""
    page = (REPOSITORY / "docs" / "learn" / "own-plugin.md").read_text()
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert module == (OUTSIDE / f"{MODULE}.py").read_text()
    project = (OUTSIDE / "pyproject.toml").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)[0]
    assert [line for line in shown.splitlines() if line not in project.splitlines()] == []


def environment(site: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(site)]), "NODE_NAME": "empty"}


@pytest.mark.slow
def test_a_service_ranks_with_the_plug_in(installed: Path, run_service: RunService, tmp_path: Path):
    """One of two nodes has three pods; the explanation contains this."""
    pod = {"metadata": {"name": "web", "namespace": "default", "uid": "web"}, "spec": {"containers": [{"name": "c"}]}}
    with FakeKube() as kube:
        for name in ("empty", "full"):
            kube.put(NODES, name, metadata={"name": name}, status={"capacity": {"cpu": "8"}})
        for name in ("a", "b", "c"):
            spec = {"nodeName": "full", "containers": [{"name": "c"}]}
            kube.put(PODS, f"default/{name}", metadata={"name": name, "namespace": "default", "uid": name}, spec=spec)
        config = CONFIG.format(kubeconfig=kube.kubeconfig(tmp_path / "kubeconfig"))
        service = run_service("--provider", "host", config=config, env=environment(installed))
        wait_for(lambda: counts(service) == {"empty": 0, "full": 3}, what="nodes and pods")
        explained = post(service, "explain", {"Pod": pod})
        reported = {node["name"]: node["plugins"][0]["reason"] for node in explained["nodes"]}
        assert reported["full"] == "3 pods; nodes with 4 or more score 0"
        scores = post(service, "prioritize", {"Pod": pod, "Nodes": None, "NodeNames": ["full", "empty"]})
        assert {each["Host"]: each["Score"] for each in scores} == {"empty": 100, "full": 25}
        assert "FewestPods" in service.get("/scheduler/plugins").text
        assert 0 == service.stop()


@pytest.mark.slow
def test_a_plug_in_that_cannot_be_loaded_ends_the_service_with_an_error(
    installed: Path, run_service: RunService, tmp_path: Path
):
    """As any problem of the settings: exit code 2, the key and the remedy, without a traceback."""
    broken = tmp_path / "broken"
    shutil.copytree(installed, broken)
    (broken / f"{MODULE}.py").write_text("import no_such_library")
    config = CONFIG.format(kubeconfig=tmp_path / "kubeconfig")
    (tmp_path / "kubeconfig").touch()
    service = run_service("--provider", "host", config=config, env=environment(broken), wait=False)
    assert service.process is not None
    assert 2 == service.process.wait(60)
    log = service.log()
    assert "scheduler.default.plugins[0].name" in log
    assert "no_such_library" in log
    assert "fix or uninstall load-watcher-fewest-pods" in log
    assert "Traceback" not in log


def counts(service: Service) -> dict[str, int]:
    nodes = service.get("/scheduler/default/nodes").json()["nodes"]
    return {name: node["pods"] for name, node in nodes.items()}


def post(service: Service, verb: str, body: object) -> Any:
    answer = service.session.post(f"{service.url}/scheduler/default/{verb}", json=body, timeout=60)
    assert answer.status_code == 200
    return answer.json()
