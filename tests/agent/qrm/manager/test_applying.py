"""The order in which containers get their CPUs: no CPU is in two sets that exclude each other."""

import asyncio
import random

import pytest

from agent.cpuset import CpuSet, parse, text
from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import AllocationInfo, Allocations, Properties
from agent.qrm.manager.applying import REFRESH_S, PropertyApplier
from agent.qrm.pods import PodContainer, QrmPod


class Kernel:
    """The CPUs of containers by pod, and what was written. A write fails if it sets a CPU that another container
    has."""

    def __init__(self, **has: str) -> None:
        self.has: dict[str, CpuSet] = {name: parse(cpus) for name, cpus in has.items()}
        self.refuses: set[str] = set()
        self.written: list[str] = []
        self.shared: list[str] = []
        self.allocations = Allocations()
        self.now = 1000.0
        for name, cpus in has.items():
            self.decide(name, cpus)
        self.applier = PropertyApplier(self.allocations, cpus=None, monotonic=lambda: self.now)

    def decide(self, name: str, cpus: str) -> None:
        self.allocations.set(name, "c", "cpu", AllocationInfo(oci_property_name="CpusetCpus", allocation_result=cpus))

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        if pod.uid in self.refuses:
            raise ApplyFailed("the kernel refuses")
        gets = parse(str(properties["CpusetCpus"]))
        for other, has in self.has.items():
            if other != pod.uid and (both := (gets - self.has.get(pod.uid, frozenset())) & has):
                self.shared.append(f"{pod.uid} gets {text(both)} of {other}")
        self.has[pod.uid] = gets
        self.written.append(f"{pod.uid} {text(gets)}")

    def round(self, *names: str) -> dict[str, str]:
        """Returns the errors by container."""
        running = []
        for name in names or sorted(self.has):
            container = PodContainer("c", id=f"id-{name}")
            running.append((QrmPod(name, "ns", name, containers=(container,)), container))
        self.written, self.shared = [], []
        self.now += 3.0
        failed = asyncio.run(self.applier.apply(running, self.apply, {})).failed
        return {str(each): why for each, why in failed.items()}


def test_a_cpu_leaves_one_container_before_the_next_gets_it() -> None:
    """For any sizes of the sets: here, each container gains as many CPUs as it loses."""
    kernel = Kernel(a="0-1", b="2-3", c="4-5")
    kernel.round()
    for name, cpus in (("a", "2-3"), ("b", "4-5"), ("c", "6-7")):
        kernel.decide(name, cpus)
    assert {} == kernel.round()
    assert ["c 6-7", "b 4-5", "a 2-3"] == kernel.written
    assert [] == kernel.shared
    assert ({}, []) == (kernel.round(), kernel.written)


def test_containers_that_exchange_cpus_lose_their_old_ones_first() -> None:
    kernel = Kernel(a="0-2", b="3-5")
    kernel.round()
    kernel.decide("a", "0-1,3")
    kernel.decide("b", "2,4-5")
    assert {} == kernel.round()
    assert ["a 0-1", "b 2,4-5", "a 0-1,3"] == kernel.written
    assert [] == kernel.shared


def test_containers_that_exchange_all_their_cpus_share_them_for_a_moment() -> None:
    """A set must not be empty."""
    kernel = Kernel(a="0", b="1")
    kernel.round()
    kernel.decide("a", "1")
    kernel.decide("b", "0")
    assert {} == kernel.round()
    assert ["a 1", "b 0"] == kernel.written
    assert ["a gets 1 of b"] == kernel.shared


def test_cpus_of_a_refused_container_go_to_no_other() -> None:
    """Their sizes do not matter; the other containers get the rest, and these CPUs when the write succeeds."""
    kernel = Kernel(a="0-3", b="4-5", c="6-7")
    kernel.round()
    for name, cpus in (("a", "0"), ("b", "1-3,4-5"), ("c", "6-8")):
        kernel.decide(name, cpus)
    kernel.refuses = {"a"}
    kernel.has["a"] = parse("0-3")
    errors = kernel.round()
    assert {
        "ns/a/c": "the kernel refuses",
        "ns/b/c": "does not get CPUs 1-3 yet: ns/a/c has them, and its update failed",
    } == errors
    assert (["c 6-8"], []) == (kernel.written, kernel.shared)
    kernel.decide("b", "1-3,5")
    assert "ns/b/c" in kernel.round()
    assert ["b 5"] == kernel.written, "it loses its CPUs at once"
    kernel.refuses = set()
    assert {} == kernel.round()
    assert (["a 0", "b 1-3,5"], []) == (kernel.written, kernel.shared)


