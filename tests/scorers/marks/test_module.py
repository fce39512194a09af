"""The module of the service with a small API server: marks come, change, and go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from scorers.marks.annotation import ANNOTATION_KEY
from scorers.marks.degrees import KEYS
from scorers.marks.module import MarksService
from scorers.marks.pages import MarksPages, node_documents
from scorers.marks.removal import remove_all
from scorers.marks.telemetry import MarksTelemetry
from tests.fakes.decisions import DecisionList
from tests.fakes.kube import EVENTS, LEASES, NODES, PODS, FakeKube
from tests.fakes.service import FakeService
from tests.fakes.snapshots import publish, snapshot_of, steady
from tests.waiting import eventually
from watcher.core.config.settings import Settings
from watcher.platform.kube.credentials import AccessFinder
from watcher.platform.kube.node_changes import MARK_MANAGER
from watcher.platform.kube.settings import KubernetesSettings, MarksSettings

FOREIGN = {"key": "team", "value": "a", "effect": "NoSchedule"}
HOT = {f"n{i}": 30.0 for i in range(7)} | {"n7": 90.0}


@dataclass
class Host(FakeService):
    """A service whose settings have marks."""

    decisions: DecisionList = field(default_factory=lambda: DecisionList(kept=0.0))
    of: tuple[Any, ...] = ()
    looks: int = 0

    @property
    def settings(self) -> Settings:
        return super().settings.having(*self.of)

    def monotonic(self) -> float:
        self.looks += 1
        return self.clock

    def serve(self, cpu: dict[str, float], *, tag: str) -> None:
        samples = {name: {"CPU": steady(load), "Memory": steady(50.0)} for name, load in cpu.items()}
        self.published = publish(snapshot_of(samples), tag=tag, monotonic=self.clock)

    def skip(self, seconds: float) -> None:
        """Let time pass, while the snapshot stays fresh."""
        self.clock += seconds
        assert self.published is not None
        self.published = publish(self.published.snapshot, tag=f"{self.published.tag}+", monotonic=self.clock)


@dataclass
class Story:
    server: FakeKube
    host: Host
    service: MarksService
    errors: list[str] = field(default_factory=list)

    def degree(self, node: str) -> int:
        taints = self.server.content(NODES, node).get("spec", {}).get("taints") or []
        return sum(each["key"] in KEYS for each in taints)

    def score(self, node: str) -> str | None:
        return self.server.content(NODES, node)["metadata"].get("annotations", {}).get(ANNOTATION_KEY)

    def patches(self) -> list[str]:
        return [each.key for each in list(self.server.asked) if (each.verb, each.resource) == ("patch", NODES)]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await eventually(condition, what=what)

    async def idle(self) -> None:
        """Wait until the newest snapshot was processed."""
        looks = self.host.looks
        await self.until(lambda: self.host.looks > looks + 200, "some steps")


def with_marks(
    story: Callable[[Story], Awaitable[None]], tmp_path, *, server: FakeKube, host: Host | None = None, **marks: Any
) -> Host:
    """Run the module with these settings of [marks] and the nodes n0 to n7 while `story` runs."""
    for name in HOT:
        if name not in server.names(NODES):
            server.put(NODES, name, spec={"taints": [FOREIGN]}, metadata={"annotations": {"kept": "yes"}})
    host = host or Host()
    access = KubernetesSettings(kubeconfig=server.kubeconfig(tmp_path / "kubeconfig"))
    host.of = (access, MarksSettings(**({"tainted_share": 0.5} | marks)))

    async def run() -> None:
        service = MarksService(host, step=0.01, renew_every=0.05)
        async with service.life(web.Application()):
            await story(Story(server, host, service))

    asyncio.run(run())
    return host


def hot_host(**options: Any) -> Host:
    host = Host(**options)
    host.serve(HOT, tag="hot")
    return host


def test_taints_and_score_come_in_one_patch_and_other_taints_stay(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.degree("n7") == 3 and all(map(run.score, HOT)), "the marks")
        assert run.score("n0") == "50"
        assert run.degree("n0") == 0
        assert run.score("n7") == "10"
        node = run.server.content(NODES, "n7")
        assert FOREIGN in node["spec"]["taints"]
        assert node["metadata"]["annotations"]["kept"] == "yes"
        assert sorted(run.patches()) == sorted(HOT)
        assert {each.manager for each in run.server.asked if each.verb == "patch" and each.key == "n7"} == {
            MARK_MANAGER
        }
        await run.until(lambda: run.server.names(EVENTS), "an Event")
        events = [run.server.content(EVENTS, key) for key in run.server.names(EVENTS)]
        assert [(each["involvedObject"]["name"], each["reason"]) for each in events] == [("n7", "LoadMarked")]

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True, annotation=True)
        assert all(server.content(NODES, name)["spec"]["taints"] == [FOREIGN] for name in HOT), "removed at the stop"
        assert not any(ANNOTATION_KEY in server.content(NODES, name)["metadata"]["annotations"] for name in HOT)
        assert server.content(LEASES, "default/load-watcher-marks")["spec"]["holderIdentity"] == ""


def test_a_node_is_patched_once_in_ten_minutes(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.degree("n7") == 3, "the taints")
        run.host.serve(HOT | {"n7": 30.0}, tag="cool")
        await run.idle()
        run.host.skip(599.0)
        await run.idle()
        assert run.degree("n7") == 3
        run.host.skip(1.0)
        await run.until(lambda: run.degree("n7") == 0, "the removal")
        assert run.patches() == ["n7", "n7"]

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True)


def test_stale_load_removes_the_marks_and_then_the_lease_is_released(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.degree("n7") == 3 and all(map(run.score, HOT)), "the marks")
        run.host.clock += 301.0
        await run.until(lambda: run.degree("n7") == 0, "the removal of the taints")
        await run.until(lambda: not any(run.score(name) for name in HOT), "the removal of the scores")
        lease = "default/load-watcher-marks"
        await run.until(lambda: run.server.content(LEASES, lease)["spec"]["holderIdentity"] == "", "the release")
        assert run.service.reason() == "the load of the nodes is not known or stale"

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True, annotation=True)


def test_a_silent_node_loses_its_marks_and_the_others_keep_them(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.degree("n7") == 3 and all(map(run.score, HOT)), "the marks")
        run.host.serve({name: load for name, load in HOT.items() if name != "n7"}, tag="without n7")
        await run.until(lambda: (run.degree("n7"), run.score("n7")) == (0, None), "the removal")
        assert run.score("n0") is not None

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True, annotation=True)


def test_marks_of_a_killed_process_are_removed_if_no_load_arrives(tmp_path):
    async def story(run: Story) -> None:
        await run.idle()
        assert run.degree("n7") == 1
        run.host.clock += 301.0
        await run.until(lambda: run.degree("n7") == 0, "the removal")

    with FakeKube() as server:
        server.put(NODES, "n7", spec={"taints": [{"key": KEYS[0], "effect": "PreferNoSchedule"}]})
        host = Host(published=None)
        with_marks(story, tmp_path, server=server, host=host, taints=True)


def test_a_replica_without_the_lease_writes_nothing(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.service.plan, "a plan")
        await run.idle()
        assert run.patches() == []
        assert run.service.plan is not None
        assert run.service.plan.wanted["n7"].degree == 3

    with FakeKube() as server:
        spec = {"holderIdentity": "another", "leaseDurationSeconds": 30}
        server.put(LEASES, "default/load-watcher-marks", spec=spec)
        server.put(NODES, "n0", spec={"taints": [{"key": KEYS[0], "effect": "PreferNoSchedule"}]})
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True)
        assert len(server.content(NODES, "n0")["spec"]["taints"]) == 1, "the marks belong to the holder"


def test_a_preview_plans_and_writes_nothing(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.service.plan, "a plan")
        plan = run.service.plan
        assert plan is not None
        found = {each.node: each for each in node_documents(plan, run.service.written())}
        assert (found["n7"].degree, found["n7"].written_degree, found["n7"].score) == (3, 0, 10)
        run.host.serve(HOT | {"n7": 30.0}, tag="cool")
        await run.until(lambda: run.service.plan is not plan, "the next plan")
        assert run.service.plan is not None
        assert run.service.plan.wanted["n7"].degree == 3, "the pause holds in a preview, too"

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True, annotation=True, preview=True)
        assert {each.verb for each in server.asked} <= {"list", "watch"}


def test_missing_rights_are_logged_and_retried(tmp_path, caplog):
    async def story(run: Story) -> None:
        run.server.forbidden.add(("patch", NODES))
        await run.until(lambda: "cannot write marks" in caplog.text, "the log message")
        assert run.degree("n7") == 0
        run.server.forbidden.clear()

        def passes() -> bool:
            run.host.skip(1.0)
            return run.degree("n7") == 3

        await run.until(passes, "the taints")

    with FakeKube() as server:
        server.forbidden.add(("patch", NODES))
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True)


def test_the_pressure_is_in_the_middle_after_a_start_and_after_an_eviction(tmp_path):
    owner = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}]

    def pressure(run: Story, node: str) -> float:
        assert run.service.plan is not None
        return float(run.service.plan.pressures.values[sorted(HOT).index(node)])

    async def story(run: Story) -> None:
        await run.until(lambda: run.service.plan and pressure(run, "n7") == 0.6, "the pressure after the start")
        run.host.skip(1201.0)
        await run.until(lambda: pressure(run, "n7") == 1.0, "the pressure")
        assert pressure(run, "n0") == 0.5 or pressure(run, "n0") <= 0.3
        run.server.pod("shop/web-1", node="n7", metadata={"ownerReferences": owner})
        await run.idle()
        conditions = [{"type": "DisruptionTarget", "status": "True"}]
        run.server.put(
            PODS,
            "shop/web-1",
            metadata={"ownerReferences": owner},
            spec={"nodeName": "n7"},
            status={"phase": "Running", "conditions": conditions},
        )
        await run.until(lambda: pressure(run, "n7") == 0.6, "the pressure after the move")
        families = {
            each.name: each
            for each in MarksTelemetry(
                run.host.settings[MarksSettings], plan=lambda: run.service.plan, writer=None
            ).collect()
        }
        samples = {each.labels["node"]: each.value for each in families["load_watcher_node_pressure"].samples}
        assert samples["n7"] == 0.6
        assert run.patches() == []

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), pressure=True)


def test_the_pressure_is_absent_while_the_pods_are_unknown(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.service.plan, "a plan")
        assert run.service.plan is not None
        assert {each.pressure for each in node_documents(run.service.plan, {})} == {None}
        await run.until(lambda: "pods of the cluster are not known: " in run.service.reason(), "the reason")

    with FakeKube() as server:
        server.forbidden.add(("list", PODS))
        with_marks(story, tmp_path, server=server, host=hot_host(), pressure=True)


def test_the_command_takes_the_lease_and_removes_all_marks(tmp_path):
    async def story(run: Story) -> None:
        await run.until(lambda: run.degree("n7") == 3 and all(map(run.score, HOT)), "the marks")
        access = AccessFinder.of(*run.host.settings[KubernetesSettings].access)
        assert await remove_all(access, wait_s=0.3) == sorted(HOT)
        run.host.skip(700.0)
        await run.idle()
        assert run.degree("n7") == 0, "the service no longer holds the Lease"
        assert run.server.content(NODES, "n7")["spec"]["taints"] == [FOREIGN]

    with FakeKube() as server:
        with_marks(story, tmp_path, server=server, host=hot_host(), taints=True, annotation=True)


def test_the_page_says_why_there_are_no_marks():
    pages = MarksPages(
        MarksSettings(taints=True), plan=lambda: None, reason=lambda: "because", written=dict, is_writer=lambda: False
    )
    answer = asyncio.run(pages.marks(None, ()))  # type: ignore[arg-type]
    assert answer.text is not None
    assert '"reason":"because","nodes":[]' in answer.text


pytestmark = pytest.mark.timeout(60)
