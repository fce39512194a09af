"""A node for the executor: control groups in a directory, an audit file, and an optional API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from agent.audit.log import Audit, AuditEntry, Filter
from agent.cgroups.base import Tree
from agent.cgroups.detection import KubeletGroups, Layout, find_layout, open_tree
from agent.cgroups.paths import Driver
from agent.clocks import Clocks
from agent.decision.eviction_limits import EvictionLimits
from agent.decision.plan import Plan
from agent.executor.cluster import ClusterActions
from agent.executor.executor import Executor, Permissions
from agent.executor.report import PlanReport, StepOutcome
from agent.model import Change, ContainerState, Eviction, PodState, QuotaChange, State, Step, StepKind
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.kube import CONFIG_MAPS, EVENTS, FakeKube
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import KubeAccess

Outcome = TypeVar("Outcome")
NOW = 1_700_000_000.0
CONTROL = "load-watcher/agent-control"


def step_on(kind: StepKind, change: Change, number: int = 0, **more: Any) -> Step:
    """A step on the pod p<number>."""
    return Step(kind, change, **{"pod": f"shop/p{number}", "uid": f"uid-{number}", **more})


def throttle(number: int = 0, *, before: int | None = None, after: int | None = 50_000) -> Step:
    """A step that lowers the quota of the container c<number>."""
    change = QuotaChange("main", f"c{number}", before, after, 100_000)
    return step_on("throttle", change, number, metric="cpu_total_usage", released={"cpu": 500.0}, reason="cpu is short")


def restore(number: int = 0, *, before: int | None = 50_000, after: int | None = None) -> Step:
    """A step that restores the quota of the container c<number>."""
    return replace(throttle(number, before=before, after=after), kind="restore", reason="cpu is enough")


def evict(number: int = 0, *, grace_seconds: float = 7.0, owner: str | None = None, **more: Any) -> Step:
    """A step that evicts the pod p<number>."""
    change = Eviction(grace_seconds, f"ReplicaSet/r{number}" if owner is None else owner)
    values = {"metric": "memory_total_usage", "released": {"memory": 1e9}, "reason": "memory is short"}
    return step_on("evict", change, number, **{**values, **more})


def fates(report: PlanReport) -> list[StepOutcome]:
    """The outcome of each step of the plan, in order."""
    return [each.fate for each in report.results]


async def always(_: Step, __: Sequence[Step]) -> str:
    """Every step is needed."""
    return ""


@dataclass
class FakeNode:
    """The node `node-1` with pods p0, p1, …, one container each."""

    directory: Path
    version: str = "v2"
    driver: Driver = Driver.SYSTEMD
    server: FakeKube | None = None
    now: float = NOW
    set_by: float = 0.0
    """Seconds by which the wall clock was set ahead (negative: back)."""
    patience: float = 60.0
    """Seconds for a response of the server: long, because this machine may be busy."""
    listen: Callable[[AuditEntry], None] = lambda _: None
    """Called with each audit entry."""

    def __post_init__(self) -> None:
        self.cgroups = FakeCgroups(self.directory / "cgroup", version=self.version, driver=self.driver)
        self.pods: dict[int, PodState] = {}
        self.audit = self.open_audit()
        self._tree: Tree | None = None

    def open_audit(self) -> Audit:
        """Open the audit file as the agent does at its start."""
        return Audit.open(self.directory / "agent.db", now=self.now, tell=lambda deed: self.listen(deed))

    def close(self) -> None:
        self.audit.close()
        if self._tree is not None:
            self._tree.close()

    # --- pods --------------------------------------------------------------------------------------------------------

    def add(self, *numbers: int, quota: int | None = None, cpu: float = 1.0, **more: Any) -> None:
        """Add running pods, also to the API if there is one."""
        for number in numbers:
            self.cgroups.add(self.cgroups.pod_path(f"uid-{number}"))
            self.cgroups.add(self.path(number), quota=quota)
            containers = (ContainerState("main", f"c{number}", cpu=cpu, memory=10**9, quota=quota),)
            self.pods[number] = PodState(
                "shop", f"p{number}", f"uid-{number}", cpu=cpu, memory=10**9, containers=containers, **more
            )
            if self.server is not None:
                self.server.pod(f"shop/p{number}", node="node-1", metadata=self.metadata(number))

    def metadata(self, number: int, **more: Any) -> dict[str, Any]:
        """Metadata of the pod p<number> in the API: `more` is added to its uid and its controller."""
        controller = {"kind": "ReplicaSet", "name": f"r{number}", "controller": True}
        return {"uid": f"uid-{number}", "ownerReferences": [controller], **more}

    def path(self, number: int) -> str:
        """The control group of a container."""
        return self.cgroups.container_path(f"uid-{number}", f"c{number}")

    def quota(self, number: int = 0) -> str:
        """The content of cpu.max: "max 100000" without a limit."""
        if self.version == "v2":
            return self.cgroups.read(self.path(number), "cpu.max").strip()
        quota, period = (
            self.cgroups.read(self.path(number), f"cpu.cfs_{each}_us").strip() for each in ("quota", "period")
        )
        return f"{'max' if quota == '-1' else quota} {period}"

    def set_quota(self, quota: int | None, number: int = 0) -> None:
        """Set a quota as another program does."""
        if self.version == "v2":
            self.cgroups.write(self.path(number), "cpu.max", f"{'max' if quota is None else quota} 100000\n")
        else:
            self.cgroups.write(self.path(number), "cpu.cfs_quota_us", f"{-1 if quota is None else quota}\n")

    def state(self) -> State:
        return State(self.now, pods=tuple(self.pods[number] for number in sorted(self.pods)))

    # --- acting ------------------------------------------------------------------------------------------------------

    def groups(self) -> KubeletGroups:
        return KubeletGroups(self.layout, self.tree)

    def layout(self) -> Layout:
        return find_layout(str(self.directory / "cgroup"))

    def tree(self, layout: Layout) -> Tree:
        if self._tree is None:
            self._tree = open_tree(layout)
        return self._tree

    def acting(
        self,
        act: Callable[[Executor], Awaitable[Outcome]],
        *,
        monotonic: Callable[[], float] | None = None,
        boot: str = "",
        **permissions: Any,
    ) -> Outcome:
        """The result of `act` with an executor on this node."""

        async def inside() -> Outcome:
            client = cluster = None
            if self.server is not None:
                url, token = self.server.url, self.server.token
                client = KubeClient(lambda: KubeAccess(url, "a test", token=token), timeout=self.patience)
                cluster = ClusterActions(
                    client,
                    node="node-1",
                    control=CONTROL,
                    within=0.0,
                    patience=self.patience,
                    clock=lambda: self.now + self.set_by,
                    monotonic=lambda: self.now,
                )
            given = {"enforce": True, "proc": self.directory / "proc", **permissions}
            executor = Executor(
                self.audit,
                self.groups(),
                cluster=cluster,
                permissions=Permissions(**given),
                clocks=Clocks(lambda: self.now + self.set_by, monotonic or (lambda: self.now), boot),
            )
            try:
                async with asyncio.timeout(60):
                    return await act(executor)
            finally:
                if client is not None:
                    await client.close()

        return asyncio.run(inside())

    def run(self, *steps: Step, needed: Any = always, cycle: int = 1, **permissions: Any) -> PlanReport:
        """The report of a plan of these steps."""
        plan = Plan(self.now, steps)
        return self.acting(
            lambda executor: executor.run(plan, state=self.state(), cycle=cycle, needed=needed), **permissions
        )

    def deeds(self) -> list[AuditEntry]:
        """The audit entries, oldest first."""
        return list(reversed(self.audit.entries(Filter(limit=1000))))


def with_api(directory: Path, server: FakeKube, *, nodes: int = 1, **control: str) -> FakeNode:
    """A node of a cluster with this number of nodes and a large eviction budget."""
    for number in range(nodes):
        server.node(f"node-{number + 1}")
    server.put(CONFIG_MAPS, CONTROL, data={"evictions-per-minute": "100", "nodes-at-once": "100%", **control})
    return FakeNode(directory, server=server)


def events(server: FakeKube) -> list[tuple[str, str, str]]:
    """Kind, name and reason of each Event, oldest first."""
    found = [server.content(EVENTS, name) for name in server.names(EVENTS)]
    found.sort(key=lambda each: int(each["metadata"]["resourceVersion"]))
    return [(each["involvedObject"]["kind"], each["involvedObject"]["name"], each["reason"]) for each in found]


def generous(**limits: Any) -> EvictionLimits:
    """Eviction limits that allow all evictions of a test."""
    return EvictionLimits(
        **{"evictions_per_node": 100, "evictions_per_namespace": 100, "evictions_per_owner": 100, **limits}
    )
