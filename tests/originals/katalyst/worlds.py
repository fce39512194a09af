"""Random worlds: a machine, and pods that come to it and go. Katalyst's policy and the product's plug-in answer the
requests of its containers; where Katalyst allocates, the product gets the same merged hint."""

from __future__ import annotations

import json
import random
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agent.qrm.manager.request import CannotAllocate, ContainerType, ResourceRequest
from agent.qrm.manager.topology import Hint
from agent.qrm.plugins.base import ResourcePlugin
from agent.qrm.plugins.calculator import take_single_by_numa_balance
from agent.qrm.plugins.cpu_topology import CpuTopology, LogicalCpu
from agent.qrm.plugins.katalyst import RAMP_UP_S, KatalystCpuPlugin, KatalystSettings
from agent.qrm.plugins.memory import MemoryPlugin
from agent.qrm.roles import DEFAULT_ROLES
from tests.originals.frame import Case, CaseComparison, Outcome
from tests.originals.programs import ask_lines

GIB = 1 << 30
PREFIX = "katalyst.kubewharf.io"
LEVELS = {"shared": "shared_cores", "reclaimed": "reclaimed_cores"}
BINDINGS = {
    "dedicated": {"numa_binding": "true"},
    "exclusive": {"numa_binding": "true", "numa_exclusive": "true"},
}
SHAPES = ((1, 1), (1, 2), (2, 2), (2, 4))
CORES = (4, 8, 12)
POOLS = ("share", "batch", "flink")
STEPS = (3, 5, 8)
SHAPE_KEYS = {"sockets", "nodes", "cores", "adjacent"}
STEP_KEYS = {"pod", "container", "type", "kind", "request"}


