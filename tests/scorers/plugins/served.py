"""A plug-in in a service over HTTP, with nodes and pods from a Kubernetes API and any load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from scorers.cluster.table import ClusterTable
from scorers.extender.hosting import InProcessLoad
from scorers.extender.service import SchedulingService
from tests.fakes.kube import PODS, FakeKube
from tests.fakes.service import Live
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.scorers.plugins.koordinator.test_service import Service
from tests.waiting import wait_for
from watcher.model import Snapshot

Stated = Mapping[str, Mapping[str, tuple[float, float]]]
"""node -> "CPU" or "Memory" -> mean and deviation of all its windows, percent."""


def stated(values: Stated) -> Snapshot:
    """The watcher's document of these values. Deviations of a document may exceed the maximum of any load between 0 and
    100 percent (KEP-61: 80 percent around a mean of 20), so the windows contain them directly."""
    snapshot = snapshot_of({name: {kind: steady(50) for kind in of} for name, of in values.items()})
    metrics = []
    for metric in snapshot.metrics:
        mean, deviation = np.array([values[name][metric.metric.key] for name in snapshot.nodes]).T
        shape = metric.average.shape
        metrics.append(
            replace(
                metric,
                average=np.broadcast_to(mean, shape).copy(),
                deviation=np.broadcast_to(deviation, shape).copy(),
                latest=mean,
            )
        )
    return replace(snapshot, metrics=tuple(metrics))


@dataclass
class Asked:
    """A service with the profile `p`, and its responses."""

    live: Live
    table: ClusterTable
    names: list[str]

    def post(self, verb: str, pod: Mapping[str, Any]) -> Any:
        body = msgspec.json.encode({"Pod": pod, "NodeNames": self.names})
        answer = self.live.ask(f"/scheduler/p/{verb}", method="POST", body=body)
        assert 200 == answer.status, answer.body
        return answer.json()

    def scores(self, pod: Mapping[str, Any]) -> dict[str, int]:
        return {each["Host"]: each["Score"] for each in self.post("prioritize", pod)}

    def steps(self, pod: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """The steps of the only plug-in in explain, by node."""
        found = {}
        for node in self.post("explain", pod)["nodes"]:
            (reported,) = (each for each in node["plugins"] if each["point"] == "score")
            found[node["name"]] = {**reported["steps"], "score": reported["score"], "reason": reported["reason"]}
        return found

    def of_node(self, name: str) -> Any:
        return self.live.ask(f"/scheduler/p/nodes/{name}").json()["nodes"][name]


@contextmanager
def serving(
    kube: FakeKube, tmp_path: Path, plugin: str, *, load: Snapshot | None, names: list[str], **args: Any
) -> Iterator[Asked]:
    """Over HTTP, with nodes, pods and load."""
    service = Service(kube.kubeconfig(tmp_path / "kubeconfig"))
    service.published = None if load is None else publish(load)
    profile = {"plugins": [{"name": plugin, "args": args}], "precise_scores": True}
    scheduling = SchedulingService({"p": profile}, service, InProcessLoad(service))
    table = scheduling.table
    pods = sum("nodeName" in kube.content(PODS, name)["spec"] for name in kube.names(PODS))
    with Live(routes=scheduling.extender.routes(), lives=[scheduling.life]) as live:
        wait_for(lambda: set(names) <= set(table.row) and table.pods.sum() == pods, what="nodes and pods")
        wait_for(lambda: load is None or table.load.columns is not None, what="load")
        yield Asked(live, table, names)


def a_pod(**resources: Mapping[str, str]) -> dict[str, Any]:
    return {
        "metadata": {"name": "pod5", "namespace": "default", "uid": "pod5"},
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }
