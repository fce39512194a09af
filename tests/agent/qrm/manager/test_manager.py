"""The manager with plug-ins of the test: upstream's test cases, with its faults fixed, and states that must not
occur."""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from agent.cpuset import CpuSet
from agent.qrm.grpc.plugin_api import PluginCallError, PluginOptions, Quantity
from agent.qrm.manager.admission import (
    ADMISSION_GRACE_S,
    Admission,
    ApplyFailed,
    ContainerRef,
    NotAllocated,
    Reconciled,
    ReleaseResult,
)
from agent.qrm.manager.allocation import AllocationInfo, Allocations, BadProperty, Properties, properties_of, wire_hints
from agent.qrm.manager.applying import REFRESH_S
from agent.qrm.manager.manager import Manager
from agent.qrm.manager.registered_plugins import PLUGIN_ABSENCE_GRACE_S, PLUGIN_STARTUP_S
from agent.qrm.manager.request import ContainerType, ResourceRequest
from agent.qrm.manager.settings import AllocationSettings
from agent.qrm.manager.topology import Hint, TopologyPolicy
from agent.qrm.pods import PodContainer, QrmPod
from tests.agent.qrm.vectors import cases, group

BOTH = frozenset({0, 1})
ALIGNED = PluginOptions(aligned=True, reconcile=True)
ON_0, ON_1 = (Hint(frozenset({node}), preferred=True) for node in (0, 1))


@dataclass
class Fake:
    """A plug-in that gives `gives` of its resource, and notes the requests."""

    resource: str = "cpu"
    gives: float = 2.0
    result: str = "0-1"
    options: PluginOptions = ALIGNED
    offers: tuple[Hint, ...] | None = (ON_0, ON_1)
    failing: bool = False
    prop: str = "CpusetCpus"
    scalar: bool = True
    node: bool = False
    hinted: list[ResourceRequest] = field(default_factory=list)
    asked: list[ResourceRequest] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    has: dict[str, dict[str, dict[str, AllocationInfo]]] = field(default_factory=dict)
    closed: bool = False

    def _check(self, method: str) -> None:
        if self.failing:
            raise PluginCallError(self.resource, method, "UNKNOWN", "it fails on request")

    def _read(self, request: ResourceRequest, method: str) -> None:
        """Refuse what Katalyst's plug-ins refuse: any number of quantities other than one, under another name."""
        if list(request.resource_requests) != [self.resource]:
            names = ", ".join(request.resource_requests)
            raise PluginCallError(self.resource, method, "UNKNOWN", f"invalid req.ResourceRequests: {names}")

    async def hints(self, request: ResourceRequest) -> tuple[Hint, ...] | None:
        self._check("GetTopologyHints")
        self._read(request, "GetTopologyHints")
        self.hinted.append(request)
        return self.offers

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
        self.asked.append(request)
        self._check("Allocate")
        self._read(request, "Allocate")
        hints = wire_hints([request.hint] if request.hint else ())
        info = AllocationInfo(self.prop, self.node, self.scalar, self.gives, self.result, resource_hints=hints)
        self.has.setdefault(request.pod_uid, {})[request.container_name] = {self.resource: info}
        return {self.resource: info}

    async def pre_start(self, request: ResourceRequest) -> None:
        self._check("PreStartContainer")
        self.begun.append(request.container_name)

    async def remove_pod(self, pod_uid: str) -> None:
        self._check("RemovePod")
        self.removed.append(pod_uid)
        self.has.pop(pod_uid, None)

    async def allocations(self) -> Mapping[str, Mapping[str, Mapping[str, AllocationInfo]]]:
        self._check("GetResourcesAllocation")
        return self.has

    async def aware(self, pod_uid: str, container: str) -> Mapping[str, Quantity]:
        self._check("GetTopologyAwareResources")
        return {self.resource: Quantity(self.gives, {0: self.gives})}

    async def allocatable(self) -> Mapping[str, tuple[Quantity, Quantity]]:
        self._check("GetTopologyAwareAllocatableResources")
        quantity = Quantity(self.gives, {0: self.gives}, self.node, self.scalar)
        return {self.resource: (quantity, quantity)}

    async def close(self) -> None:
        self.closed = True


class World:
    """A manager, its clock and its disk."""

    def __init__(
        self,
        allocations: Allocations | None = None,
        *,
        cpus: CpuSet | None = None,
        recent: float = ADMISSION_GRACE_S,
        **settings: Any,
    ) -> None:
        self.now, self.saves, self.full = 1000.0, 0, False
        self.set: list[tuple[str, Properties]] = []
        self.manager = Manager(
            AllocationSettings(**{"policy": TopologyPolicy.RESTRICTED, **settings}),
            allocations or Allocations(),
            nodes=BOTH,
            cpus=cpus,
            recent=recent,
            save=self.save,
            monotonic=lambda: self.now,
        )

    async def save(self) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        self.saves += 1

    async def with_(self, *plugins: Fake) -> "World":
        for plugin in plugins:
            await self.manager.plugins.register(plugin.resource, plugin)
        return self

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        if "refuse" in pod.annotations:
            raise ApplyFailed("the runtime refuses")
        self.set.append((f"{pod.name}/{container.name}", properties))

    def stored(self, pod: str = "p", container: str = "c") -> dict[str, float]:
        return {name: info.allocated_quantity for name, info in self.manager.allocations.of(pod, container).items()}