def topology(shape: Mapping[str, Any]) -> CpuTopology:
    """A machine with two threads a core: CPUs 2i and 2i + 1 if `adjacent`, otherwise i and i + number of cores."""
    nodes, cores = shape["nodes"], shape["cores"]
    cpus = {}
    for core in range(nodes * cores):
        node = core // cores
        for thread in range(2):
            id = core * 2 + thread if shape["adjacent"] else core + thread * nodes * cores
            cpus[id] = LogicalCpu(id, core, node * shape["sockets"] // nodes, node, node)
    return CpuTopology(dict(sorted(cpus.items())), dict.fromkeys(range(nodes), 64 * GIB))


def computer(machine: CpuTopology) -> dict[str, Any]:
    """The machine for the Go program."""
    cpus = [{"id": cpu.id, "core": cpu.core, "socket": cpu.socket, "numa": cpu.numa} for cpu in machine.cpus.values()]
    return {"cpus": cpus, "memory": [machine.memory[node] for node in sorted(machine.memory)]}


def annotations_of(step: Mapping[str, Any]) -> dict[str, str]:
    found = {f"{PREFIX}/qos_level": LEVELS.get(step["kind"], "dedicated_cores")}
    if binding := BINDINGS.get(step["kind"]):
        found[f"{PREFIX}/memory_enhancement"] = json.dumps(binding)
    if pool := step.get("pool"):
        found[f"{PREFIX}/cpu_enhancement"] = json.dumps({"cpuset_pool": pool})
    return found


Builder = Callable[[Case, CpuTopology, "Clock"], ResourcePlugin]


class PolicyComparison(CaseComparison):
    """A dynamic policy of Katalyst and the product's plug-in for the same resource."""

    resource: str
    sizes: ClassVar[Mapping[str, Sequence[float]]]
    """Requests by kind of pod."""
    unit: float = 1.0

    @abstractmethod
    def plugin(self, case: Case, machine: CpuTopology, clock: Clock) -> ResourcePlugin:
        """The product's plug-in for a world."""

    # --- cases -------------------------------------------------------------------------------------------------------

    def generate(self, source: random.Random) -> Case:
        sockets, nodes = source.choice(SHAPES)
        shape = {
            "sockets": sockets,
            "nodes": nodes,
            "cores": source.choice(CORES),
            "adjacent": source.random() < 0.5,
        }
        return {
            "shape": shape,
            "reserved": source.choice((0, 2, 4)),
            "reclaim": source.random() < 0.5,
            "steps": list(self._steps(source, source.choice(STEPS))),
        }

    def _steps(self, source: random.Random, number: int) -> Iterator[dict[str, Any]]:
        pods = 0
        for _ in range(number):
            if pods and source.random() < 0.15:
                yield {"remove": f"p{source.randint(1, pods)}"}
                continue
            pods += 1
            kind = source.choice(("shared", "shared", "dedicated", "exclusive", "reclaimed"))
            request = source.choice(self.sizes[kind])
            step = {"pod": f"p{pods}", "container": "main", "type": "MAIN", "kind": kind, "request": request}
            if kind == "shared" and source.random() < 0.5:
                step["pool"] = source.choice(POOLS)
            if source.random() < 0.1:
                yield {**step, "container": "init", "type": "INIT"}
            yield step
            if source.random() < 0.15:
                yield {**step, "container": "proxy", "type": "SIDECAR", "request": self.sizes["shared"][0]}

    def is_valid(self, case: Case) -> bool:
        shapes = {(shape["sockets"], shape["nodes"]) for shape in [case["shape"]] if shape.keys() == SHAPE_KEYS}
        steps = [step for step in case["steps"] if "remove" in step or step.keys() >= STEP_KEYS]
        return bool(shapes) and len(steps) == len(case["steps"])

    # --- the original ------------------------------------------------------------------------------------------------

    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[Any]:
        return ask_lines(program, map(self._question, cases), "policy")

    def _question(self, case: Case) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "machine": computer(topology(case["shape"])),
            "reserved_cpus": case["reserved"],
            "reserved_gib": case["reserved"],
            "reclaim": case["reclaim"],
            "steps": [step if "remove" in step else self._question_step(step) for step in case["steps"]],
        }

    def _question_step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        asked = {name: step[name] for name in ("pod", "container", "type")}
        return {**asked, "request": step["request"] * self.unit, "annotations": annotations_of(step)}

    # --- the product -------------------------------------------------------------------------------------------------

    def compare(self, case: Case, original: Any) -> Iterator[Outcome]:
        yield from self.replay(case, original, self.plugin)

    def replay(self, case: Case, original: Any, build: Builder) -> Iterator[Outcome]:
        """The outcomes of a world with a given plug-in."""
        world = PlayedWorld(self, case, original)
        clock = Clock()
        plugin = build(case, topology(case["shape"]), clock)
        kinds = {}
        for step, answer in zip(case["steps"], original["steps"], strict=True):
            if "remove" in step:
                plugin.remove(step["remove"])
                continue
            kinds[f"{step['pod']}/{step['container']}"] = step["kind"]
            request = self._request(step, None)
            yield self._outcome("hints", step, answer["hints"], _hints(plugin, request), world)
            if answer.get("refused"):
                continue
            nodes = answer["hint"]
            hint = Hint(None if nodes is None else frozenset(nodes), preferred=True)
            allocated = _allocated(plugin, self._request(step, hint))
            yield self._outcome("allocation", step, answer["allocated"], allocated, world)
            if _failed(answer["allocated"]) != _failed(allocated):
                return  # from here on the two worlds differ
        yield from self._at("at the end", world, kinds, plugin)
        if original["ramp_up_seconds"]:
            yield Outcome("duration of ramp-up", case, original["ramp_up_seconds"], RAMP_UP_S)
            clock.now += RAMP_UP_S
            yield from self._at("after ramp-up", world, kinds, plugin)

    def _request(self, step: Mapping[str, Any], hint: Hint | None) -> ResourceRequest:
        return ResourceRequest(
            step["pod"],
            step["container"],
            self.resource,
            container_type=ContainerType[step["type"]],
            resource_requests={self.resource: step["request"] * self.unit},
            annotations=annotations_of(step),
            hint=hint,
        )

    def _outcome(self, what: str, step: Mapping[str, Any], original: Any, product: Any, world: PlayedWorld) -> Outcome:
        if _failed(original) and _failed(product):
            product = original  # the texts may differ
        subject = f"{step['pod']}/{step['container']}"
        return Outcome(f"{what}, {step['kind']}", world.case, original, product, subject, world)

    def _at(self, when: str, world: PlayedWorld, kinds: Mapping[str, str], plugin: ResourcePlugin) -> Iterator[Outcome]:
        original = world.original["after" if when == "after ramp-up" else "then"]
        product = {
            f"{pod}/{container}": info.allocation_result
            for pod, containers in plugin.allocations().items()
            for container, info in containers.items()
        }
        for name in sorted(original.keys() | product.keys()):
            yield Outcome(f"{when}, {kinds[name]}", world.case, original.get(name), product.get(name), name, world)


