"""Documented classes of differences from Katalyst's dynamic policies; docs/reference/differences.md describes them.

A difference in CPUs of pools is explained only if the product's plug-in with a rule of v0.5.0 (see `version`) gives
exactly Katalyst's answer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from agent import cpuset
from agent.qrm.plugins.cpu_topology import CpuTopology
from tests.originals.frame import Case, DifferenceClass, Outcome
from tests.originals.katalyst.version import BOUND, CORES, LATE, ORDER, RULES, TAKE, CpuPluginV050
from tests.originals.katalyst.worlds import BINDINGS, POOLS, Clock, PlayedWorld, cpu_settings, topology

CPU = "pkg/agent/qrm-plugins/cpu/dynamicpolicy"
MEMORY = "pkg/agent/qrm-plugins/memory/dynamicpolicy"


def _is_of(outcome: Outcome, resource: str) -> bool:
    return isinstance(outcome.context, PlayedWorld) and outcome.context.comparison.resource == resource


def _text(answer: Any) -> str:
    """The text of a failure, "" for any other answer."""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""


def _result(answer: Any) -> Any:
    """The CPUs or NUMA nodes of an allocation as text; None for any other answer."""
    return answer.get("result") if isinstance(answer, dict) else answer


def _quantity(answer: Any) -> Any:
    return answer.get("quantity") if isinstance(answer, dict) else None


# --- rules of v0.5.0 for pools ---------------------------------------------------------------------------------------


def _explained_by_rule(outcome: Outcome, *, rule: str) -> bool:
    """Whether the plug-in with all rules up to this one gives Katalyst's answer."""
    if not _is_of(outcome, "cpu") or outcome.check.startswith("hints"):
        return False
    rules = RULES[: RULES.index(rule) + 1]
    orders = itertools.permutations(POOLS) if rule == ORDER else iter([POOLS])
    return any(_equal_with(outcome, frozenset(rules), order) for order in orders)


def _equal_with(outcome: Outcome, rules: frozenset[str], order: tuple[str, ...]) -> bool:
    def build(case: Case, machine: CpuTopology, clock: Clock) -> CpuPluginV050:
        return CpuPluginV050(machine, cpu_settings(case, machine), now=clock, rules=rules, order=order)

    found = outcome.context.outcome_with((rules, order), build, outcome)
    return found is not None and found.equal


def _of_rule(rule: str, citation: str, reason: str) -> DifferenceClass:
    return DifferenceClass(f"cpu: {rule}", citation, reason, partial(_explained_by_rule, rule=rule))


# --- other differences -----------------------------------------------------------------------------------------------


def _no_shared_cpus(outcome: Outcome) -> bool:
    return _is_of(outcome, "cpu") and "get empty pooledCPUs" in _text(outcome.original) and not _text(outcome.product)


def _too_many_requests(outcome: Outcome) -> bool:
    refusal = re.search(r"shared pods would request (\S+) of (\d+) CPUs", _text(outcome.product))
    return _is_of(outcome, "cpu") and refusal is not None and float(refusal[1]) > int(refusal[2])


def _sidecar_quantity(outcome: Outcome) -> bool:
    same = _is_of(outcome, "cpu") and _result(outcome.original) == _result(outcome.product)
    counted = same and _quantity(outcome.original) == len(cpuset.parse(_result(outcome.original) or ""))
    return counted and outcome.subject.endswith("/proxy") and _quantity(outcome.product) == 0


def _preferred_size(outcome: Outcome) -> bool:
    """Katalyst prefers no hint, the product the hints with the fewest nodes of the same list."""
    if not _is_of(outcome, "cpu") or not isinstance(outcome.original, list) or not outcome.original:
        return False
    fewest = min(len(nodes) for nodes, _ in outcome.original)
    none_preferred = not any(preferred for _, preferred in outcome.original)
    return none_preferred and outcome.product == [[nodes, len(nodes) == fewest] for nodes, _ in outcome.original]


def _shared_memory_quantity(outcome: Outcome) -> bool:
    shared = outcome.check in ("allocation, shared", "allocation, reclaimed")
    nodes = _is_of(outcome, "memory") and shared and _result(outcome.original) == _result(outcome.product)
    return nodes and (_quantity(outcome.original), _quantity(outcome.product)) == (0, _requested(outcome))


def _no_shared_nodes(outcome: Outcome) -> bool:
    """Katalyst gives no NUMA node, the product gives all of them."""
    given = _is_of(outcome, "memory") and outcome.check.endswith(", shared") and _result(outcome.original) == ""
    return given and _result(outcome.product) == _all_nodes(outcome)


