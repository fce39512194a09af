"""The Trimaran plug-ins of scheduler-plugins in their real scheduler: its scores equal those of the service."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RunService
from tests.modules.programs import scheduler_plugins
from tests.real.kube import ApiServer, Scheduler
from tests.real.parts import REPOSITORY
from tests.real.scheduled_cluster import (
    PODS,
    SETTINGS,
    NodeLoad,
    add_nodes,
    clear,
    known_nodes,
    mixed_nodes,
    wait_until_bound,
    wait_until_loaded,
    write_trace,
)
from tests.service import Service
from tests.waiting import wait_for

pytestmark = pytest.mark.real_apiserver

PLUGINS = {
    "TargetLoadPacking": "target-load-packing",
    "LoadVariationRiskBalancing": "load-variation-risk-balancing",
    "LowRiskOverCommitment": "low-risk-over-commitment",
}
UPSTREAM = {"LoadVariationRiskBalancing": {"formula": "upstream"}, "TargetLoadPacking": {"podDemand": "upstream"}}
SCORED = re.compile(r'"Plugin scored node for pod" pod="default/([\w-]+)" plugin="(\w+)" node="([\w-]+)" score=(\d+)')
PODS_PER_PLUGIN = int(os.environ.get("LOAD_WATCHER_TRIMARAN_PODS", "20"))
SEED = int(os.environ.get("LOAD_WATCHER_TRIMARAN_SEED", "1"))


class PluginScheduler(Scheduler):
    """The scheduler of scheduler-plugins, with a log that contains every score."""

    name = "scheduler-plugins"

    def __init__(self, directory: Path, api: ApiServer, **config: Any) -> None:
        super().__init__(directory, api, **config)
        self._read = 0
        self._program = scheduler_plugins().directory / "scheduler"
        if not self._program.exists():
            # make kube builds it; make test does not, so that a first .ci/run stays below 20 minutes.
            pytest.skip(f"{self._program} is missing: run scripts/go-programs scheduler-plugins")

    def command(self) -> Sequence[str | Path]:
        return [*super().command(), "-v=10"]

    def scores(self, pod: str) -> dict[str, int]:
        """Return the scores of a Trimaran plug-in for a pod by node. Reads the log from where the last pod ended."""
        with self._log_path.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        found = SCORED.findall(text.decode(errors="replace"))
        scores = {node: int(score) for name, plugin, node, score in found if name == pod and plugin in PLUGINS}
        self._read += len(text) if scores else 0
        return scores


def shipped_profile(plugin: str, address: str) -> dict[str, Any]:
    """Return the profile of the shipped configuration, with the address of the service and the plug-in as name."""
    config = yaml.safe_load((REPOSITORY / "deploy/scheduler" / f"{PLUGINS[plugin]}.yaml").read_text())
    (profile,) = config["profiles"]
    (args,) = [each["args"] for each in profile["pluginConfig"] if each["name"] == plugin]
    args["watcherAddress"] = address
    if plugin == "LowRiskOverCommitment":
        args["smoothingWindowSize"] = 1  # upstream multiplies the deviation of an unsmoothed source, too
    return {**profile, "schedulerName": plugin.lower()}


def settings(api: ApiServer, directory: Path) -> str:
    """Return the settings of the service: one profile for each plug-in, with the arguments of the shipped file."""
    text = SETTINGS.format(kubeconfig=api.kubeconfig(directory / "kubeconfig"))
    for plugin in PLUGINS:
        (args,) = [each["args"] for each in shipped_profile(plugin, "")["pluginConfig"]]
        del args["watcherAddress"]
        entry = {"name": plugin, "args": {**args, **UPSTREAM.get(plugin, {})}}
        text += f"\n[scheduler.{plugin.lower()}]\nplugins = [ {inline_toml(entry)} ]\n"
    return text


def inline_toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {inline_toml(each)}' for key, each in value.items())} }}"
    return json.dumps(value)


@pytest.fixture
def nodes(apiserver: ApiServer) -> Iterator[dict[str, NodeLoad]]:
    made = mixed_nodes(50, seed=SEED)
    add_nodes(apiserver, made)
    yield made
    clear(apiserver)


@pytest.fixture
def service(apiserver: ApiServer, run_service: RunService, nodes: dict[str, NodeLoad], tmp_path: Path) -> Service:
    trace = write_trace(tmp_path / "trace.csv", nodes, seed=SEED)
    config = settings(apiserver, tmp_path)
    made = run_service("--provider", "replay", "--trace", str(trace), config=config)
    wait_until_loaded(made, nodes, profile="targetloadpacking")
    return made


def pod(number: int) -> dict[str, Any]:
    """Return the spec of a pod; the numbers go through kinds of requests and limits."""
    small, large = {"cpu": f"{100 + 37 * number}m", "memory": "200Mi"}, {"cpu": "1", "memory": "1Gi"}
    kinds: list[list[dict[str, Any]]] = [
        [{"requests": small}],
        [{"limits": large}],
        [{}],
        [{"requests": small, "limits": {"cpu": "4", "memory": "2Gi"}}],
        [{"requests": large, "limits": large}],
        [{"requests": small}, {"limits": large}],
    ]
    containers = kinds[number % len(kinds)]
    spec: dict[str, Any] = {
        "containers": [{"name": f"c{i}", "image": "x", "resources": each} for i, each in enumerate(containers)]
    }
    if number % 4 == 3:
        spec["initContainers"] = [{"name": "setup", "image": "x", "resources": {"requests": {"cpu": "500m"}}}]
    return spec


def test_the_real_plugins_give_the_same_scores(
    apiserver: ApiServer, service: Service, nodes: dict[str, NodeLoad], tmp_path: Path
):
    """Each pod is ranked by the service before the scheduler sees it; then all scores in the log of the scheduler are
    compared."""
    profiles = [shipped_profile(plugin, service.url) for plugin in PLUGINS]
    with PluginScheduler(tmp_path / "scheduler", apiserver, profiles=profiles) as scheduler:
        wait_for(lambda: "received status code 200" in scheduler.log(), what="the scheduler to read the load")
        differences, counts = [], dict.fromkeys(PLUGINS, 0)
        for plugin in PLUGINS:
            for i in range(PODS_PER_PLUGIN):
                name = f"{plugin.lower()}-{i}"
                ranked = ask_service(service, plugin.lower(), name, pod(i))
                place(apiserver, service, name, plugin.lower(), pod(i))
                real = wait_for(partial(scheduler.scores, name), what=f"the scores of {name}")
                counts[plugin] += len(real)
                differences += [
                    (name, node, score, ranked[node]) for node, score in sorted(real.items()) if ranked[node] != score
                ]
    print(f"compared scores: {counts}, different: {len(differences)}")
    assert not differences
    assert min(counts.values()) >= PODS_PER_PLUGIN * len(nodes) // 2


def ask_service(service: Service, profile: str, name: str, spec: dict[str, Any]) -> dict[str, int]:
    """Return the scores of the service for a pod by node."""
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}
    found = service.session.post(
        f"{service.url}/scheduler/{profile}/score?limit=1000", json=manifest, timeout=60
    ).json()
    return {node["name"]: int(node["score"]) for node in found["nodes"]}


def place(api: ApiServer, service: Service, name: str, scheduler: str, spec: dict[str, Any]) -> None:
    """Create the pod, and wait until it is bound and the service knows its node."""
    api.make(PODS, metadata={"name": name}, spec={**spec, "schedulerName": scheduler})
    node = wait_until_bound(api, [name])[name]
    uid = api.ask("GET", f"{PODS}/{name}").json()["metadata"]["uid"]
    wait_for(
        lambda: uid in [each["pod"] for each in known_nodes(service, scheduler)[node]["recent"]],
        what=f"the service to know {name}",
    )
