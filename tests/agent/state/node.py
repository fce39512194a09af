"""A node for tests: /proc and control groups in a directory, with pods and a clock that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.cgroups.paths import Driver
from agent.model import ContainerState, PodState, State
from agent.qos import QosClass
from agent.state.collector import Collector, SystemPaths
from agent.state.readings import PodFacts, PodsUnknown
from tests.fakes.cgroups import FakeCgroups
from tests.fakes.proc import FakeProc

MIB = 1 << 20
CORE = 1_000_000_000
"""CPU time of a second of one core."""


def uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def container_id(pod: int, number: int = 0) -> str:
    return f"{pod:032x}{number:032x}"


def pod(number: int, containers: int = 1, **given: Any) -> PodFacts:
    """A pod with this number and the containers c0, c1, …, as the kubelet or the API reports it."""
    extended = frozenset(given.pop("extended", ()))
    asked = given.pop("extended_cpu_request", 0.0)
    group_uid = given.pop("group_uid", uid(number))
    names = [ContainerState(f"c{each}", container_id(number, each)) for each in range(containers)]
    state: dict[str, Any] = {"qos": QosClass.BEST_EFFORT, "containers": tuple(names)} | given
    return PodFacts(PodState("default", f"pod-{number}", uid(number), **state), group_uid, extended, asked)


@dataclass
class KnownPods:
    """A source of pods; `why` is the reason why the pods are unknown."""

    pods: Sequence[PodFacts] = ()
    why: str = ""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        if self.why:
            raise PodsUnknown(self.why, hint="Ask somebody else.")
        return tuple(self.pods)


@dataclass
class FakeNode:
    """The node with its collector."""

    root: Path
    version: str = "v2"
    driver: Driver = Driver.SYSTEMD
    clock: float = 1000.0
    time: float = 1_700_000_000.0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.proc = FakeProc(self.root / "proc")
        self.cgroups = FakeCgroups(self.root / "cgroup", self.version, self.driver)
        self.cpu_manager_state = self.root / "cpu_manager_state"
        self.cpu_manager_state.write_text('{"policyName":"none","defaultCpuSet":"","checksum":1353318690}')
        self.pods = KnownPods()
        places = SystemPaths(
            str(self.proc.root), str(self.cgroups.root), str(self.root / "sys"), str(self.cpu_manager_state)
        )
        self.collector = Collector(self.pods, places=places, monotonic=lambda: self.clock, **self.options)

    def collect(self) -> State:
        return asyncio.run(self.collector.collect(self.time))

    def after(self, seconds: float) -> State:
        """The state after this number of seconds."""
        self.clock += seconds
        self.time += seconds
        self.proc.pass_time(seconds)
        return self.collect()

    def run(self, facts: PodFacts, pod: dict[str, Any], *containers: dict[str, Any]) -> None:
        """Create groups with these values for a pod and its containers (FakeCgroups.add), and list the pod."""
        place = (facts.group_uid, facts.pod.qos or QosClass.BEST_EFFORT)
        self.cgroups.add(self.cgroups.pod_path(*place), **pod)
        for container, values in zip(facts.pod.containers, containers, strict=True):
            self.cgroups.add(self.container_path(facts, container.id), **values)
        self.pods.pods = [each for each in self.pods.pods if each.pod.uid != facts.pod.uid] + [facts]

    def container_path(self, facts: PodFacts, identity: str) -> str:
        return self.cgroups.container_path(facts.group_uid, identity, facts.pod.qos or QosClass.BEST_EFFORT)