def _reclaimed_memory(outcome: Outcome) -> bool:
    """Katalyst gives all NUMA nodes, the product those without bound pods."""
    given = _is_of(outcome, "memory") and outcome.check.endswith(", reclaimed")
    return given and _result(outcome.original) == _all_nodes(outcome) and _result(outcome.product) == _unbound(outcome)


def _steps_until(outcome: Outcome) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The steps of the world with Katalyst's answers, up to the allocation that the outcome is about, or all."""
    for step, answer in zip(outcome.case["steps"], outcome.context.original["steps"], strict=True):
        yield step, answer
        subject = f"{step['pod']}/{step['container']}" if "pod" in step else ""
        if outcome.check.startswith("allocation") and subject == outcome.subject:
            return


def _requested(outcome: Outcome) -> float:
    """The quantity that the container requests."""
    step, _ = list(_steps_until(outcome))[-1]
    return float(step["request"] * outcome.context.comparison.unit)


def _unbound(outcome: Outcome) -> str:
    """The NUMA nodes on which Katalyst has no bound pod, or all if there are none."""
    bound: dict[str, frozenset[int]] = {}
    for step, answer in _steps_until(outcome):
        if "remove" in step:
            bound.pop(step["remove"], None)
        elif step["kind"] in BINDINGS and step["type"] == "MAIN" and _result(answer.get("allocated")):
            bound[step["pod"]] = cpuset.parse(_result(answer["allocated"]))
    nodes = frozenset(topology(outcome.case["shape"]).memory)
    return cpuset.text(nodes.difference(*bound.values()) or nodes)


def _all_nodes(outcome: Outcome) -> str:
    return cpuset.text(frozenset(topology(outcome.case["shape"]).memory))


CLASSES = (
    DifferenceClass(
        "cpu: no CPUs for shared pods",
        f"{CPU}/policy_allocation_handlers.go:58",
        "if every NUMA node has a bound pod, Katalyst refuses shared pods; here they get the other CPUs of these nodes",
        _no_shared_cpus,
    ),
    DifferenceClass(
        "cpu: sum of requests",
        f"{CPU}/policy_hint_handlers.go:37",
        "v0.5.0 admits any number of shared pods; later versions and load-watcher refuse more requests than CPUs",
        _too_many_requests,
    ),
    DifferenceClass(
        "cpu: quantity of a sidecar",
        "pkg/agent/qrm-plugins/cpu/util/util.go:149",
        "a sidecar has the CPUs of its main container; Katalyst counts them twice",
        _sidecar_quantity,
    ),
    DifferenceClass(
        "cpu: preferred number of NUMA nodes",
        f"{CPU}/policy_hint_handlers.go:221",
        "v0.5.0 prefers the number of nodes for an idle machine; later versions prefer the smallest number that fits",
        _preferred_size,
    ),
    _of_rule(
        LATE,
        f"{CPU}/policy.go:486",
        "Katalyst computes pools when a dedicated pod comes, a pod goes or ramp-up ends, load-watcher at each request",
    ),
    _of_rule(
        CORES,
        f"{CPU}/policy.go:1003",
        "v0.5.0 takes the first pool for reclaimed pods in whole cores; later versions take single CPUs of each node",
    ),
    _of_rule(
        BOUND,
        f"{CPU}/policy_allocation_handlers.go:594",
        "v0.5.0 keeps pools off all NUMA nodes with dedicated pods; later versions keep them off exclusive nodes only",
    ),
    _of_rule(
        TAKE,
        f"{CPU}/calculator/cpu_assignment.go:252",
        "v0.5.0 takes the last CPU of an odd number from the next NUMA node; later versions begin with the first node",
    ),
    _of_rule(
        ORDER,
        f"{CPU}/policy_allocation_handlers.go:932 and 1032",
        "Katalyst extends pools, also by CPUs of the reserve, and reduces equal pools in the random order of a Go map, "
        "load-watcher by name and without the reserve",
    ),
    DifferenceClass(
        "memory: quantity of shared memory",
        f"{MEMORY}/policy_allocation_handlers.go:678",
        "Katalyst reports 0 bytes for memory that is not bound, so that its manager allocates again at each admission",
        _shared_memory_quantity,
    ),
    DifferenceClass(
        "memory: no NUMA nodes for shared pods",
        f"{MEMORY}/policy_allocation_handlers.go:292",
        "if every NUMA node has a bound pod, Katalyst gives shared pods an empty set, with which no container starts",
        _no_shared_nodes,
    ),
    DifferenceClass(
        "memory: nodes of reclaimed pods",
        f"{MEMORY}/policy_allocation_handlers.go:327",
        "Katalyst gives reclaimed pods memory of all NUMA nodes, also of nodes that belong to an exclusive pod",
        _reclaimed_memory,
    ),
)