def pod(uid: str = "p", *, qos: str | None = None, **more: Any) -> QrmPod:
    annotations = {**({"katalyst.kubewharf.io/qos_level": qos} if qos else {}), **more.pop("annotations", {})}
    requests = more.pop("requests", {"cpu": 2.0})
    containers = more.pop("containers", (PodContainer("c", requests, id=f"id-{uid}"),))
    return QrmPod(uid, "ns", uid, annotations=annotations, containers=containers, **more)


def failures(done: Reconciled) -> dict[str, str]:
    return {str(each): why for each, why in done.failed.items()}


def run(test) -> Any:
    return asyncio.run(test)


# --- upstream's tests, as data -----------------------------------------------------------------------------------


def named(name: str) -> dict[str, Any]:
    (found,) = (case for case in group("manager_behaviour") if case["test"] == name)
    return found


@pytest.mark.parametrize("name", ["allocate, then lower request", "allocate, then higher request"])
def test_the_plugin_is_called_if_the_stored_allocation_is_too_small(name: str):
    case = named(name)
    ((resource, stored),) = case["stored"].items()

    async def test() -> None:
        fake = Fake(resource, gives=stored)
        world = await World().with_(fake)
        await world.manager.admit(pod(requests={resource: stored}))
        fake.gives = case["stored_after"][resource]
        fake.asked.clear()
        await world.manager.admit(pod(requests=case["request"]))
        assert bool(fake.asked) == case["plugin_called"]
        assert world.stored() == case["stored_after"]

    run(test())


@pytest.mark.parametrize(
    "case", [case for case in group("manager_behaviour") if "admitted" in case], ids=lambda case: case["test"]
)
def test_pods_are_not_admitted_if_a_plugin_fails(case: dict[str, Any]):
    """Katalyst admits pods without a QoS level and of shared_cores; load-watcher does not."""

    async def test() -> None:
        fake = Fake(failing=case.get("plugin_error", False), offers=None)
        world = await World(policy=TopologyPolicy.NONE).with_(fake)
        admission = await world.manager.admit(pod(qos=case.get("qos_level"), daemon=case.get("owner") == "DaemonSet"))
        assert admission.admitted == ("plugin_error" not in case)
        if "plugin_called" in case:
            assert bool(fake.asked) == case["plugin_called"]
        if not admission.admitted:
            assert admission.reason == "UnexpectedAdmissionError"
            assert "the plug-in for cpu failed in Allocate" in admission.message

    run(test())


@dataclass
class Refusing(Fake):
    """Runs, and has nothing to allocate."""

    full: bool = True

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
        if self.full:
            raise PluginCallError(self.resource, "Allocate", "UNKNOWN", "it has no more")
        return await super().allocate(request)


@dataclass
class Forgetful(Fake):
    """Fails in RemovePod."""

    away: bool = True

    async def remove_pod(self, pod_uid: str) -> None:
        if self.away:
            raise PluginCallError(self.resource, "RemovePod", "UNAVAILABLE", "it is away")
        await super().remove_pod(pod_uid)


def test_a_resource_that_an_admitted_pod_lacks_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture):
    """The pod was admitted before the plug-in registered, as after a restart of the manager."""

    async def test() -> None:
        fake = Refusing(offers=None)
        world = await World(policy=TopologyPolicy.NONE).with_(Fake("disk", prop=""))
        asked, why = pod(requests={"cpu": 2.0, "disk": 2.0}), "the plug-in for cpu failed in Allocate: UNKNOWN: it has"
        assert (await world.manager.admit(asked)).admitted
        await world.with_(fake)
        admission = await world.manager.admit(asked)
        assert (admission.admitted, admission.failed) == (True, {"c": {"cpu": f"{why} no more"}})
        world.now += PLUGIN_STARTUP_S
        for _ in range(3):
            assert world.manager.missing("p", "c") == {"cpu": f"{why} no more"}
            await world.manager.reconcile([asked], world.apply)
        assert [record.getMessage() for record in caplog.records if "runs without" in record.message] == [
            f"ns/p, container c, runs without its cpu: {why} no more"
        ]
        fake.full = False
        await world.manager.reconcile([asked], world.apply)
        assert world.manager.missing("p", "c") == {}
        assert world.stored() == {"cpu": 2.0, "disk": 2.0}
        fake.full = True
        assert not (await world.manager.admit(pod("q"))).admitted
        await world.manager.reconcile([asked], world.apply)
        assert world.manager.missing("q", "c") == {}, "the pod is deleted"

    run(test())


def test_daemonset_pod_of_the_systems_cores():
    case = named("daemonset pod, system_cores")

    async def test() -> None:
        world = await World().with_(fake := Fake())
        await world.manager.admit(pod(qos=case["qos_level"], daemon=case["owner"] == "DaemonSet"))
        assert bool(fake.asked) == case["plugin_called"]

    run(test())


@pytest.mark.parametrize("name", ["reconcile", "reconcile without a record"])
def test_reconcile(name: str):
    case = named(name)

    async def test() -> None:
        fake = Fake(gives=case["stored"].get("cpu", 2))
        world = await World().with_(fake)
        if case["stored"]:
            await world.manager.admit(pod())
        world.now += PLUGIN_STARTUP_S
        reported = case["plugin_reports"].get("cpu")
        fake.gives = case.get("plugin_allocates", {}).get("cpu", reported)
        info = AllocationInfo(
            "CpusetCpus", is_scalar_resource=True, allocated_quantity=reported or 0, allocation_result="0"
        )
        fake.has = {"p": {"c": {"cpu": info}}} if reported else {}
        await world.manager.reconcile([pod()], world.apply)
        assert world.stored() == case["stored_after"]
        if "update_container_resources_calls" in case:
            assert len(world.set) == case["update_container_resources_calls"]

    run(test())


