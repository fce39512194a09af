"""Usage thresholds on the nodes of a real API server: their values, the frequency of writes, and annotations that are
not changed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from load_watcher.commands.koordinator import koordinator
from tests.deploy.rendering import charted
from tests.fakes.service import FakeService
from tests.fakes.snapshots import publish
from tests.real.control_plane.manifests import apply_all, delete_all
from tests.real.control_plane.rights import RBAC, granted, refused, wait_until_used
from tests.real.kube import ApiServer
from tests.waiting import eventually
from tests.watcher.core.koordinator.test_usage_thresholds import RANGES, foreseen
from watcher.core.koordinator.usage_thresholds import ANNOTATION, UsageThresholds
from watcher.core.koordinator.written_objects import MANAGER
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.koordinator.publisher_source import THRESHOLDS_LEASE
from watcher.koordinator.threshold_publisher import (
    PAUSE_S,
    REMOVE_AFTER_S,
    THRESHOLD_MANAGER,
    ThresholdPublisher,
    apply_thresholds,
)
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access
from watcher.platform.kube.leases import RENEW_EVERY_S, Election
from watcher.tick.cluster_nodes import ClusterNodes

pytestmark = [pytest.mark.slow, pytest.mark.real_apiserver]

SECONDS = 90.0
ACCOUNT = "load-watcher/load-watcher"
MERGE = {"Content-Type": "application/merge-patch+json"}
NODES = "/api/v1/nodes"


@dataclass
class Cluster(FakeService):
    """A service with the nodes of a real cluster."""

    nodes: ClusterNodes | None = None
    looks: int = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.clock

    def node_metadata(self, node: str) -> ObjectMetadata | None:
        return None if self.nodes is None else self.nodes.node_metadata(node)

    def serve(self, usage: Mapping[str, float], bounds: Mapping[str, float], *, tag: str) -> None:
        """Publish the CPU usage and bounds of nodes; memory is at its bound."""
        snapshot = foreseen(
            {name: (cpu, 40.0) for name, cpu in usage.items()}, {name: (cpu, 40.0) for name, cpu in bounds.items()}
        )
        self.published = publish(snapshot, tag=tag, monotonic=self.clock)

    def skip(self, seconds: float) -> None:
        """Let time pass, while the snapshot stays fresh."""
        self.clock += seconds
        assert self.published is not None
        self.published = publish(self.published.snapshot, tag=f"{self.published.tag}+", monotonic=self.clock)


@dataclass
class Story:
    """A publisher with the API server."""

    server: ApiServer
    source: Cluster
    publisher: ThresholdPublisher

    async def until(self, condition: Callable[[], object], *, what: str) -> None:
        await eventually(condition, what=what, timeout=SECONDS)

    async def until_outcomes(self, **wanted: int) -> None:
        outcomes = self.publisher.stats.outcomes
        await self.until(lambda: all(outcomes[each] >= count for each, count in wanted.items()), what=str(wanted))
        assert outcomes == Counter(wanted)

    async def idle(self) -> None:
        """Wait until the publisher has processed the newest snapshot and has written what it can."""
        assert self.source.published is not None
        tag = self.source.published.tag
        self.source.published = publish(self.source.published.snapshot, tag=f"{tag}.", monotonic=self.source.clock)
        looks = self.source.looks
        await self.until(lambda: self.source.looks > looks + 100, what="some steps")


def reported(
    server: ApiServer,
    kubeconfig: Path,
    source: Cluster,
    story: Callable[[Story], Awaitable[None]],
    *,
    lease: str = "default/thresholds",
    writes_per_second: float = 1000.0,
) -> None:
    async def run() -> None:
        def access() -> Any:
            return find_access(kubeconfig=kubeconfig, environ={})

        client = KubeClient(access, timeout=30.0)
        source.nodes = ClusterNodes(access, label="kubernetes.io/hostname")
        await source.nodes.start()
        await source.nodes.wait_known(SECONDS)
        election = Election(client, lease, identity="a", manager=MANAGER, now=source.now, monotonic=source.monotonic)
        publisher = ThresholdPublisher(
            client, source, election=election, ranges=RANGES, writes_per_second=writes_per_second, step=0.02
        )
        await publisher.start()
        try:
            await story(Story(server, source, publisher))
        finally:
            await publisher.close()
            await source.nodes.close()

    asyncio.run(run())


@pytest.fixture
def nodes(apiserver: ApiServer) -> Iterator[Callable[..., None]]:
    """Creates nodes, which are deleted afterwards."""
    made: list[str] = []

    def make(*names: str) -> None:
        for name in names:
            apiserver.make(NODES, metadata={"name": name, "labels": {"kept": "yes"}})
            made.append(name)

    yield make
    for name in made:
        apiserver.ask("DELETE", f"{NODES}/{name}")


def written(server: ApiServer, name: str) -> dict[str, int] | None:
    annotations = server.ask("GET", f"{NODES}/{name}").json()["metadata"].get("annotations", {})
    return json.loads(annotations[ANNOTATION])["usageThresholds"] if ANNOTATION in annotations else None


def annotate(server: ApiServer, name: str, value: str | None) -> None:
    """Set or remove the annotation as `kubectl annotate --overwrite` does."""
    change = {"metadata": {"annotations": {ANNOTATION: value}}}
    path = f"{NODES}/{name}?fieldManager=kubectl-annotate"
    assert server.ask("PATCH", path, change, headers=MERGE).ok


def managers(server: ApiServer, name: str) -> list[str]:
    """The field managers of the annotation."""
    fields = server.ask("GET", f"{NODES}/{name}").json()["metadata"]["managedFields"]
    key = f"f:{ANNOTATION}"
    return [
        each["manager"] for each in fields if key in each["fieldsV1"].get("f:metadata", {}).get("f:annotations", {})
    ]


def test_thresholds_follow_the_load_in_meaningful_steps(
    apiserver: ApiServer, nodes: Callable[..., None], tmp_path: Path
) -> None:
    nodes("a", "b")
    source = Cluster(max_staleness=1e9)
    source.serve({"a": 20.0, "b": 50.0}, {"a": 50.0, "b": 50.0}, tag="night")

    async def story(run: Story) -> None:
        await run.until_outcomes(written=2)
        assert written(apiserver, "a") == {"cpu": 51, "memory": 50}
        assert written(apiserver, "b") == {"cpu": 30, "memory": 50}
        assert managers(apiserver, "a") == [THRESHOLD_MANAGER]
        assert apiserver.ask("GET", f"{NODES}/a").json()["metadata"]["labels"]["kept"] == "yes"
        source.clock += PAUSE_S
        source.serve({"a": 24.0, "b": 46.0}, {"a": 50.0, "b": 50.0}, tag="four points")
        await run.idle()
        source.serve({"a": 45.0, "b": 50.0}, {"a": 50.0, "b": 50.0}, tag="day")
        await run.until_outcomes(written=3)
        assert written(apiserver, "a") == {"cpu": 33, "memory": 50}
        source.serve({"a": 20.0, "b": 50.0}, {"a": 50.0, "b": 50.0}, tag="within five minutes")
        await run.idle()
        assert written(apiserver, "a") == {"cpu": 33, "memory": 50}
        source.skip(PAUSE_S)
        await run.until_outcomes(written=4)
        assert written(apiserver, "a") == {"cpu": 51, "memory": 50}

    reported(apiserver, apiserver.kubeconfig(tmp_path / "admin"), source, story)


def test_a_node_without_a_bound_loses_its_thresholds_after_an_hour(
    apiserver: ApiServer, nodes: Callable[..., None], tmp_path: Path
) -> None:
    nodes("a")
    source = Cluster(max_staleness=1e9)
    source.serve({"a": 20.0}, {"a": 50.0}, tag="bound")

    async def story(run: Story) -> None:
        await run.until_outcomes(written=1)
        source.clock += PAUSE_S
        source.serve({"a": 20.0}, {}, tag="none")
        await run.idle()
        assert written(apiserver, "a") is not None
        source.skip(REMOVE_AFTER_S)
        await run.until_outcomes(written=1, removed=1)
        assert written(apiserver, "a") is None

    reported(apiserver, apiserver.kubeconfig(tmp_path / "admin"), source, story)


def test_an_annotation_of_another_writer_stays(
    apiserver: ApiServer, nodes: Callable[..., None], tmp_path: Path
) -> None:
    """One set before, and one that replaces that of load-watcher; after its removal, load-watcher writes its own."""
    nodes("theirs", "taken")
    own = '{"usageThresholds":{"cpu":80}}'
    annotate(apiserver, "theirs", own)
    source = Cluster(max_staleness=1e9)
    loads = {"theirs": 20.0, "taken": 20.0}
    source.serve(loads, dict.fromkeys(loads, 50.0), tag="first")

    async def story(run: Story) -> None:
        await run.until_outcomes(written=1, left=1)
        assert written(apiserver, "theirs") == {"cpu": 80}
        assert list(run.publisher.stats.left) == ["theirs"]
        annotate(apiserver, "taken", own)
        source.clock += PAUSE_S
        source.serve(loads, dict.fromkeys(loads, 40.0), tag="second")
        await run.until(lambda: set(run.publisher.stats.left) == {"theirs", "taken"}, what="both to be left")
        assert written(apiserver, "taken") == {"cpu": 80}
        annotate(apiserver, "theirs", None)

        def is_written() -> object:
            source.skip(1.0)
            return written(apiserver, "theirs")

        await run.until(is_written, what="the thresholds after the removal")
        assert written(apiserver, "theirs") == {"cpu": 47, "memory": 50}

    reported(apiserver, apiserver.kubeconfig(tmp_path / "admin"), source, story)


def test_writes_are_limited_and_a_deleted_node_is_not_created_again(
    apiserver: ApiServer, nodes: Callable[..., None], tmp_path: Path
) -> None:
    names = [f"many-{number:02}" for number in range(30)]
    nodes(*names)
    source = Cluster(max_staleness=1e9)
    usage = dict.fromkeys([*names, "gone"], 20.0)
    source.serve(usage, {name: 30.0 + number for number, name in enumerate(usage)}, tag="all")

    async def story(run: Story) -> None:
        await run.until_outcomes(written=10)
        await run.idle()
        assert [name for name in names if written(apiserver, name)] == names[:10], "the largest differences first"
        source.clock += 1.0
        await run.until_outcomes(written=20)
        source.clock += 1.0
        await run.until_outcomes(written=30)
        client = KubeClient(lambda: find_access(kubeconfig=tmp_path / "admin", environ={}), timeout=30.0)
        gone = ObjectMetadata(name="gone", uid="00000000-0000-4000-8000-000000000000")
        assert await apply_thresholds(client, gone, UsageThresholds({"cpu": 50})) == "left"
        await client.close()
        assert apiserver.ask("GET", f"{NODES}/gone").status_code == 404

    reported(apiserver, apiserver.kubeconfig(tmp_path / "admin"), source, story, writes_per_second=10.0)


def test_the_rights_of_the_chart_are_sufficient_and_necessary(
    apiserver: ApiServer, nodes: Callable[..., None], tmp_path: Path
) -> None:
    nodes("granted")
    source = Cluster(max_staleness=1e9)
    source.serve({"granted": 20.0}, {"granted": 50.0}, tag="first")
    rendered = charted({"config": {"koordinator": {"thresholds": True}}})
    apiserver.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "load-watcher"}})  # 409 if it exists
    granting = [each for each in rendered if each["kind"] == "ServiceAccount" or each["apiVersion"] == RBAC]
    apply_all(apiserver, granting)
    before = len(apiserver.audited(ACCOUNT))

    async def story(run: Story) -> None:
        await run.until_outcomes(written=1)
        source.skip(RENEW_EVERY_S)  # the Lease was created; renewing it needs other rights
        rights = [each for each in granted(rendered, ACCOUNT) if each.group != "metrics.k8s.io"]
        await asyncio.to_thread(wait_until_used, apiserver, rights, ACCOUNT, since=before)

    try:
        account = apiserver.kubeconfig(tmp_path / "account", token=apiserver.account_token(ACCOUNT))
        reported(apiserver, account, source, story, lease=f"load-watcher/{THRESHOLDS_LEASE}")
        assert refused(apiserver, ACCOUNT, since=before) == []
        assert not [each for each in granted(charted({}), ACCOUNT) if each.resource == "nodes" and each.verb == "patch"]
    finally:
        delete_all(apiserver, granting)


def test_a_command_removes_only_the_written_annotations(
    apiserver: ApiServer, nodes: Callable[..., None], tmp_path: Path
) -> None:
    nodes("ours", "theirs", "plain")
    annotate(apiserver, "theirs", '{"usageThresholds":{"cpu":80}}')
    source = Cluster(max_staleness=1e9)
    source.serve({"ours": 20.0}, {"ours": 50.0}, tag="first")

    async def story(run: Story) -> None:
        await run.until_outcomes(written=1)

    kubeconfig = apiserver.kubeconfig(tmp_path / "admin")
    reported(apiserver, kubeconfig, source, story)
    arguments = ["remove-thresholds", "--set", f"kubernetes.kubeconfig={kubeconfig}", "-o", "json"]
    result = CliRunner().invoke(koordinator, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == {"removed": ["ours"], "left": ["theirs"]}
    assert [written(apiserver, name) for name in ("ours", "theirs")] == [None, {"cpu": 80}]
