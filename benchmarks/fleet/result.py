"""The result of the benchmark: one row per phase, the goals, and the same as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fleet.processes import Latencies
from benchmarks.fleet.scrape import Use
from benchmarks.report import Table, amount

SLOWER = 2.0
REQUESTS_PER_AGENT = 0.1
WRITES = 20.0
SYNCED_S = 60.0


@dataclass(frozen=True)
class Phase:
    """What a phase cost. `converged_s` is the time until all agents (`synced`) were synchronised, None where nothing
    had to converge."""

    name: str
    agents: int
    use: Use
    others: Latencies
    synced: int = 0
    converged_s: float | None = None
    service_s: float | None = None
    """The time until the service had a node that was created after a restart."""


@dataclass(frozen=True)
class Goal:
    """A goal, what was measured, and whether it was reached."""

    text: str
    measured: str
    reached: bool


@dataclass
class Result:
    """The phases in order; those named "without agents" are the baseline."""

    agents: int
    phases: list[Phase] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def phase(self, name: str) -> Phase:
        """The phase of this name."""
        return next(each for each in self.phases if each.name == name)

    @property
    def baseline(self) -> Latencies:
        """The other client's requests while there were no agents."""
        found = Latencies((), 0, 0)
        for each in self.phases:
            if each.name.startswith("without agents"):
                found = found + each.others
        return found

    def goals(self) -> Sequence[Goal]:
        """The goals of a fleet."""
        steady, restart = self.phase("steady state"), self.phase("restart")
        alone, beside = self.baseline.quantile(0.99), steady.others.quantile(0.99)
        ratio = None if not alone or beside is None else beside / alone
        refused = sum(each.others.refused for each in self.phases)
        per_agent = steady.use.agents / max(1, self.agents)
        writes = steady.use.node_metric_writes + steady.use.budget_writes
        late = restart.converged_s is None or restart.converged_s > SYNCED_S or restart.synced < self.agents
        return [
            Goal(
                f"p99 LIST latency of another client at most {SLOWER:g} times that without agents",
                f"{amount(beside, 'ms')} against {amount(alone, 'ms')}: {amount(ratio)} times",
                ratio is not None and ratio <= SLOWER,
            ),
            Goal("no 429 for another client", str(refused), refused == 0),
            Goal(
                f"every agent synchronised {SYNCED_S:g} s after a restart of the API server",
                f"{restart.synced} of {self.agents} after {amount(restart.converged_s, 's')}",
                not late,
            ),
            Goal(
                f"at most {REQUESTS_PER_AGENT:g} requests/s per agent in steady state",
                f"{per_agent:.3f}",
                per_agent <= REQUESTS_PER_AGENT,
            ),
            Goal(f"at most {WRITES:g} NodeMetric or budget writes/s", amount(writes), writes <= WRITES),
        ]

    def tables(self) -> str:
        """The tables as Markdown."""
        cost = Table(
            f"{self.agents:,} agents and one service: load of the API server",
            [
                "phase",
                "agents",
                "watches",
                "agents/s",
                "service/s",
                "writes/s",
                "from etcd/s",
                "from cache/s",
                "CPU",
                "RSS",
            ],
        )
        others = Table(
            "LISTs of another client", ["phase", "requests", "p50", "p99", "429", "failed", "converged after", "synced"]
        )
        for each in self.phases:
            use = each.use
            cost.add(
                each.name,
                f"{each.agents:,}",
                amount(use.watches),
                amount(use.agents),
                amount(use.service),
                amount(use.node_metric_writes + use.budget_writes),
                amount(use.from_etcd),
                amount(use.from_cache),
                f"{100 * use.cpu:.0f} %",
                f"{use.memory / 2**20:.0f} MiB",
            )
            others.add(
                each.name,
                f"{len(each.others.seconds):,}",
                amount(each.others.quantile(0.5), "ms"),
                amount(each.others.quantile(0.99), "ms"),
                str(each.others.refused),
                str(each.others.failed),
                "–" if each.converged_s is None else amount(each.converged_s, "s"),
                "–" if each.converged_s is None else f"{each.synced:,}",
            )
        cost.notes.append(
            "agents/s and service/s: requests by FlowSchema; writes/s: NodeMetrics and the eviction budget; from "
            "etcd/s and from cache/s: objects read for lists, those of the other client included; CPU: of one core."
        )
        others.notes += self.notes
        goals = Table("Goals", ["goal", "measured", "verdict"])
        for goal in self.goals():
            goals.add(goal.text, goal.measured, "pass" if goal.reached else "**fail**")
        return "\n".join(table.markdown() for table in (cost, others, goals))

    def document(self) -> dict[str, Any]:
        """The result as JSON; latencies as quantiles in ms."""

        def phase(each: Phase) -> dict[str, Any]:
            others = {f"p{100 * share:g}_ms": each.others.quantile(share) for share in (0.5, 0.9, 0.99)}
            counts = {
                "requests": len(each.others.seconds),
                "refused": each.others.refused,
                "failed": each.others.failed,
            }
            return {**dataclasses.asdict(dataclasses.replace(each, others=None)), "others": {**counts, **others}}  # type: ignore[arg-type]

        goals = [dataclasses.asdict(each) for each in self.goals()]
        return {"agents": self.agents, "phases": [phase(each) for each in self.phases], "goals": goals}