def test_hints_of_a_plugin_that_fails():
    case = named("hints, plugin error")

    async def test() -> None:
        world = await World().with_(Fake(failing=case["plugin_error"]))
        admission = await world.manager.admit(pod())
        assert admission == Admission(
            False,
            "TopologyAffinityError",
            "Resources cannot be allocated with Topology locality",
            {"c": {"cpu": Hint(BOTH, preferred=False)}},
        )

    assert case["expected"] == []
    run(test())


def test_unknown_property():
    case = named("unknown OCI property")
    with pytest.raises(BadProperty, match="cpu sets 'mock', which is not a container property"):
        properties_of({"cpu": AllocationInfo(**case["stored"][0])})


@pytest.mark.parametrize("text", ["", "1.5", "0x10", "9223372036854775808", "9" * 5000, "-" + "9" * 5000, "٣"])
def test_a_value_beyond_64_bits_is_an_error(text: str):
    with pytest.raises(BadProperty, match="which is not a whole number"):
        properties_of({"cpu": AllocationInfo("CpuShares", allocation_result=text)})


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("CpuShares", "-5", "which is not within 0 to 9223372036854775807"),
        ("CpuPeriod", "-1", "which is not within 0 to 9223372036854775807"),
        ("OomScoreAdj", "-1001", "which is not within -1000 to 1000"),
        ("OomScoreAdj", "1001", "which is not within -1000 to 1000"),
        ("Unified.io.max", "x" * 4097, "to 4097 characters; 4096 are allowed"),
    ],
)
def test_a_property_that_a_runtime_cannot_set_is_an_error(name: str, text: str, why: str):
    with pytest.raises(BadProperty, match=why):
        properties_of({"cpu": AllocationInfo(name, allocation_result=text)})


@pytest.mark.parametrize(
    ("name", "value"), [("CpuShares", 0), ("CpuQuota", -1), ("OomScoreAdj", -1000), ("OomScoreAdj", 1000)]
)
def test_properties_that_a_runtime_can_set(name: str, value: int):
    assert properties_of({"cpu": AllocationInfo(name, allocation_result=str(value))}) == {name: value}


def test_capacity():
    case, gone = named("capacity"), named("capacity after grace period")

    async def test() -> None:
        fake = Fake("disk", gives=case["capacity"], node=case["is_node"], scalar=case["is_scalar"], prop="")
        world = await World().with_(fake)
        await world.manager.admit(pod(requests={"disk": 3.0}))
        capacity, allocatable, removed = await world.manager.plugins.capacity()
        assert {name: f"{value:g}" for name, value in capacity.items()} == {"disk": case["expected"]["capacity"]}
        assert {name: f"{value:g}" for name, value in allocatable.items()} == {"disk": case["expected"]["allocatable"]}
        assert removed == ()
        fake.gives = 1.0
        capacity, allocatable, _ = await world.manager.plugins.capacity()
        assert (capacity, allocatable) == ({"disk": 1.0}, {"disk": 3.0})  # the allocated amount stays allocatable
        await world.manager.plugins.deregister("disk")
        world.now += PLUGIN_ABSENCE_GRACE_S
        assert await world.manager.plugins.capacity() == ({}, {}, ())
        world.now += gone["stopped_for_s"] - PLUGIN_ABSENCE_GRACE_S
        assert await world.manager.plugins.capacity() == ({}, {}, ("disk",))

    run(test())


@pytest.mark.parametrize(
    ("name", "node", "asked", "gone"),
    [
        ("example.org/disk", True, True, True),
        ("example.org/disk", False, True, False),  # the plug-in itself reported the resource
        ("example.org/disk", True, False, True),
        ("hugepages-2Mi", True, False, True),
        ("disk", True, True, True),
        ("disk", True, False, False),
        ("requests.example.org/disk", True, False, False),
    ],
)
def test_an_unallocated_resource_is_removed_from_the_node_status_too(name: str, node: bool, asked: bool, gone: bool):
    """No allocation shows whether it is a resource of the node: the plug-in does, or its name if it was never asked."""

    async def test() -> None:
        fake = Fake(name, node=node)
        world = await World().with_(fake)
        if asked:
            await world.manager.plugins.capacity()
        fake.failing = True
        zero = {name: 0.0} if gone else {}
        assert await world.manager.plugins.capacity() == (zero, zero, ())
        await world.manager.plugins.deregister(name)
        world.now += PLUGIN_ABSENCE_GRACE_S + 1
        assert await world.manager.plugins.capacity() == ({}, {}, (name,) if gone else ())

    run(test())


def test_container_types():
    case = named("container type")
    names = case["containers"]
    containers = [PodContainer(name, init=True) for name in names["init"]] + [PodContainer(n) for n in names["main"]]
    annotations = {"kubernetes.io/main-container-name": case["annotation_main_container"]}
    found = pod(containers=tuple(containers), annotations=annotations).typed()
    assert {each.name: [kind.name, index] for each, kind, index in found} == case["expected"]