def test_after_a_restart_the_old_cpus_are_those_of_the_checkpoint() -> None:
    """Changes while the manager did not run are applied in the right order too, and a refused write keeps its CPUs."""
    kernel = Kernel(a="0-3", b="4-5")
    kernel.decide("a", "0-5")
    kernel.decide("b", "6-7")
    kernel.refuses = {"b"}
    assert {"ns/b/c", "ns/a/c"} == set(kernel.round())
    assert [] == kernel.shared
    kernel.refuses = set()
    assert {} == kernel.round()
    assert (["b 6-7", "a 0-5"], []) == (kernel.written, kernel.shared)


def test_a_container_that_may_have_all_cpus_loses_them_first() -> None:
    kernel = Kernel(a="0-1", b="2-3")
    kernel.round()
    kernel.has["z"] = parse("0-7")
    kernel.decide("z", "6-7")
    kernel.decide("a", "0-1,4-5")
    assert {} == kernel.round()
    assert (["z 6-7", "a 0-1,4-5"], []) == (kernel.written, kernel.shared)


def test_a_container_with_unknown_cpus_keeps_all_of_them_if_its_update_fails() -> None:
    """It may have all CPUs. Others get only CPUs of its new set, which it keeps."""
    kernel = Kernel(a="0-1", b="2-3")
    kernel.round()
    kernel.has["z"] = parse("0-7")
    kernel.decide("z", "6-7")
    kernel.decide("a", "0-1,4-5")
    kernel.refuses = {"z"}
    for _ in range(2):
        assert "does not get CPUs 4-5 yet: ns/z/c has them, and its update failed" in kernel.round()["ns/a/c"]
        assert ([], []) == (kernel.written, kernel.shared)
    kernel.refuses = set()
    assert {} == kernel.round()
    assert (["z 6-7", "a 0-1,4-5"], []) == (kernel.written, kernel.shared)


def test_other_properties_do_not_wait_for_cpus() -> None:
    """A container gets its memory nodes although another container keeps all CPUs that it gains."""
    kernel = Kernel(a="0-3", b="4-5")
    kernel.round()
    mems: list[str] = []

    async def apply(pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        mems.extend(f"{pod.uid} {name} {value}" for name, value in properties.items())
        if pod.uid == "a":
            raise ApplyFailed("the kernel refuses")

    for name, cpus in (("a", "0"), ("b", "1-3")):
        kernel.decide(name, cpus)
    kernel.allocations.set("b", "c", "memory", AllocationInfo("CpusetMems", allocation_result="1"))
    pods = [QrmPod(uid, "ns", uid, containers=(PodContainer("c", id=f"id-{uid}"),)) for uid in "ab"]
    for _ in range(2):
        asyncio.run(kernel.applier.apply([(pod, pod.containers[0]) for pod in pods], apply, {}))
    assert ["a CpusetCpus 0", "b CpusetMems 1", "a CpusetCpus 0"] == mems
    assert "b 1-3" not in kernel.written


def test_all_values_are_applied_again_after_a_minute() -> None:
    kernel = Kernel(a="0-1", b="2-3")
    kernel.round()
    kernel.now += REFRESH_S
    assert {} == kernel.round()
    assert ["a 0-1", "b 2-3"] == kernel.written


@pytest.mark.parametrize("seed", range(300))
def test_random_partitions_with_refusals_never_share_a_cpu(seed: int) -> None:
    """Each container keeps a CPU that no other container gets, so that no set is ever empty."""
    chance = random.Random(seed)
    names, cpus = "abcdef"[: chance.randint(2, 6)], list(range(16))

    def partition() -> dict[str, str]:
        chance.shuffle(cpus)
        owned: dict[str, set[int]] = {name: {16 + at} for at, name in enumerate(names)}
        for cpu in cpus[: chance.randint(4, 16)]:
            owned[chance.choice(names)].add(cpu)
        return {name: text(each) for name, each in owned.items()}

    kernel = Kernel(**partition())
    kernel.round()
    for _ in range(4):
        wanted = partition()
        for name, each in wanted.items():
            kernel.decide(name, each)
        kernel.refuses = set(chance.sample(names, chance.randint(0, 2)))
        kernel.round()
        assert [] == kernel.shared
        kernel.refuses = set()
        assert {} == kernel.round()
        assert [] == kernel.shared
        assert {name: text(each) for name, each in kernel.has.items()} == wanted


def test_errors_of_two_pods_with_one_name_are_separate() -> None:
    """A pod that ends, and the pod that replaces it."""
    kernel = Kernel(old="0-1", new="2-3")
    kernel.refuses = {"old"}
    container = PodContainer("c", id="id-old"), PodContainer("c", id="id-new")
    pods = [QrmPod(uid, "ns", "db", containers=(each,)) for uid, each in zip(("old", "new"), container, strict=True)]
    running = list(zip(pods, container, strict=True))
    done = asyncio.run(kernel.applier.apply(running, kernel.apply, {}))
    assert [("old", "ns/db/c")] == [(each.pod_uid, str(each)) for each in done.failed]
    assert [("new", "ns/db/c")] == [(each.pod_uid, str(each)) for each in done.applied]
