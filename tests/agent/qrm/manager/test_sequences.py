"""Invariants after any sequence of pods, resizes and restarts, with the real manager, plug-ins on sockets, and disk."""

import asyncio
import shutil
import tempfile
from collections import Counter
from itertools import count
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent import cpuset
from agent.cpuset import CpuSet
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_client import PluginEndpoint
from agent.qrm.main import Checkpoint
from agent.qrm.manager.allocation import Allocations
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import TopologyPolicy
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.cpu import CpuPlugin
from agent.qrm.plugins.cpu_topology import CpuTopology
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.plugins.resize import PoolSettings
from agent.qrm.pods import QOS_ANNOTATION, ROLE_ANNOTATION, PodContainer, QrmPod
from agent.qrm.roles import DEFAULT_ROLES
from agent.qrm.runtime import dry_run
from agent.qrm.store.files import StateFile
from tests.agent.qrm.vectors import machine

pytestmark = pytest.mark.slow

SMALL = CpuTopology(machine("dummy16_2s_4n").cpus, dict.fromkeys(range(4), 1000))
RESOURCES = ("cpu", "memory")
roles = st.sampled_from(["storage-service", "re-caller", "online-micro_service", "ETL"])
sizes = st.sampled_from([0.5, 1.0, 2.0, 3.0, 5.0, 20.0])


def fresh(resource: str) -> ResourcePlugin:
    if resource == "memory":
        return MemoryPlugin(SMALL, DEFAULT_ROLES, reserved={0: 100})
    return CpuPlugin(SMALL, DEFAULT_ROLES, PoolSettings(min_online=2, min_offline=2), reserved=cpuset.parse("0,2"))