def test_the_first_container_is_the_main_one_and_restartable_init_containers_are_sidecars():
    containers = (PodContainer("proxy", init=True, restarts=True), PodContainer("a"), PodContainer("b"))
    kinds = [kind for _, kind, _ in pod(containers=containers).typed()]
    assert kinds == [ContainerType.SIDECAR, ContainerType.MAIN, ContainerType.SIDECAR]


@cases("manager_behaviour")
def test_every_case_of_the_vectors_is_tested(case: dict[str, Any]):
    """A new case in the vectors needs a test."""
    assert case["test"] in {
        *("allocate, then lower request", "allocate, then higher request", "plugin error, no qos annotation"),
        *("plugin error, shared_cores", "plugin error, reclaimed_cores", "plugin error, system_cores"),
        *("daemonset pod", "daemonset pod, system_cores", "reconcile", "reconcile without a record"),
        *("hints, plugin error", "unknown OCI property", "capacity", "capacity after grace period", "container type"),
    }


# --- admission ---------------------------------------------------------------------------------------------------


def test_plugins_get_the_merged_hint():
    async def test() -> None:
        cpu, memory = Fake(), Fake("memory", offers=(ON_1,), prop="CpusetMems", result="1", gives=5)
        world = await World().with_(cpu, memory)
        admission = await world.manager.admit(pod(requests={"cpu": 2.0, "memory": 5.0, "other": 1.0}))
        assert admission == Admission(True, decided={"c": {"cpu": ON_1, "memory": ON_1}})
        assert [plugin.asked[0].hint for plugin in (cpu, memory)] == [ON_1, ON_1]
        assert world.saves == 1

    run(test())


def test_a_pod_gets_all_resources_or_none():
    """The second resource fails: the plug-in of the first one releases its allocation at once, and nothing is
    stored."""

    async def test() -> None:
        cpu, memory = Fake(), Fake("memory", offers=None, failing=False, result="x", prop="CpusetMems")
        world = await World().with_(cpu, memory)
        admission = await world.manager.admit(pod(qos="dedicated_cores", requests={"cpu": 2.0, "memory": 1.0}))
        assert not admission.admitted
        assert "memory sets CpusetMems to an invalid set" in admission.message
        assert cpu.removed == ["p"]
        assert world.manager.allocations.pods == frozenset()
        (why,) = admission.failed["c"].items()
        assert why[0] == "memory"
        assert why[1] in admission.message
        assert admission.released is ReleaseResult.ALL

    run(test())


def test_the_allocation_of_a_refused_pod_that_was_not_released_is_reported():
    """Its plug-in does not respond, and is asked again in each round."""

    async def test() -> None:
        cpu, disk = Forgetful(), Refusing("disk", prop="", offers=None)
        world = await World().with_(cpu, disk)
        asked = pod(qos="dedicated_cores", requests={"cpu": 2.0, "disk": 2.0})
        refused = await world.manager.admit(asked)
        assert refused.failed == {"c": {"disk": "the plug-in for disk failed in Allocate: UNKNOWN: it has no more"}}
        assert refused.released is ReleaseResult.LATER
        assert world.stored() == {"cpu": 2.0}
        assert world.manager.admitted_pods == frozenset()
        again = await world.manager.admit(asked)
        assert again.released is ReleaseResult.LATER
        cpu.away = False
        await world.manager.reconcile([], world.apply, active={"p"})
        assert (cpu.removed, world.stored()) == (["p"], {})
        disk.full = False
        assert (await world.manager.admit(asked)).released is None
        assert world.manager.admitted_pods == {"p"}

    run(test())


def test_no_pod_is_admitted_if_the_checkpoint_cannot_be_written():
    async def test() -> None:
        world = await World().with_(fake := Fake())
        world.full = True
        with pytest.raises(OSError, match="No space left on device"):
            await world.manager.admit(pod())
        assert fake.removed == ["p"]
        assert world.manager.allocations.pods == frozenset()

    run(test())


def test_after_a_restart_the_stored_hints_are_used_without_a_call():
    """Upstream takes each hint as nil until the plug-in is back."""

    async def test() -> None:
        before = await World().with_(Fake())
        await before.manager.admit(pod(qos="dedicated_cores"))
        world = World(before.manager.allocations)
        assert world.manager.plugins.states == {"cpu": False}
        assert (await world.manager.admit(pod(qos="dedicated_cores"))).decided == {"c": {"cpu": ON_0}}
        refused = await world.manager.admit(pod("new", qos="dedicated_cores"))
        assert refused.reason == "TopologyAffinityError"
        await world.with_(fake := Fake())
        assert (await world.manager.admit(pod(qos="dedicated_cores"))).admitted
        assert fake.asked == []

    run(test())


def test_after_a_restart_a_container_of_a_smaller_pool_is_admitted():
    """The pool shrank by its load. A new container is not admitted with fewer CPUs than it requests."""

    async def test() -> None:
        allocations = Allocations()
        allocations.set("p", "c", "cpu", AllocationInfo("CpusetCpus", False, True, 4.0, "0-3"))
        world = await World(allocations).with_(Fake(gives=4.0, result="0-3", offers=None))
        for uid, admitted in (("p", True), ("new", False)):
            admission = await world.manager.admit(pod(uid, qos="dedicated_cores", requests={"cpu": 5.0}))
            assert admission.admitted is admitted

    run(test())


