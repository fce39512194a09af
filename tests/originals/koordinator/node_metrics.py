"""NodeMetrics that load-watcher's publisher writes, as Koordinator reads them: with its type, its
CustomResourceDefinition, and its scheduling plug-in."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from scorers.cluster.node_metrics import NodeMetricObject, read_node_metric
from tests.fakes.pods import publish_pods
from tests.modules import programs
from tests.originals.frame import Case, Outcome
from tests.originals.koordinator.cases import NODE
from tests.originals.koordinator.scheduling import LoadAwareSchedulingComparison
from tests.originals.programs import ask_lines
from tests.originals.random_pods import chance
from tests.schemas import draft202012
from tests.watcher.koordinator.test_publisher import RESOURCE, Cluster, Run, run, service
from watcher.core.koordinator.report import Capacity, PodClass

MODULE = "github.com/koordinator-sh/koordinator"
DEFINITION = "config/crd/bases/slo.koordinator.sh_nodemetrics.yaml"
SLOTS = 60
PLUGIN_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {
        "aggregated": {
            "usageThresholds": {"cpu": 65},
            "usageAggregationType": "p95",
            "usageAggregatedDuration": "5m",
            "scoreAggregationType": "p50",
            "scoreAggregatedDuration": "15m",
        }
    },
    {"prodUsageThresholds": {"cpu": 5}, "scoreAccordingProdUsage": True, "usageThresholds": {"cpu": 30}},
)


class NodeMetricComparison:
    """Outcomes of the NodeMetrics that a publisher writes for a cluster of `cases` nodes with random samples."""

    name = "NodeMetric"
    default_cases = 40

    def outcomes(self, program: Path, *, seed: int, cases: int) -> Iterator[Outcome]:
        written = publish(random.Random(f"{self.name} {seed}"), cases)
        schema = definition()
        for node_metric, answer in zip(written, ask_lines(program, written, "decode"), strict=True):
            yield Outcome("strict decoding", node_metric, answer["problems"], [])
            yield Outcome("values after decoding", node_metric, values(answer["nodeMetric"]), values(node_metric))
            yield Outcome("schema of the definition", node_metric, problems(node_metric, schema), [])
        scheduling = LoadAwareSchedulingComparison()
        questions = [question(each, args) for each in written for args in PLUGIN_ARGUMENTS]
        for case, answer in zip(questions, scheduling.ask_original(program, questions), strict=True):
            yield from scheduling.compare(case, answer)


# --- written objects -------------------------------------------------------------------------------------------------


def publish(source: random.Random, count: int) -> list[Case]:
    """The NodeMetrics on an API server after load-watcher's publisher has written them."""
    names = [f"node-{i}" for i in range(count)]
    pods = {
        ("team", f"{name}-p{i}"): (name, source.choice([0.0, 0.0001, source.random() * 4]), source.random() * 2**32)
        for name in names
        for i in range(source.choice([0, 1, 3]))
    }
    cluster: Cluster = service({name: _samples(source) for name in names}, pods=publish_pods(pods))
    sizes = (Capacity(4000, 8 << 30), Capacity(96_000, 512 << 30), Capacity(7910, 33_567_891_234))
    cluster.sizes = {name: source.choice(sizes) for name in names}
    classes = (PodClass("koord-prod", "LS"), PodClass("koord-batch", "BE"), PodClass("", "LSR"))
    cluster.classes = {key: source.choice(classes) for key in pods if chance(source, 0.8)}
    found: list[Case] = []

    async def collect(publisher: Run) -> None:
        await publisher.settled()
        found.extend(publisher.server.content(RESOURCE, name) for name in sorted(publisher.server.names(RESOURCE)))

    run(cluster, collect)
    return found


def _samples(source: random.Random) -> dict[str, list[float]]:
    """Values in percent, one per slot; the history of a node may be short or have gaps."""
    length, gaps = source.choice([4, 20, 45, SLOTS]), chance(source, 0.2)
    kinds = [kind for kind in ("CPU", "Memory") if chance(source, 0.97)] or ["CPU"]
    found = {}
    for kind in kinds:
        level = source.choice([0.0, 1e-6, 33.333333333, 100.0, source.random() * 100])
        values = [min(100.0, level * (0.5 + source.random())) for _ in range(length)]
        found[kind] = [float("nan") if gaps and chance(source, 0.3) else each for each in values]
        found[kind][-1] = level
    return found


# --- Koordinator's reader --------------------------------------------------------------------------------------------


def values(node_metric: Case) -> str:
    """The amounts and times of a NodeMetric; their spelling may differ."""
    return str(read_node_metric(msgspec.convert(node_metric, NodeMetricObject)))


def definition() -> dict[str, Any]:
    """The JSON schema of the CustomResourceDefinition in Koordinator's module. Additional fields, which an API server
    removes, are forbidden."""
    module, go = programs.original("koordinator"), programs.find_go()
    if go is None:
        raise RuntimeError("Go is required to find the CustomResourceDefinition of Koordinator")
    for command in (["mod", "download", MODULE], ["list", "-m", "-f", "{{.Dir}}", MODULE]):
        environment = programs.go_environment()
        done = subprocess.run(
            [str(go), *command], cwd=module.source, env=environment, text=True, stdout=subprocess.PIPE
        )
        done.check_returncode()
    content = yaml.safe_load(Path(done.stdout.strip(), DEFINITION).read_text())
    (version,) = (each for each in content["spec"]["versions"] if each["name"] == "v1alpha1")
    closed: dict[str, Any] = _closed(version["schema"]["openAPIV3Schema"])
    return closed


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: _closed(value) for key, value in schema.items()}
    if "properties" in schema and "x-kubernetes-preserve-unknown-fields" not in schema:
        found.setdefault("additionalProperties", False)
    return found


def problems(node_metric: Case, schema: dict[str, Any]) -> list[str]:
    """What the API server would refuse or remove, apart from metadata, which has no schema in a definition."""
    content = {**node_metric, "metadata": {}}
    return [f"{error.json_path}: {error.message}" for error in draft202012(schema).iter_errors(content)]


def question(node_metric: Case, args: dict[str, Any]) -> Case:
    """A case of LoadAwareScheduling with a NodeMetric that was written 20 s ago."""
    status = {**node_metric["status"], "updateTime": "@-20"}
    labels = {"koordinator.sh/priority-class": "koord-prod"}
    requests = {"cpu": "500m", "memory": "1Gi"}
    container = {"name": "c", "resources": {"requests": requests}}
    pods = [
        {
            "metadata": {"name": each["name"], "namespace": each["namespace"], "uid": each["name"], "labels": labels},
            "spec": {"nodeName": NODE, "containers": [container]},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "@-600"}],
            },
        }
        for each in node_metric["status"].get("podsMetric", ())
    ]
    size = {"cpu": "8", "memory": "32Gi"}
    return {
        "args": args,
        "node": {"metadata": {"name": NODE}, "status": {"allocatable": size, "capacity": size}},
        "nodeMetric": {**node_metric, "metadata": {"name": NODE}, "status": status},
        "pods": pods,
        "reserved": [],
        "pod": {
            "metadata": {"name": "incoming", "namespace": "default", "uid": "incoming", "labels": labels},
            "spec": {"containers": [container]},
        },
    }
