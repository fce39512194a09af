"""Turning off each function as an operator does: the commands of docs/tasks/operations.md and of the removal of the
agents, by the real kubectl on a real API server. No controllers run: the tests end the processes that these would
end."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.service.test_process import Machine, agent, kubelet, machine, run, throttled
from tests.conftest import RunService
from tests.deploy.rendering import CHART, documents, helm, with_images
from tests.fakes.kubelet import FakeKubelet
from tests.real.control_plane.manifests import apply_all, overlay
from tests.real.control_plane.test_helm import objects
from tests.real.kube import ApiServer, Scheduler, find_kube_program
from tests.real.parts import REPOSITORY
from tests.real.scheduled_cluster import (
    SETTINGS,
    ExtendedScheduler,
    NodeLoad,
    add_nodes,
    add_pods,
    bindings,
    clear,
    mixed_nodes,
    wait_until_bound,
    wait_until_loaded,
    write_trace,
)
from tests.real.test_scheduling_trimaran import PluginScheduler, shipped_profile
from tests.waiting import wait_for

__all__ = ["kubelet", "machine"]  # fixtures

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

OPERATIONS, AGENT = REPOSITORY / "docs/tasks/operations.md", REPOSITORY / "docs/tasks/agent-running.md"
PROFILE = '\n[scheduler.default]\nplugins = [ { name = "TargetLoadPacking" } ]\n'
Kubectl = Callable[[str], str]


def section(page: Path, heading: str) -> str:
    return page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def commands(page: Path, heading: str) -> list[str]:
    """The commands of a section of a page."""
    return re.findall(r"^\$ (.+)$", section(page, heading), re.MULTILINE)


@pytest.fixture
def kubectl(apiserver: ApiServer, tmp_path: Path) -> Kubectl:
    """Run a command of a page in a shell, in a clone, as the administrator of the cluster."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(find_kube_program("kubectl"))
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "KUBECONFIG": str(apiserver.kubeconfig(tmp_path / "admin")),
    }

    def shell(command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    return shell


def test_the_brake_restores_all_limits_and_prevents_new_ones(
    apiserver: ApiServer, kubectl: Kubectl, machine: Machine, kubelet: FakeKubelet
) -> None:
    (brake,) = (each for each in commands(OPERATIONS, "Turn everything off") if "enforcement" in each)
    apply_all(apiserver, [each for each in overlay("agent") if each["kind"] in ("Namespace", "ConfigMap")])
    kubeconfig = str(apiserver.kubeconfig(machine.root / "kubeconfig"))
    with agent(machine, kubelet, "--enforce", "--set", f"kubernetes.kubeconfig={kubeconfig}") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        assert "patched" in kubectl(brake)
        wait_for(lambda: not throttled(machine), what="the limit to be restored")
        wait_for(lambda: process.get("/explain").json()["stance"] == "restore all", what="a cycle under the brake")
        assert not throttled(machine)
        kubectl(brake.replace("restore", "on"))
        wait_for(lambda: throttled(machine), what="the pod to be throttled again")
        process.kill()


@pytest.mark.parametrize("release", ["load-watcher", "lw"])
def test_the_page_has_the_name_that_helm_gives_the_brake(release: str) -> None:
    values = with_images({"agent": {"enabled": True}})
    rendered = documents(helm("template", release, CHART, "--namespace", "apps", "--values", "-", given=values))
    (control,) = (each for each in rendered if "nodes-at-once" in (each.get("data") or {}))
    names = re.findall(r"`([\w-]+-agent-control)`", section(OPERATIONS, "Turn everything off"))
    documented = {"load-watcher": "load-watcher-agent-control", "lw": "RELEASE-load-watcher-agent-control"}[release]
    assert documented in names
    assert documented.replace("RELEASE", release) == control["metadata"]["name"]
    assert "apps" == control["metadata"]["namespace"]


@pytest.fixture
def nodes(apiserver: ApiServer) -> Iterator[dict[str, NodeLoad]]:
    made = mixed_nodes(12, seed=3, hot=2, silent=0)
    add_nodes(apiserver, made)
    yield made
    clear(apiserver)


def test_without_the_extender_pods_are_placed_by_kube_scheduler(
    apiserver: ApiServer, kubectl: Kubectl, run_service: RunService, nodes: dict[str, NodeLoad], tmp_path: Path
) -> None:
    """With `ignorable: true`, as shipped, directly; otherwise a call of filter that fails keeps pods waiting until the
    entry is removed."""
    (scale,) = (each for each in commands(OPERATIONS, "Turn everything off") if "scale" in each)
    apply_all(apiserver, [each for each in overlay("overlays/extender") if each["kind"] in ("Namespace", "Deployment")])
    trace = write_trace(tmp_path / "trace.csv", nodes)
    config = SETTINGS.format(kubeconfig=apiserver.kubeconfig(tmp_path / "kubeconfig")) + PROFILE
    service = run_service("--provider", "replay", "--trace", str(trace), config=config)
    wait_until_loaded(service, nodes, profile="default")
    with ExtendedScheduler(tmp_path / "shipped", apiserver, service, filterVerb="filter") as scheduler:
        add_pods(apiserver, ["with-extender"])
        wait_until_bound(apiserver, ["with-extender"])
        assert "scaled" in kubectl(scale)
        assert 0 == only_deployment(apiserver)["spec"]["replicas"]
        assert 0 == service.stop()
        add_pods(apiserver, ["ignored"])
        wait_until_bound(apiserver, ["ignored"])
        assert "has ignorable flag set" in scheduler.log()
    with ExtendedScheduler(tmp_path / "strict", apiserver, service, filterVerb="filter", ignorable=False) as scheduler:
        add_pods(apiserver, ["kept"])
        wait_for(
            lambda: 'pod="default/kept"' in scheduler.log() and "connection refused" in scheduler.log(), what="kept"
        )
        assert "" == bindings(apiserver)["kept"]
    with Scheduler(tmp_path / "removed", apiserver, profiles=[{"schedulerName": "load-watcher"}]):
        wait_until_bound(apiserver, ["kept"])


def test_the_trimaran_plugins_use_their_last_copy_until_they_are_removed(
    apiserver: ApiServer, run_service: RunService, nodes: dict[str, NodeLoad], tmp_path: Path
) -> None:
    """The shipped profile without `plugins` and `pluginConfig` is the default profile of kube-scheduler."""
    trace = write_trace(tmp_path / "trace.csv", nodes)
    config = SETTINGS.format(kubeconfig=apiserver.kubeconfig(tmp_path / "kubeconfig")) + PROFILE
    service = run_service("--provider", "replay", "--trace", str(trace), config=config)
    wait_until_loaded(service, nodes, profile="default")
    profile = shipped_profile("TargetLoadPacking", service.url)
    scheduled = {"schedulerName": profile["schedulerName"]}
    with PluginScheduler(tmp_path / "with", apiserver, profiles=[profile]) as scheduler:
        wait_for(lambda: "received status code 200" in scheduler.log(), what="the scheduler to read the load")
        assert 0 == service.stop()
        wait_for(lambda: "Unable to update metrics" in scheduler.log(), what="the scheduler to miss the service")
        add_pods(apiserver, ["copied"], **scheduled)
        wait_until_bound(apiserver, ["copied"])
        assert 1 < len(set(scheduler.scores("copied").values()))
    with PluginScheduler(tmp_path / "without", apiserver, profiles=[scheduled]) as scheduler:
        add_pods(apiserver, ["plain"], **scheduled)
        wait_until_bound(apiserver, ["plain"])
        log = scheduler.log()
    assert 'plugin="NodeResourcesFit"' in log
    assert 'plugin="TargetLoadPacking"' not in log


def only_deployment(api: ApiServer) -> dict[str, Any]:
    found: dict[str, Any] = api.ask("GET", "/apis/apps/v1/namespaces/load-watcher/deployments/load-watcher").json()
    return found


def test_the_uninstallation_of_the_agents_restores_every_node_and_leaves_nothing(
    apiserver: ApiServer, kubectl: Kubectl, machine: Machine, kubelet: FakeKubelet
) -> None:
    """The container `restore` of the pods is run where an agent was killed; the Namespace ends by its controller."""
    kubectl("kubectl apply -k deploy/agent")
    assert agents(apiserver)
    with agent(machine, kubelet, "--enforce") as process:
        wait_for(lambda: throttled(machine), what="the pod to be throttled")
        process.kill()
    replace, rollout, delete, delete_policies = commands(AGENT, "Uninstall")[:4]
    kubectl(replace)
    assert "rollout status" in rollout
    daemon_set = apiserver.ask(
        "GET", "/apis/apps/v1/namespaces/load-watcher-agent/daemonsets/load-watcher-agent"
    ).json()
    (restore,) = daemon_set["spec"]["template"]["spec"]["initContainers"]
    assert "agent" == restore["args"][0]
    restored = run(machine, *restore["args"][1:], *machine.settings())
    assert (0, True) == (restored.returncode, "shop/web, container main" in restored.stdout), restored.stderr
    assert not throttled(machine)
    kubectl(f"{delete} --wait=false")
    kubectl(delete_policies)
    assert set() == agents(apiserver)


def agents(api: ApiServer) -> set[str]:
    """Objects of the agents, without the Namespace."""
    return {each for each in objects(api) if "load-watcher-agent" in each or "agent-control" in each}