def test_after_a_restart_an_allocation_without_hints_is_kept_without_its_plugin():
    """A pod of a pool has no hints. A new pod waits for the plug-in."""

    async def test() -> None:
        allocations = Allocations()
        allocations.set("p", "c", "cpu", AllocationInfo("CpusetCpus", False, True, 4.0, "0-3"))
        world = World(allocations)
        for _ in ("not back yet", "back, and failing"):
            assert (await world.manager.admit(pod())).admitted
            grown = await world.manager.admit(pod(requests={"cpu": 5.0}))
            assert (grown.admitted, list(grown.failed["c"]), world.stored()) == (True, ["cpu"], {"cpu": 4.0})
            assert (await world.manager.admit(pod("new"))).reason == "TopologyAffinityError"
            await world.with_(Fake(failing=True))

    run(test())


def test_an_invalid_allocation_of_the_checkpoint_fails_only_for_its_container():
    """The checksum of the file is right; CPUs may be offline since."""

    async def test() -> None:
        allocations = Allocations()
        for uid, cpus in (("p", "0-99"), ("q", "0-1"), ("r", "0-")):
            allocations.set(uid, "c", "cpu", AllocationInfo("CpusetCpus", False, True, 2.0, cpus))
        world = World(allocations, cpus=frozenset(range(16)))
        done = await world.manager.reconcile([pod("p"), pod("q"), pod("r")], world.apply)
        assert list(map(str, done.applied)) == ["ns/q/c"]
        assert "CpusetCpus 16-99 does not exist on this machine" in failures(done)["ns/p/c"]
        assert "an invalid set" in failures(done)["ns/r/c"]

    run(test())


def test_the_plugin_that_registered_last_is_called():
    async def test() -> None:
        old, new = Fake(), Fake()
        world = await World().with_(old, new)
        assert old.closed
        await world.manager.plugins.deregister("cpu", old)
        assert world.manager.plugins.states == {"cpu": True}
        await world.manager.admit(pod())
        assert (len(old.asked), len(new.asked)) == (0, 1)

    run(test())


def test_a_resource_may_be_requested_under_another_name():
    async def test() -> None:
        world = await World(names=(("best-effort-cpu", "cpu"),)).with_(fake := Fake())
        assert (await world.manager.admit(pod(requests={"best-effort-cpu": 2.0}))).admitted
        assert fake.asked[0].resource_name == "cpu"
        assert fake.asked[0].resource_requests == {"cpu": 2.0}
        refused = await world.manager.admit(pod("q", requests={"best-effort-cpu": 2.0, "cpu": 1.0}))
        assert "requests cpu under two names" in refused.message

    run(test())


@pytest.mark.parametrize("scope", ["container", "pod"])
def test_all_containers_of_a_pod_request_under_the_name_of_the_plugin(scope: str):
    """Katalyst's plug-ins refuse a request with two names; a pod of reclaimed_cores is then inadmissible."""

    async def test() -> None:
        milli = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
        requests = {milli: 1500.0}
        containers = (
            PodContainer("init", requests, init=True),
            PodContainer("proxy", requests, init=True, restarts=True),
            PodContainer("main", requests),
            PodContainer("log", requests),
        )
        batch = replace(pod(qos="reclaimed_cores"), containers=containers)
        world = await World(names=((milli, "cpu"),), scope=scope).with_(fake := Fake())
        assert (await world.manager.admit(batch)).admitted
        assert [(each.container_name, each.resource_requests) for each in fake.asked] == [
            (each.name, {"cpu": 1.5}) for each in containers
        ]

    run(test())


@pytest.mark.parametrize(("pod_level", "expected"), [({}, 7.0), ({"cpu": 9.0}, 9.0)])
def test_the_hint_of_a_whole_pod_is_for_the_request_that_kube_scheduler_counts(
    pod_level: dict[str, float], expected: float
):
    """An init container runs beside the sidecars before it; a pod-level request replaces the sum."""

    async def test() -> None:
        containers = (
            PodContainer("proxy", {"cpu": 2.0}, init=True, restarts=True),
            PodContainer("setup", {"cpu": 5.0}, init=True),
            PodContainer("log", {"cpu": 1.0}, init=True, restarts=True),
            PodContainer("main", {"cpu": 3.0}),
        )
        world = await World(scope="pod").with_(fake := Fake())
        await world.manager.admit(replace(pod(), containers=containers, requests=pod_level))
        assert fake.hinted[0].resource_requests == {"cpu": expected}

    run(test())


def test_cpus_may_be_requested_in_thousandths():
    async def test() -> None:
        milli = "resource.katalyst.kubewharf.io/reclaimed_millicpu"
        world = await World(names=((milli, "cpu"),)).with_(fake := Fake())
        assert (await world.manager.admit(pod(requests={milli: 1500.0}, qos="reclaimed_cores"))).admitted
        assert fake.asked[0].resource_requests == {"cpu": 1.5}
        world = await World().with_(plain := Fake(milli, gives=1500.0))
        assert (await world.manager.admit(pod(requests={milli: 1500.0}, qos="reclaimed_cores"))).admitted
        assert plain.asked[0].resource_requests == {milli: 1500.0}

    run(test())


def test_a_pod_of_a_nic_role_gets_a_card_without_a_request():
    async def test() -> None:
        nic = Fake("NIC", gives=0, result="", prop="", scalar=False, offers=(ON_1,))
        world = await World(nic_roles=("enhanced",)).with_(nic)
        role = {"kubernetes.io/pod-role": "enhanced"}
        assert (await world.manager.admit(pod(annotations=role))).decided == {"c": {"NIC": ON_1}}
        assert (await world.manager.admit(pod("q"))).decided == {"c": {}} | {"c": {"*": Hint(BOTH, preferred=True)}}
        asks = await World(nic_roles=("enhanced",), names=(("card", "NIC"),)).with_(nic)
        admission = await asks.manager.admit(pod("r", annotations=role, requests={"card": 1.0}))
        assert admission.decided == {"c": {"NIC": ON_1}}, "a request under another name counts once"

    run(test())


