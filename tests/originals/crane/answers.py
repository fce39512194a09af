"""The answers of the original, the emulator and the agent to a case, in the same form.

A plan is `evicted` (grace period by pod), `quotas` (microseconds by container id, -1: none) and more for the emulator.
A decision is the watermarks by metric and the pods of `down`, `up` and `evict`, and the flags of scheduling.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from typing import cast

from agent.decision.analysis import AnalyzerState, Demand, PodDemand
from agent.decision.analyzer import analyze
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.decision.restoring import LoweredValues
from agent.metrics.options import DecisionOptions
from agent.metrics.registry import Metrics
from agent.model import CpuThrottle, Eviction, MetricSample, QuotaChange, StageKind, State
from agent.policy.policy_set import read_texts
from tests.agent.crane import CRANE_CHAINS, watermarks
from tests.agent.scenes import analysis
from tests.originals.crane import cases, policies
from tests.originals.frame import Case
from tests.reference.crane import executors, sorters
from tests.reference.crane.analyzer import CraneAnalyzer, CraneDecision
from tests.reference.crane.executors import CraneInputs, CranePlan
from tests.reference.crane.faults import CraneFault

NOTHING: frozenset[CraneFault] = frozenset()
NOW = 1_000_000.0


def name_of(key: str) -> str:
    return key.partition("/")[2]


# --- sorting ----------------------------------------------------------------------------------------------------------


def emulated_order(case: Case, repaired: frozenset[CraneFault] = NOTHING) -> list[str]:
    return [pod.name for pod in sorters.ordered(case["sorter"], cases.pod_states(case), repaired)]


def agent_order(case: Case) -> list[str]:
    chain = {"cpu": CRANE_CHAINS.cpu, "mem": CRANE_CHAINS.memory, "general": CRANE_CHAINS.general}[case["sorter"]]
    return [pod.name for pod in chain.sort(cases.pod_states(case))]


# --- plans ------------------------------------------------------------------------------------------------------------


def original_plan(case: Case, answer: Case) -> Case:
    """The answer of the original, with all keys."""
    return {
        "evicted": answer.get("evicted", {}),
        "calls": [[each["container"], each["quota"]] for each in answer.get("calls", [])],
        "gaps": {**answer.get("gaps", {}), **dict.fromkeys(answer.get("missed", []))},
        "order": answer.get("order", []),
        # An eviction reports its error in a goroutine that races with the end of the executor.
        "failed": answer.get("failed", False) and case["kind"] != "evict",
        "panicked": answer.get("panicked", False),
    }


def crane_inputs(case: Case, repaired: frozenset[CraneFault]) -> CraneInputs:
    return CraneInputs(
        state=case["state"],
        pods=cases.pod_states(case),
        ratios=cases.ratios(case),
        excess=case["excess"],
        absent=frozenset(f"{cases.NAMESPACE}/{name}" for name in case["absent"]),
        failing=frozenset([*case["failing"], *(f"{cases.NAMESPACE}/{name}" for name in case["failing"])]),
        originals=cases.originals(case),
        repaired=repaired,
    )


def emulated_plans(case: Case, repaired: frozenset[CraneFault] = NOTHING) -> Iterator[CranePlan]:
    """The plans for each order of the metrics, which is random in the original."""
    given = crane_inputs(case, repaired)
    down, up, evict = (watermarks(case["marks"].get(name, {})) for name in ("down", "up", "evict"))
    if case["kind"] == "throttle":
        yield executors.throttle(given, down, up)
    elif case["kind"] == "restore":
        chosen = [pod for pod in given.pods if pod.name in case["down_pods"]]
        yield executors.restore(given, up, down, chosen)
    else:
        for names in permutations(evict):
            yield executors.evict(given, {name: evict[name] for name in names})


def shown(case: Case, made: CranePlan) -> Case:
    """A plan of the emulator in the form of `original_plan`."""
    graces = {pod.key: int(pod.grace_seconds) for pod in cases.pod_states(case)}
    return {
        "evicted": {name_of(key): graces[key] for key in made.evicted},
        "calls": [list(each) for each in made.calls],
        "gaps": made.gaps,
        "order": [name_of(key) for key in made.order],
        "failed": made.failed,
        "panicked": made.panicked,
    }


def decided(answer: Case) -> Case:
    """The part of a plan that the agent decides as well."""
    return {"evicted": answer["evicted"], "quotas": dict(answer["calls"])}


def agent_plan(case: Case) -> Case:
    """The plan of the agent with the order of Crane; the rules of the case have onMissing: all."""
    kind = cast(StageKind, case["kind"])
    marks = watermarks(case["marks"].get({"throttle": "down", "restore": "up", "evict": "evict"}[kind], {}))
    wanted = {name_of(key): PodDemand(frozenset(marks), ratio) for key, ratio in cases.ratios(case).items()}
    demand = {
        "throttle": Demand(down=marks, throttled=wanted, missed=frozenset(marks)),
        "restore": Demand(up=marks, restored=wanted, missed=frozenset(marks)),
        "evict": Demand(evict=marks, evicted=wanted, missed=frozenset(marks)),
    }[kind]
    lost = [*case["absent"], *(case["failing"] if kind == "evict" else [])]
    given = PlanInputs(
        _agent_state(case),
        Metrics(chains=CRANE_CHAINS),
        DecisionOptions(excess=case["excess"]),
        lowered=LoweredValues(cases.originals(case)),
        unavailable=dict.fromkeys(lost, "refused by the case"),
    )
    steps = plan(analysis(demand, may_restore=True), given).steps
    return {
        "evicted": {
            name_of(each.pod): int(each.change.grace_seconds) for each in steps if isinstance(each.change, Eviction)
        },
        "quotas": {
            each.change.container_id: -1 if each.change.after is None else each.change.after
            for each in steps
            if isinstance(each.change, QuotaChange)
        },
    }


def _agent_state(case: Case) -> State:
    """The state as the agent collects it: without a quota of 0, which cAdvisor reports for an unlimited container."""
    pods = [
        replace(pod, containers=tuple(replace(each, quota=each.quota or None) for each in pod.containers))
        for pod in cases.pod_states(case)
    ]
    return State(NOW, {name: (MetricSample(value, NOW),) for name, value in case["state"].items()}, tuple(pods))


# --- cycles -----------------------------------------------------------------------------------------------------------


def states(case: Case) -> Iterator[State]:
    """The state of each cycle."""
    found = tuple(cases.pod_states(case))
    for number, values in enumerate(case["cycles"]):
        now = NOW + number * policies.CYCLE_SECONDS
        yield State(now, {name: (MetricSample(value, now),) for name, value in values.items()}, found)


def original_decision(cycle: Case) -> Case:
    """One cycle of the original, with watermarks as numbers."""
    marks = cycle["marks"] or {}
    return {
        "notified": cycle["notified"],
        "disable": cycle["disable"],
        "restore": cycle["restore"],
        **{name: _numbers(marks.get(name) or {}) for name in ("down", "up", "evict")},
        **{f"{name}_pods": cycle[name] or {} for name in ("down", "up", "evict")},
    }


def _numbers(marks: dict[str, list[str]]) -> dict[str, list[float]]:
    return {metric: list(values) for metric, values in watermarks(marks).items()}


def emulated_decisions(case: Case, repaired: frozenset[CraneFault] = NOTHING) -> list[Case]:
    """The cycles of the emulator in the form of `original_decision`."""
    analyzer = CraneAnalyzer(policies.for_emulator(case), repaired)
    return [_shown_decision(analyzer.analyze(state)) for state in states(case)]


def _shown_decision(made: CraneDecision) -> Case:
    return {
        "notified": made.notified,
        "disable": made.disable,
        "restore": made.restore,
        "down": made.down,
        "up": made.up,
        "evict": made.evict,
        "down_pods": _ratios(made.down_pods),
        "up_pods": _ratios(made.up_pods),
        "evict_pods": {name_of(key): grace for key, grace in made.evict_pods.items()},
    }


def _ratios(pods: dict[str, CpuThrottle]) -> dict[str, list[int]]:
    return {name_of(key): [each.min_ratio, each.step_ratio] for key, each in pods.items()}


TRIGGERED = ("disable", "down", "evict", "down_pods", "evict_pods")
"""The parts of a decision that triggered rules cause."""


def triggered_part(decision: Case) -> Case:
    return {name: decision[name] for name in TRIGGERED}


class PoliciesRefusedError(Exception):
    """The agent refuses the policies of a case."""


def agent_decisions(case: Case) -> list[Case]:
    """The cycles of the agent, which reads the policies itself. Raises PoliciesRefusedError."""
    objects = [*case["node_qos"], *case["pod_qos"], *case["actions"]]
    texts = {f"{number}.json": json.dumps(each) for number, each in enumerate(objects)}
    read = read_texts(texts, metrics=Metrics())
    wrong = [each for each in read.problems if "unknown" not in str(each)]
    if wrong:
        raise PoliciesRefusedError(f"the agent refuses the policies: {wrong}")
    held, memory, found = read.policies.for_node({}), AnalyzerState(), []
    for state in states(case):
        made = analyze(state, held, memory)
        memory, demand = made.memory, made.demand
        found.append(
            {
                "disable": made.keep_away is True,
                "down": {metric: list(values) for metric, values in demand.down.items()},
                "evict": {metric: list(values) for metric, values in demand.evict.items()},
                "down_pods": _ratios(
                    {f"{cases.NAMESPACE}/{uid}": each.throttle for uid, each in demand.throttled.items()}
                ),
                "evict_pods": {uid: each.grace_seconds for uid, each in demand.evicted.items()},
            }
        )
    return found
