"""Prometheus metrics of the agent: cycles, rules, gaps, audit entries, and restorable values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric as Family

from agent.decision.plan import RuleVerdict, Stage
from agent.service.loop import Agent, Cycle
from watcher.platform.telemetry.instruments import Timings, counter, gauge

CYCLE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class AgentMetrics:
    """Reports the last cycle at every scrape. `totals` are the audit entries since the file was created, by kind and
    outcome; `held` is the number of values that the agent has to restore."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.totals: Mapping[tuple[str, str], int] = {}
        self.held = 0
        text = "Duration of the agent's cycles in seconds, including the execution of steps."
        self.seconds = Timings("agent_cycle_duration_seconds", text, (), CYCLE_S)

    def collect(self) -> Iterator[Family]:
        """Yield all metrics; called by the Prometheus registry."""
        cycle = self._agent.last
        yield from self.seconds.collect()
        yield from self._life(cycle)
        yield from self._rules(cycle)
        yield from self._deeds(cycle)

    def _life(self, cycle: Cycle) -> Iterator[Family]:
        lost = [({"why": "failed"}, float(self._agent.failures)), ({"why": "skipped"}, float(self._agent.skipped))]
        yield counter("agent_cycles_lost", "Number of cycles that failed or were skipped.", lost)
        yield gauge("agent_cycle_age_seconds", "Seconds since the last successful cycle.", [({}, self._agent.age)])
        stance = cycle.reports[0].level.value if cycle.reports else "none"
        yield gauge("agent_stance", "1 for the current enforcement level.", [({"stance": stance}, 1.0)])
        yield gauge("agent_pods", "Number of known pods on this node.", [({}, float(len(cycle.state.pods)))])
        named = {rule.metric for rule in cycle.policies.rules}
        lost_names = sorted(name for name in cycle.state.missing if name not in cycle.state.absent or name in named)
        missing = [({"metric": name}, 1.0) for name in lost_names]
        yield gauge(
            "agent_metric_missing",
            "1 for a metric of this node, or of a rule, that could not be read (reason: /explain).",
            missing,
        )
        problems = float(len(cycle.in_force.problems))
        yield gauge("agent_policy_problems", "Problems that prevent the use of the newest policies.", [({}, problems)])

    def _rules(self, cycle: Cycle) -> Iterator[Family]:
        findings = cycle.plan.rules if cycle.plan else ()
        by_rule = [({"rule": each.rule, "metric": each.metric}, each) for each in findings]
        samples = [(labels, each.sample) for labels, each in by_rule if each.sample is not None]
        yield gauge("agent_rule_sample", "Last sample of a rule, in the unit of its metric.", samples)
        marks = [(labels, each.watermark) for labels, each in by_rule]
        yield gauge("agent_rule_watermark", "Watermark of a rule, in the unit of its metric.", marks)
        verdicts = [
            ({**labels, "verdict": verdict.value}, float(each.verdict is verdict))
            for labels, each in by_rule
            for verdict in RuleVerdict
        ]
        yield gauge("agent_rule_status", "1 for the current verdict of a rule, 0 for the others.", verdicts)

    def _deeds(self, cycle: Cycle) -> Iterator[Family]:
        stages = cycle.plan.stages if cycle.plan else ()
        text = "Amount to release (restore: that may be given back) before and after the plan, in millicores or bytes."
        yield gauge("agent_gap", text, [*_gaps(stages, "before"), *_gaps(stages, "after")])
        rows = [({"kind": kind, "outcome": outcome}, float(n)) for (kind, outcome), n in sorted(self.totals.items())]
        yield counter("agent_deeds", "Number of actions on pods and the node, by kind and outcome.", rows)
        fates = Counter((each.step.kind, each.fate.value) for report in cycle.reports for each in report.results)
        rows = [({"kind": kind, "fate": fate}, float(n)) for (kind, fate), n in sorted(fates.items())]
        yield gauge("agent_steps", "Number of steps in the last cycle's plan, by kind and result.", rows)
        text = "Number of container quotas, pod weights and memory.high values that the agent has lowered."
        yield gauge("agent_quotas_held", text, [({}, float(self.held))])
        trouble = float(bool(cycle.trouble or any(each.trouble and not each.fault for each in cycle.reports)))
        text = "1 while the audit file cannot be written, so no action is taken."
        yield gauge("agent_audit_trouble", text, [({}, trouble)])


def _gaps(stages: tuple[Stage, ...], when: str) -> list[tuple[dict[str, str], float]]:
    found = []
    for stage in stages:
        gap = stage.gap if when == "before" else stage.gap_after
        if gap is not None:
            found.append(({"kind": stage.kind, "metric": stage.metric, "when": when}, gap))
    return found