class PlayedWorld:
    """A world with the answer of the original; the context of its outcomes."""

    def __init__(self, comparison: PolicyComparison, case: Case, original: Any) -> None:
        self.comparison = comparison
        self.case = case
        self.original = original
        self._replayed: dict[Hashable, dict[tuple[str, str], Outcome]] = {}

    def outcome_with(self, key: Hashable, build: Builder, outcome: Outcome) -> Outcome | None:
        """The same outcome with another plug-in; the outcomes of a world are computed once for each `key`."""
        if key not in self._replayed:
            outcomes = self.comparison.replay(self.case, self.original, build)
            self._replayed[key] = {(each.check, each.subject): each for each in outcomes}
        return self._replayed[key].get((outcome.check, outcome.subject))


class Clock:
    """The time of a world in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _failed(answer: Any) -> bool:
    """Whether an answer is a failure. An empty list of hints, which says that no NUMA nodes fit, is one too."""
    return answer == [] or (isinstance(answer, dict) and "error" in answer)


def _hints(plugin: ResourcePlugin, request: ResourceRequest) -> Any:
    try:
        found = plugin.hints(request)
    except CannotAllocate as error:
        return {"error": str(error)}
    return None if found is None else [[sorted(hint.nodes or ()), hint.preferred] for hint in found]


def _allocated(plugin: ResourcePlugin, request: ResourceRequest) -> Any:
    try:
        info = plugin.allocate(request)
    except CannotAllocate as error:
        return {"error": str(error)}
    return None if info is None else {"result": info.allocation_result, "quantity": info.allocated_quantity}


class CpuPolicy(PolicyComparison):
    """The dynamic CPU policy."""

    name = "dynamic CPU policy"
    default_cases = 300
    resource = "cpu"
    sizes: ClassVar = {
        "shared": (0.5, 1, 1.5, 2, 3, 4, 6),
        "reclaimed": (0.5, 1, 2, 4),
        "dedicated": (1, 2, 3, 4, 6),
        "exclusive": (2, 4, 8, 12, 20),
    }

    def plugin(self, case: Case, machine: CpuTopology, clock: Clock) -> KatalystCpuPlugin:
        return KatalystCpuPlugin(machine, cpu_settings(case, machine), now=clock)


def cpu_settings(case: Case, machine: CpuTopology) -> KatalystSettings:
    """The settings of the CPU plug-in for a world. Katalyst takes its reserved CPUs without regard to cores."""
    reserved, _ = take_single_by_numa_balance(machine, machine.all, case["reserved"])
    return KatalystSettings(reserved, reclaim=case["reclaim"])


class MemoryPolicy(PolicyComparison):
    """The dynamic memory policy; requests are in GiB."""

    name = "dynamic memory policy"
    default_cases = 200
    resource = "memory"
    unit = float(GIB)
    sizes: ClassVar = {
        "shared": (1, 2, 4, 8),
        "reclaimed": (1, 4),
        "dedicated": (1, 4, 16, 40, 70),
        "exclusive": (2, 16, 60, 70, 130, 200),
    }

    def plugin(self, case: Case, machine: CpuTopology, clock: Clock) -> MemoryPlugin:
        share = -(-case["reserved"] // len(machine.memory)) * GIB  # Katalyst spreads its reservation over the nodes
        return MemoryPlugin(machine, DEFAULT_ROLES, reserved=dict.fromkeys(machine.memory, share), enhancements=True)
