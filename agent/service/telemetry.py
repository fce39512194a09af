"""The agent's metrics: what its rules see, what it does, what it holds, and how it fares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric as Family

from agent.decision.plan import Stage, Verdict
from agent.service.loop import Cycle
from watcher.platform.telemetry.instruments import Timings, counter, gauge

CYCLE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Running(Protocol):
    """The agent, as far as it is measured."""

    last: Cycle
    failures: int
    skipped: int

    @property
    def age(self) -> float: ...


class AgentMetrics:
    """Told at every scrape, from the last cycle. `totals()` are the deeds since the file was made, by kind and
    outcome; `held()` is how many containers have a quota that is not their own."""

    def __init__(self, agent: Running) -> None:
        self._agent = agent
        self.totals: Mapping[tuple[str, str], int] = {}
        self.held = 0
        text = "How long the agent's cycles took, acting included."
        self.seconds = Timings("agent_cycle_duration_seconds", text, (), CYCLE_S)

    def collect(self) -> Iterator[Family]:
        """Called by the registry."""
        cycle = self._agent.last
        yield from self.seconds.collect()
        yield from self._life(cycle)
        yield from self._rules(cycle)
        yield from self._deeds(cycle)

    def _life(self, cycle: Cycle) -> Iterator[Family]:
        lost = [({"why": "failed"}, float(self._agent.failures)), ({"why": "skipped"}, float(self._agent.skipped))]
        yield counter("agent_cycles_lost", "Cycles that failed, and that were skipped.", lost)
        yield gauge("agent_cycle_age_seconds", "Since a cycle ended well.", [({}, self._agent.age)])
        stance = cycle.reports[0].stance.value if cycle.reports else "none"
        yield gauge("agent_stance", "1 for how much the agent may do at the moment.", [({"stance": stance}, 1.0)])
        yield gauge("agent_pods", "Pods of this node that are known.", [({}, float(len(cycle.state.pods)))])
        missing = [({"metric": name}, 1.0) for name in sorted(cycle.state.missing)]
        yield gauge("agent_metric_missing", "1 for a metric that could not be read; /explain says why.", missing)
        problems = float(len(cycle.in_force.problems))
        yield gauge("agent_policy_problems", "Problems that keep the newest policies out of force.", [({}, problems)])

    def _rules(self, cycle: Cycle) -> Iterator[Family]:
        findings = cycle.plan.rules if cycle.plan else ()
        by_rule = [({"rule": each.rule, "metric": each.metric}, each) for each in findings]
        samples = [(labels, each.sample) for labels, each in by_rule if each.sample is not None]
        yield gauge("agent_rule_sample", "What a rule saw, in the unit of its metric.", samples)
        marks = [(labels, each.watermark) for labels, each in by_rule]
        yield gauge("agent_rule_watermark", "What a rule compares it with.", marks)
        verdicts = [
            ({**labels, "verdict": verdict.value}, float(each.verdict is verdict))
            for labels, each in by_rule
            for verdict in Verdict
        ]
        yield gauge("agent_rule_status", "1 for what a rule says now.", verdicts)

    def _deeds(self, cycle: Cycle) -> Iterator[Family]:
        stages = cycle.plan.stages if cycle.plan else ()
        text = "What was still to be released (restoring: what might come back), in millicores or bytes."
        yield gauge("agent_gap", text, [*_gaps(stages, "before"), *_gaps(stages, "after")])
        rows = [({"kind": kind, "outcome": outcome}, float(n)) for (kind, outcome), n in sorted(self.totals.items())]
        yield counter("agent_deeds", "What was done to pods and to the node, and what became of it.", rows)
        fates = Counter((each.step.kind, each.fate.value) for report in cycle.reports for each in report.results)
        rows = [({"kind": kind, "fate": fate}, float(n)) for (kind, fate), n in sorted(fates.items())]
        yield gauge("agent_steps", "Steps of the last cycle's plan, by what became of them.", rows)
        text = "Quotas of containers, and weights and memory.high of pods, that are the agent's."
        yield gauge("agent_quotas_held", text, [({}, float(self.held))])
        trouble = float(bool(cycle.trouble or any(each.trouble and not each.fault for each in cycle.reports)))
        text = "1 while the audit cannot be written, and so nothing is done."
        yield gauge("agent_audit_trouble", text, [({}, trouble)])


def _gaps(stages: tuple[Stage, ...], when: str) -> list[tuple[dict[str, str], float]]:
    found = []
    for stage in stages:
        gap = stage.gap if when == "before" else stage.gap_after
        if gap is not None:
            found.append(({"kind": stage.kind, "metric": stage.metric, "when": when}, gap))
    return found