class Node(RuleBasedStateMachine):
    """The node, whose pods must get what they request (dedicated_cores)."""

    @initialize(policy=st.sampled_from([TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED]))
    def start(self, policy: TopologyPolicy) -> None:
        # The path of a unix socket has at most 107 bytes, and pytest's own directories nearly as many.
        self.directory = Path(tempfile.mkdtemp(prefix="qrm-"))
        self.runner = asyncio.Runner()
        self.policy, self.now, self.number = policy, 0.0, count()
        self.pods: dict[str, QrmPod] = {}
        self.servers: dict[str, PluginServer] = {}
        self.endpoints: dict[str, PluginEndpoint] = {}
        self.begin(Allocations())
        for resource in RESOURCES:
            self.runner.run(self.up(resource))

    def begin(self, allocations: Allocations) -> None:
        checkpoint = Checkpoint(self.path, Counter())
        self.manager = Manager(
            AllocationSettings(policy=self.policy),
            allocations,
            nodes=frozenset(SMALL.nodes),
            recent=0.0,
            save=lambda: checkpoint.save(allocations),
            monotonic=lambda: self.now,
        )

    @property
    def path(self) -> Path:
        return self.directory / "checkpoint"

    async def up(self, resource: str) -> None:
        socket = self.directory / f"{resource}.sock"
        server = PluginServer(fresh(resource), socket, StateFile(self.directory / f"{resource}_state"))
        await server.start()
        self.servers[resource], self.endpoints[resource] = server, PluginEndpoint(resource, socket)
        await self.endpoints[resource].open()
        await self.manager.plugins.register(resource, self.endpoints[resource])

    async def down(self, resource: str) -> None:
        await self.manager.plugins.deregister(resource, self.endpoints[resource])
        await self.servers[resource].stop()

    def known_to(self, resource: str) -> dict[str, dict[str, CpuSet]]:
        found = self.servers[resource].plugin.allocations()
        return {
            pod: {name: cpuset.parse(info.allocation_result) for name, info in each.items()}
            for pod, each in found.items()
        }

    def teardown(self) -> None:
        async def end() -> None:
            for resource in self.servers:
                await self.down(resource)

        if hasattr(self, "runner"):
            self.runner.run(end())
            self.runner.close()
            shutil.rmtree(self.directory)

    # --- steps -------------------------------------------------------------------------------------------------------

    def admit_one(self, role: str, cpus: list[float]) -> bool:
        """Whether it was admitted; then it has all that it requests, otherwise no plug-in has an allocation of it."""
        uid = f"pod-{next(self.number)}"
        containers = tuple(
            PodContainer(f"c{i}", {"cpu": cpu, "memory": 100 * cpu}, id=f"{uid}-{i}") for i, cpu in enumerate(cpus)
        )
        annotations = {ROLE_ANNOTATION: role, QOS_ANNOTATION: "dedicated_cores"}
        pod = QrmPod(uid, "default", uid, annotations=annotations, containers=containers)
        admitted = self.runner.run(self.manager.admit(pod, active=self.pods.keys())).admitted
        if admitted:
            self.pods[uid] = pod
        for resource in RESOURCES:
            has = self.known_to(resource).get(uid, {})
            stored = {c for p, c, r, _ in self.manager.allocations if (p, r) == (uid, resource)}
            assert has.keys() == stored == ({c.name for c in containers} if admitted else set())
        return admitted

    @rule(role=roles, cpus=st.lists(sizes, min_size=1, max_size=2))
    def admit(self, role: str, cpus: list[float]) -> None:
        self.admit_one(role, cpus)

    @rule(role=roles, cpu=sizes, resource=st.sampled_from(RESOURCES))
    def admit_while_a_plugin_is_away(self, role: str, cpu: float, resource: str) -> None:
        self.runner.run(self.down(resource))
        assert not self.admit_one(role, [cpu])
        self.runner.run(self.up(resource))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        """As a restarted kubelet asks for it."""
        uid = data.draw(st.sampled_from(sorted(self.pods)))
        before = self.manager.allocations.of(uid, "c0")
        assert self.runner.run(self.manager.admit(self.pods[uid], active=self.pods.keys())).admitted
        assert self.manager.allocations.of(uid, "c0") == before

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(sorted(self.pods)))]
        self.reconcile()

    @rule(online=st.integers(0, 20))
    def resize(self, online: int) -> None:
        def act(plugin: ResourcePlugin) -> None:
            assert isinstance(plugin, CpuPlugin)
            plugin.resize(online)

        self.runner.run(self.servers["cpu"].change(act))
        self.reconcile()

    @rule(resource=st.sampled_from(RESOURCES))
    def restart_a_plugin(self, resource: str) -> None:
        before = self.servers[resource].plugin.document()
        self.runner.run(self.down(resource))
        self.runner.run(self.up(resource))
        assert self.servers[resource].plugin.document() == before

    @rule()
    def restart_the_manager(self) -> None:
        before = self.manager.allocations
        for resource in RESOURCES:
            self.runner.run(self.down(resource))
        self.begin(Checkpoint(self.path, Counter()).read())
        for resource in RESOURCES:
            self.runner.run(self.up(resource))
        assert self.manager.allocations == before

    def reconcile(self) -> None:
        """A round. Then manager and plug-ins have the same allocations, and no container has an exclusive CPU of
        another."""
        self.now += 100.0
        done = self.runner.run(self.manager.reconcile(list(self.pods.values()), dry_run))
        assert not done.failed
        for resource in RESOURCES:
            stored: dict[str, dict[str, CpuSet]] = {}
            for pod, container, name, info in self.manager.allocations:
                if name == resource:
                    stored.setdefault(pod, {})[container] = cpuset.parse(info.allocation_result)
            assert stored == self.known_to(resource)
            assert stored.keys() == self.pods.keys()
        own = self.own()
        for uid, each in self.known_to("cpu").items():
            others = [cpus for other, cpus in own.items() if other != uid]
            assert not any(mine & cpus for mine in each.values() for cpus in others)

    # --- invariants --------------------------------------------------------------------------------------------------

    def own(self) -> dict[str, CpuSet]:
        """The exclusive CPUs by pod, in the manager's allocations."""
        found: dict[str, CpuSet] = {}
        for uid, pod in self.pods.items():
            if DEFAULT_ROLES.is_exclusive(pod.role):
                info = self.manager.allocations.get(uid, "c0", "cpu")
                assert info is not None
                found[uid] = cpuset.parse(info.allocation_result)
        return found

    @invariant()
    def the_file_is_what_is_known(self) -> None:
        kept = Checkpoint(self.path, Counter()).read()
        assert kept == self.manager.allocations
        assert not list(self.directory.glob("*.corrupt-*"))

    @invariant()
    def no_two_own_cpusets_overlap(self) -> None:
        own = self.own()
        assert sum(map(len, own.values())) == len(frozenset().union(*own.values()))


TestNode = Node.TestCase
TestNode.settings = hypothesis.settings(
    max_examples=6,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