@pytest.mark.parametrize(
    ("gives", "result", "reason"),
    [
        (1.0, "0", "requested 2, but got 1"),
        (2.0, "", "the empty set"),
        (2.0, "0-", "an invalid set"),
        (2.0, "1,16-17", "CpusetCpus 16-17 does not exist on this machine or is offline"),
        (math.nan, "0-1", "the invalid quantity nan"),
        (math.inf, "0-1", "the invalid quantity inf"),
        (-2.0, "0-1", "the invalid quantity -2.0"),
    ],
)
def test_an_invalid_allocation_is_an_error_and_not_stored(gives: float, result: str, reason: str):
    """Neither at the admission nor in a later round, in which the earlier allocation stays."""

    async def test() -> None:
        world = await World(cpus=frozenset(range(16))).with_(fake := Fake(gives=gives, result=result))
        asked = pod(qos="dedicated_cores")
        admission = await world.manager.admit(asked)
        assert reason in admission.message
        assert world.manager.allocations.pods == frozenset()
        fake.gives, fake.result = 2.0, "0-1"
        await world.manager.admit(asked)
        before = world.manager.allocations.of("p", "c")
        fake.has["p"]["c"] = {"cpu": AllocationInfo("CpusetCpus", False, True, gives, result)}
        done = await world.manager.reconcile([asked], world.apply)
        if gives == 1.0:  # a pool may become smaller than a request
            assert not done.failed
        else:
            assert reason in failures(done)["ns/p/c"]
            assert world.manager.allocations.of("p", "c") == before

    run(test())


def test_of_two_resources_that_set_one_property_the_second_is_an_error():
    async def test() -> None:
        world = await World().with_(Fake(), Fake("reclaimed", result="2-3"))
        admission = await world.manager.admit(pod(requests={"cpu": 2.0, "reclaimed": 2.0}))
        assert not admission.admitted
        assert "cpu sets CpusetCpus to 0-1, but reclaimed sets it to 2-3" in admission.message

    run(test())


def test_hints_with_unknown_numa_nodes_are_ignored():
    async def test() -> None:
        strange = Hint(frozenset({7}), preferred=True)
        world = await World().with_(fake := Fake(offers=(strange, ON_1)))
        assert (await world.manager.admit(pod())).decided == {"c": {"cpu": ON_1}}
        fake.offers = (strange,)
        assert not (await world.manager.admit(pod("q"))).admitted

    run(test())


def test_stored_hints_with_unknown_numa_nodes_are_ignored():
    async def test() -> None:
        hints = wire_hints([Hint(frozenset({1 << 40}), preferred=True)])
        info = AllocationInfo("CpusetCpus", False, True, 2.0, "0-1", resource_hints=hints)
        allocations = Allocations()
        allocations.set("p", "c", "cpu", info)
        world = await World(allocations, policy=TopologyPolicy.NUMERIC).with_(Fake(offers=(ON_1,)))
        assert (await world.manager.admit(pod())).decided == {"c": {"cpu": ON_1}}

    run(test())


def test_in_the_scope_pod_there_is_one_hint_per_pod():
    async def test() -> None:
        world = await World(scope="pod").with_(fake := Fake(offers=(ON_1,)))
        init = PodContainer("i", {"cpu": 1.0}, init=True)
        containers = (init, PodContainer("a", {"cpu": 1.0}), PodContainer("b", {"cpu": 1.0}))
        admission = await world.manager.admit(pod(containers=containers))
        assert admission.decided == {name: {"cpu": ON_1} for name in ("i", "a", "b")}
        assert [request.hint for request in fake.asked] == [ON_1] * 3

    run(test())


def test_the_hint_of_a_pod_is_kept_after_a_restart():
    """The allocation of the main container is compared with its own request, not with the sum."""

    async def test() -> None:
        two = pod(containers=(PodContainer("a", {"cpu": 2.0}), PodContainer("b", {"cpu": 2.0})))
        before = await World(scope="pod").with_(Fake(offers=(ON_1,)))
        assert (await before.manager.admit(two)).admitted
        world = await World(before.manager.allocations, scope="pod").with_(Fake(offers=()))
        again = await world.manager.admit(two)
        assert again.decided == {name: {"cpu": ON_1} for name in ("a", "b")}

    run(test())


def test_without_a_policy_plugins_are_not_asked_for_hints():
    async def test() -> None:
        for whole_pods in (False, True):
            world = await World(scope="pod" if whole_pods else "container", policy=TopologyPolicy.NONE).with_(Fake())
            assert (await world.manager.admit(pod())).offered == {"c": {}}

    run(test())


# --- all or nothing, without Katalyst's exceptions ---


def test_a_pod_gets_all_its_requests_or_is_not_admitted():
    """Also a pod without a QoS level, and a pod whose second container does not fit."""

    async def test() -> None:
        cpu = Fake(offers=None)
        world = await World(policy=TopologyPolicy.BEST_EFFORT).with_(cpu)
        two = pod(containers=(PodContainer("a", {"cpu": 2.0}), PodContainer("b", {"cpu": 70.0})))
        refused = await world.manager.admit(two)
        assert (refused.admitted, refused.released, refused.unanswered) == (False, ReleaseResult.ALL, False)
        assert "requested 70, but got 2" in refused.message
        assert (cpu.removed, world.manager.allocations.pods) == (["p"], frozenset())
        await world.manager.plugins.deregister("cpu")
        assert (await world.manager.admit(pod())).unanswered

    run(test())


