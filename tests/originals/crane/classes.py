"""The documented differences between Crane's agent and the agent of this project.

Each class is a fault of Crane that the emulator can leave out (tests/reference/crane/faults.py). It explains a
difference if the emulator without all faults decides as the agent does, and the repair of this fault is the first that
changes the answer of the emulator. docs/differences.md lists the same differences.
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

from tests.originals.crane import cases
from tests.originals.crane.answers import (
    crane_inputs,
    decided,
    emulated_decisions,
    emulated_order,
    emulated_plans,
    shown,
    triggered_part,
    watermarks,
)
from tests.originals.frame import Case, DifferenceClass, Outcome
from tests.reference.crane import executors
from tests.reference.crane.executors import CranePlan
from tests.reference.crane.faults import REPAIRED, CraneFault

EMULATOR, AGENT = "emulator", "agent"
CLOSED = 1e-6
"""Millicores or bytes: the agent takes a smaller gap for closed."""

PLANS: dict[CraneFault, tuple[str, str]] = {
    CraneFault.SHARED_GAPS: (
        "pkg/ensurance/executor/watermark.go:228",
        "the gap of throttling is deleted or overwritten by that of restoring; the agent throttles until it is closed",
    ),
    CraneFault.RESTORE_INDEX: (
        "pkg/ensurance/executor/throttle.go:227",
        "without usage, Crane indexes the wrong list of pods and may panic; the agent restores the pods of the rules",
    ),
    CraneFault.PROTECTED: (
        "pkg/utils/pod.go:93, pkg/ensurance/executor/cpu_usage.go:205",
        "static and system-critical pods are throttled, and their refused eviction counts; the agent skips them",
    ),
    CraneFault.FAILED_EVICTIONS: (
        "pkg/ensurance/executor/cpu_usage.go:205",
        "a failed eviction counts as released; the agent selects the next pod",
    ),
    CraneFault.ANY_MISSED: (
        "pkg/ensurance/executor/watermark.go:151",
        "a missing metric that no rule names evicts all pods; for the agent only the metrics of the rules count",
    ),
    CraneFault.RESTORE_EXCESS: (
        "pkg/ensurance/executor/watermark.go:232",
        "the excess gives back more than there is room for; the agent gives back less",
    ),
    CraneFault.RESTORE_ORDER: (
        "pkg/ensurance/executor/throttle.go:198",
        "pods are restored in the order of throttling; the agent restores the most important pod first",
    ),
    CraneFault.LAST_CONTAINER: (
        "pkg/ensurance/executor/cpu_usage.go:105, :190",
        "the release of a pod is that of its last container; the agent adds the releases",
    ),
    CraneFault.MIN_RATIO: (
        "pkg/ensurance/executor/cpu_usage.go:89",
        "minCPURatio becomes a quota of a hundred times the percentage; the agent applies the percentage",
    ),
    CraneFault.NO_EXTENDED_FLOOR: (
        "pkg/ensurance/executor/cpu_usage.go:87",
        "minCPURatio does not refer to an extended limit; for the agent it does",
    ),
    CraneFault.RAISES: (
        "pkg/ensurance/executor/cpu_usage.go:81",
        "throttling raises a quota below the request; the agent never raises a quota to throttle",
    ),
    CraneFault.NO_RELEASE: (
        "pkg/ensurance/executor/cpu_usage.go:96",
        "a quota is written although it lowers no usage; the agent does not write it",
    ),
    CraneFault.NO_LEAST: (
        "pkg/ensurance/executor/cpu_usage.go:97",
        "quotas below 1000 us, which the kernel refuses, are sent, and 0 means no change; the agent writes 1000",
    ),
    CraneFault.NO_ORIGINAL: (
        "pkg/ensurance/executor/cpu_usage.go:157",
        "restoring raises quotas that were never lowered; the agent raises a quota up to its original value",
    ),
    CraneFault.STEP_ZERO: (
        "pkg/ensurance/executor/cpu_usage.go:153",
        "with stepCPURatio 0 nothing is restored; the agent restores the original value at once",
    ),
    CraneFault.EXTENDED_JUMP: (
        "pkg/ensurance/executor/cpu_usage.go:163",
        "a container with an extended limit gets it in one step; the agent restores it step by step",
    ),
    CraneFault.NEVER_UNLIMITED: (
        "pkg/ensurance/executor/cpu_usage.go:165",
        "60 cores are compared as 60 times the period; the agent removes a quota above the cores of the node",
    ),
    CraneFault.FUTILE: (
        "pkg/ensurance/executor/evict.go:98",
        "pods that release nothing are evicted until the gap is closed; the agent spares them",
    ),
    CraneFault.SHARES: (
        "pkg/ensurance/executor/sort/cpu_usage_sort.go:20, pkg/utils/pod.go:273",
        "cores are divided by millicores, so shares that differ by less than a millionth are equal; the agent divides "
        "by cores",
    ),
    CraneFault.TIES: (
        "pkg/ensurance/executor/sort/sort.go:123",
        "equal pods stay in the order of the cache; the agent sorts them by name",
    ),
}
CYCLES: dict[CraneFault, tuple[str, str]] = {
    CraneFault.COOL_DOWN: (
        "pkg/ensurance/analyzer/analyzer.go:541",
        "a restore within the cool-down keeps new pods away and starts the cool-down again; in the agent it does not",
    ),
    CraneFault.COUNTING: (
        "pkg/ensurance/analyzer/analyzer.go:285",
        "samples below do not reset the count of samples above; the agent counts samples in a row",
    ),
    CraneFault.UNKNOWN_ACTION: (
        "pkg/ensurance/analyzer/analyzer.go:529",
        "a rule whose action does not exist keeps new pods away; the agent does not apply such a rule",
    ),
    CraneFault.NO_GRACE: (
        "pkg/ensurance/executor/podinfo/pod_info.go:138",
        "terminationGracePeriodSeconds of an action has no effect; the agent uses it",
    ),
    CraneFault.LAST_PRIORITY: (
        "pkg/ensurance/analyzer/podqos-fetcher.go:151",
        "of several priorities with NotIn only the last one is excluded; the agent excludes all",
    ),
    CraneFault.NEGATIVE_PRIORITY: (
        "pkg/ensurance/analyzer/podqos-fetcher.go:127",
        "a priority below 0 cannot be written; the agent reads it",
    ),
}


def _is_counted_by(fault: CraneFault, outcome: Outcome) -> bool:
    """Whether all repairs give the agent's answer, and this is the first that changes that of the emulator."""
    if not outcome.check.startswith(AGENT) or _has_several_metrics(outcome.case):
        return False
    faults = list(CYCLES if outcome.case["kind"] == "cycles" else PLANS)
    if fault not in faults or _without(REPAIRED, outcome) != outcome.product:
        return False
    place = faults.index(fault)
    before, after = _without(frozenset(faults[:place]), outcome), _without(frozenset(faults[: place + 1]), outcome)
    return bool(before == outcome.original != after)


