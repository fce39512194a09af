"""`load-watcher doctor` in the pods of the agent: no false alarm; planted faults are named."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.cluster import agents
from tests.cluster.cluster import Cluster
from tests.cluster.deployed import applied, created, doctor, wait_ready
from tests.cluster.images import SERVICE
from tests.deploy.rendering import DeployComponent
from tests.waiting import wait_for


@contextlib.contextmanager
def agents_with_doctor(cluster: Cluster, directory: Path, components: Sequence[DeployComponent]) -> Iterator[str]:
    """Run agents with the image `load-watcher`, which has the doctor; the name of the pod on the first node."""
    with applied(cluster, directory, "agent", components, images={"load-watcher-agent": SERVICE}) as namespace:
        pods = wait_ready(cluster, namespace, agents.SELECTOR, len(cluster.nodes))
        (name,) = [each["metadata"]["name"] for each in pods if each["spec"]["nodeName"] == cluster.nodes[0].name]
        yield str(name)


def test_nothing_is_wrong_with_an_agent_that_enforces_and_the_brake_is_named(cluster: Cluster, tmp_path: Path):
    with (
        agents.definitions(cluster),
        agents_with_doctor(cluster, tmp_path, agents.ENFORCED) as pod,
        created(cluster, *agents.throttling(1900, node=cluster.nodes[0].name)),
    ):

        def no_faults() -> bool:
            assert agent_faults(cluster, pod) == []
            return True

        wait_for(no_faults, what="the agent to have the policies", timeout=120, ignoring=(AssertionError,))
        agents.brake(cluster, "restore")
        wait_for(lambda: "enforcement" in str(agent_faults(cluster, pod)), what="the doctor to name the brake")
        agents.brake(cluster, "on")
        role = ["patch", "clusterrole", "load-watcher-agent", "--type=json", "-p"]
        rules = cluster.control_plane.get("clusterrole", "load-watcher-agent")["rules"]
        (position,) = [number for number, rule in enumerate(rules) if rule["resources"] == ["pods/eviction"]]
        cluster.control_plane.kubectl(*role, json.dumps([{"op": "remove", "path": f"/rules/{position}"}]))
        wait_for(
            lambda: "pods/eviction" in str(agent_faults(cluster, pod)), what="the doctor to name the missing right"
        )


def test_the_certificate_of_a_kubelet_that_an_agent_does_not_trust_is_named(cluster: Cluster, tmp_path: Path):
    with agents_with_doctor(cluster, tmp_path, []) as pod:

        def named() -> list[str]:
            return [each["what"] for each in agent_faults(cluster, pod) if "is not trusted" in each["what"]]

        (what,) = wait_for(named, what="the doctor to name the certificate")
        assert what.count("the pods of") == 1


def agent_faults(cluster: Cluster, pod: str) -> list[Any]:
    """Return the failures and warnings of the doctor in the pod of an agent."""
    return doctor(cluster, agents.NAMESPACE, pod, "--only", "agent")[0]