class Slow(Fake):
    """Waits before it refuses the second container."""

    reached: asyncio.Event
    go: asyncio.Event

    async def allocate(self, request: ResourceRequest) -> Mapping[str, AllocationInfo] | None:
        if request.container_name == "b":
            self.reached.set()
            await self.go.wait()
            raise PluginCallError(self.resource, "Allocate", "UNKNOWN", "it has no more")
        return await super().allocate(request)


def test_a_round_skips_a_pod_whose_admission_is_pending():
    """Its first container has an allocation, which is released when the second one is refused."""

    async def test() -> None:
        fake = Slow(offers=None)
        fake.reached, fake.go = asyncio.Event(), asyncio.Event()
        world = await World().with_(fake)
        two = pod(containers=(PodContainer("a", {"cpu": 2.0}), PodContainer("b", {"cpu": 2.0})))
        admission = asyncio.create_task(world.manager.admit(two))
        await fake.reached.wait()
        assert (world.manager.allocations.pods, world.manager.admitted_pods) == ({"p"}, frozenset())
        fake.go.set()
        assert not (await admission).admitted
        assert world.manager.allocations.pods == frozenset()

    run(test())


# --- resizes ---


def test_a_resize_is_retried_each_round_and_the_old_allocation_stays_until_it_succeeds(
    caplog: pytest.LogCaptureFixture,
):
    async def test() -> None:
        world = await World().with_(fake := Refusing(full=False))
        await world.manager.admit(pod())
        await world.manager.reconcile([pod()], world.apply)
        grown = pod(requests={"cpu": 4.0})
        fake.full = True
        for _ in range(2):
            assert not (await world.manager.reconcile([grown], world.apply)).failed
            assert world.stored() == {"cpu": 2.0}
            assert "it has no more" in world.manager.missing("p", "c")["cpu"]
        assert (await world.manager.admit(grown)).admitted, "a restart of the manager does not end it"
        fake.full, fake.gives, fake.result = False, 4.0, "0-3"
        await world.manager.reconcile([grown], world.apply)
        assert (world.stored(), world.manager.missing("p", "c")) == ({"cpu": 4.0}, {})
        assert world.set[-1] == ("p/c", {"CpusetCpus": "0-3"})
        fake.gives, fake.result = 1.0, "0"
        await world.manager.reconcile([pod(requests={"cpu": 1.0})], world.apply)
        assert world.stored() == {"cpu": 1.0}
        assert sum("keeps its earlier cpu" in each.message for each in caplog.records) == 1

    run(test())


def test_a_resize_that_the_plugin_grants_in_part_is_a_failure():
    async def test() -> None:
        world = await World().with_(fake := Fake())
        await world.manager.admit(pod())
        grown = pod(requests={"cpu": 4.0})
        await world.manager.reconcile([grown], world.apply)
        assert world.manager.missing("p", "c") == {"cpu": "requested 4, but got 2"}
        fake.gives, fake.result = 4.0, "0-3"
        await world.manager.reconcile([grown], world.apply)
        assert (world.stored(), world.manager.missing("p", "c")) == ({"cpu": 4.0}, {})

    run(test())


# --- deleted pods ------------------------------------------------------------------------------------------------


def test_allocations_of_a_deleted_pod_are_released():
    async def test() -> None:
        world = await World().with_(fake := Fake())
        await world.manager.admit(pod("a"))
        await world.manager.reconcile([], world.apply)
        assert fake.removed == []  # it was just admitted; the list of pods may be older
        world.now += ADMISSION_GRACE_S
        fake.failing = True
        await world.manager.reconcile([], world.apply)
        assert world.manager.allocations.pods == {"a"}  # RemovePod is to be called again
        fake.failing = False
        await world.manager.reconcile([], world.apply)
        assert fake.removed == ["a"]
        assert world.manager.allocations.pods == frozenset()

    run(test())


def test_a_plugin_that_registers_again_releases_pods_that_were_deleted_meanwhile():
    async def test() -> None:
        world = await World().with_(fake := Fake())
        await world.manager.admit(pod("a"))
        await world.manager.plugins.deregister("cpu")
        world.now += ADMISSION_GRACE_S
        await world.manager.reconcile([], world.apply)
        assert world.manager.allocations.pods == frozenset()
        fake.closed = False
        await world.with_(fake)
        await world.manager.reconcile([], world.apply)
        assert fake.removed == ["a"]

    run(test())


# --- containers --------------------------------------------------------------------------------------------------


def test_the_options_with_which_a_container_is_created():
    async def test() -> None:
        world = await World().with_(Fake(result="5-6,10"), Fake("memory", prop="CpusetMems", result="1,2"))
        asked = pod(requests={"cpu": 2.0, "memory": 2.0})
        await world.manager.admit(asked)
        started = await world.manager.container_options(asked, "c")
        assert started
        assert started.properties == {"CpusetCpus": "5-6,10", "CpusetMems": "1-2"}
        assert (
            await world.manager.container_options(
                pod(annotations={"katalyst.kubewharf.io/skip_qrm_admit": "true"}), "c"
            )
            is None
        )

    run(test())