def _without(repaired: frozenset[CraneFault], outcome: Outcome) -> Any:
    """The answer of the emulator without these faults."""
    answer = _emulated(json.dumps(outcome.case), repaired)
    return triggered_part(answer[outcome.context]) if outcome.case["kind"] == "cycles" else answer


@lru_cache(maxsize=1_000)
def _emulated(case_text: str, repaired: frozenset[CraneFault]) -> Any:
    """The answer to a case, as JSON. The classes ask for the same answers."""
    case = json.loads(case_text)
    if case["kind"] == "cycles":
        return emulated_decisions(case, repaired)
    if case["kind"] == "sort":
        return emulated_order(case, repaired)
    return decided(shown(case, next(emulated_plans(case, repaired))))


def _has_several_metrics(case: Case) -> bool:
    return case["kind"] == "evict" and len(case["marks"].get("evict", {})) > 1


def _closes_gaps_with_fewer_pods(outcome: Outcome) -> bool:
    """Whether the agent closes the gaps that Crane without its other faults closes, with at most as many pods."""
    if not outcome.check.startswith(AGENT) or not _has_several_metrics(outcome.case):
        return False
    agent = [f"{cases.NAMESPACE}/{name}" for name in outcome.product["evicted"]]
    return any(_is_as_good(outcome.case, agent, made) for made in emulated_plans(outcome.case, REPAIRED))


def _is_as_good(case: Case, agent: list[str], made: CranePlan) -> bool:
    marks, given = watermarks(case["marks"].get("evict", {})), crane_inputs(case, REPAIRED)
    gaps = executors.eviction_gaps(given, marks)
    if None in gaps.values() or executors.quantified("evict", marks)[1]:
        return set(agent) == set(made.evicted)
    pods = {pod.key: pod for pod in given.pods}
    for name, gap in gaps.items():
        freed = [sum(executors.METRICS[name].freed(pods[key]) for key in keys) for keys in (agent, made.evicted)]
        if freed[0] < min(gap or 0.0, freed[1]) - CLOSED:
            return False
    return len(agent) <= len(made.evicted)


CLASSES = (
    *(
        DifferenceClass(fault.value, citation, reason, partial(_is_counted_by, fault))
        for fault, (citation, reason) in {**PLANS, **CYCLES}.items()
    ),
    DifferenceClass(
        "a release closes the gap of one metric only",
        "pkg/ensurance/executor/evict.go:106",
        "the agent subtracts the release of a pod from the gaps of all metrics, the most urgent metric first",
        _closes_gaps_with_fewer_pods,
    ),
)