def test_if_two_resources_set_one_variable_the_first_counts(caplog: pytest.LogCaptureFixture):
    async def test() -> None:
        allocations = Allocations()
        for resource in ("b", "a"):
            same = {"ADDR": resource}
            allocations.set("p", "c", resource, AllocationInfo(envs=same, annotations=same))
        started = await World(allocations).manager.container_options(pod(), "c")
        assert started
        assert started.envs == started.annotations == {"ADDR": "a"}
        assert "b and another resource set different values for ADDR; using that of the other resource" in caplog.text

    run(test())


def test_prestartcontainer_is_called_before_a_container_is_created():
    """After the allocation is on disk. If the call fails, the container is not created."""

    async def test() -> None:
        asking = replace(ALIGNED, pre_start=True)
        world = await World().with_(cpu := Fake(options=asking), memory := Fake("memory", prop="CpusetMems"))
        wanted = pod(requests={"cpu": 2.0, "memory": 2.0})
        assert await world.manager.container_options(wanted, "c")
        assert (cpu.begun, memory.begun, world.saves) == (["c"], [], 1)
        cpu.failing = True
        with pytest.raises(NotAllocated, match="the plug-in for cpu failed in PreStartContainer"):
            await world.manager.container_options(wanted, "c")
        world.full = True
        with pytest.raises(OSError, match="No space left"):
            await world.manager.container_options(wanted, "c")

    run(test())


def test_values_are_written_once_and_again_after_a_minute():
    async def test() -> None:
        world = await World().with_(Fake())
        await world.manager.admit(pod())
        for _ in range(3):
            await world.manager.reconcile([pod()], world.apply)
        assert world.set == [("p/c", {"CpusetCpus": "0-1"})]
        world.now += REFRESH_S
        await world.manager.reconcile([pod()], world.apply)
        assert len(world.set) == 2

    run(test())


def test_a_failed_update_of_a_container_does_not_stop_the_others():
    async def test() -> None:
        world = await World().with_(Fake())
        pods = [pod("a", annotations={"refuse": ""}), pod("b")]
        for each in pods:
            await world.manager.admit(each)
        assert await world.manager.reconcile(pods, world.apply) == Reconciled(
            (ContainerRef("b", "c", "ns/b"),), {ContainerRef("a", "c", "ns/a"): "the runtime refuses"}
        )
        assert (await world.manager.reconcile(pods, world.apply)).failed  # and is retried

    run(test())


def test_containers_that_lose_cpus_are_updated_first():
    async def test() -> None:
        world = await World().with_(fake := Fake())
        pods = [pod(uid) for uid in ("a", "b", "c")]
        for each in pods:
            await world.manager.admit(each)
        await world.manager.reconcile(pods, world.apply)
        world.set.clear()
        for uid, result in (("a", "0-4"), ("b", "5"), ("c", "0-1")):
            info = AllocationInfo("CpusetCpus", is_scalar_resource=True, allocated_quantity=5, allocation_result=result)
            fake.has[uid]["c"]["cpu"] = info
        await world.manager.reconcile(pods, world.apply)
        assert [name for name, _ in world.set] == ["b/c", "a/c"]

    run(test())


def test_a_plugin_that_does_not_report_its_allocations_is_asked_for_more():
    """All stored allocations were made since it registered."""

    async def test() -> None:
        world = await World().with_(fake := Fake(offers=None))
        for uid in ("p", "q"):
            assert (await world.manager.admit(pod(uid, qos="dedicated_cores"))).admitted
            fake.has.clear()

    run(test())


def test_a_plugin_that_lost_its_state_gives_no_pod_the_cpus_of_another():
    """A new pod waits until the plug-in was asked again for the pods with earlier allocations."""

    async def test() -> None:
        allocations = Allocations()
        allocations.set("old", "c", "cpu", AllocationInfo("CpusetCpus", False, True, 2.0, "0-1"))
        world = await World(allocations).with_(fake := Fake(offers=None))
        new, old = pod("new"), pod("old")
        refused = await world.manager.admit(new, active={"old", "new"})
        assert "it has not loaded its earlier allocations yet" in refused.message
        assert fake.asked == []
        times = world.manager.plugins.registrations
        for passed in (0.0, PLUGIN_STARTUP_S):
            assert world.manager.plugins.registrations == times
            world.now += passed
            await world.manager.reconcile([old], world.apply)
        assert world.manager.plugins.registrations == times + 1, "the refused pod is retried"
        assert [request.pod_uid for request in fake.asked] == ["old"]
        assert (await world.manager.admit(new, active={"old", "new"})).admitted

    run(test())


def test_a_plugin_that_just_started_is_not_asked_for_allocations():
    async def test() -> None:
        world = await World().with_(Fake())
        await world.manager.admit(pod())
        fresh = Fake(result="7")
        await world.with_(fresh)
        await world.manager.reconcile([pod()], world.apply)
        assert fresh.asked == []
        world.now += PLUGIN_STARTUP_S
        await world.manager.reconcile([pod()], world.apply)
        assert len(fresh.asked) == 1

    run(test())


def test_a_failing_plugin_does_not_hide_the_others():
    async def test() -> None:
        world = await World().with_(Fake(), Fake("memory", failing=True))
        assert set(await world.manager.topology_aware(pod(), "c")) == {"cpu"}
        assert set(await world.manager.plugins.allocatable()) == {"cpu"}

    run(test())
