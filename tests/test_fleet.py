"""The benchmark of a fleet: its phases, its goals and its exit code. Times are not tested, because a test machine may
be busy."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet.processes import Latencies
from benchmarks.fleet.result import Phase, Result
from benchmarks.fleet.scrape import Use, parse, use
from tests.real.kube import find_kube_program
from tests.real.parts import REPOSITORY
from tests.test_benchmarks import ALL

AGENTS = 30
PHASES = ["without agents", "start", "steady state", "restart", "rollout of 10 %", "without agents again"]
IDLE = Use(60.0, 30.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1, 3e8)


@pytest.mark.slow
@pytest.mark.real_apiserver
def test_a_small_fleet_reaches_its_goals(tmp_path: Path) -> None:
    """By default, agents need no watch. Each agent is synchronised in each phase, the other client gets no 429, and
    priority and fairness refuses nothing."""
    if os.environ.get(ALL) != "all":
        pytest.skip(f"takes a minute: make bench-quick, or {ALL}=all")
    find_kube_program("kube-apiserver")
    options = ["--agents", AGENTS, "--seconds", 4, "--start", 2, "--outage", 3, "--refresh", 3, "--seed", 7]
    path = tmp_path / "fleet.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fleet", *map(str, options), "--json", path],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=230,
    )
    assert done.returncode in (0, 1), done.stderr  # 2: an abort
    result: dict[str, Any] = json.loads(path.read_text())
    phases = {each["name"]: each for each in result["phases"]}
    assert PHASES == list(phases)
    assert (done.returncode == 0) == all(goal["reached"] for goal in result["goals"])
    assert [AGENTS] * 3 == [phases[name]["synced"] for name in ("start", "restart", "rollout of 10 %")]
    assert all(each["others"]["refused"] == each["use"]["rejected"] == 0 for each in phases.values())
    assert all(each["others"]["requests"] > 0 for each in phases.values())
    assert phases["start"]["use"]["agents"] > 0 == phases["without agents"]["use"]["agents"]
    watches = phases["steady state"]["use"]["watches"] - phases["without agents"]["use"]["watches"]
    assert 3 == watches  # of the service: nodes, pods, NodeMetrics
    for name in PHASES:
        assert f"| {name}" in done.stdout


def result(
    *, beside: float = 1.5, refused: int = 0, requests: float = 30.0, writes: float = 10.0, **restart: Any
) -> Result:
    """A run of 2,000 agents that reached each goal, except the given ones."""

    def phase(name: str, latency: float, **given: Any) -> Phase:
        used = Use(**{**vars(IDLE), "agents": requests, "node_metric_writes": writes})
        return Phase(name, 2000, used, Latencies([latency] * 100, refused, 0), **given)

    found = Result(2000)
    restarted = phase("restart", 1.0, **{"synced": 2000, "converged_s": 40.0, **restart})
    found.phases = [phase("without agents", 1.0), phase("steady state", beside), restarted]
    return found


@pytest.mark.parametrize(
    ("given", "missed"),
    [
        ({}, []),
        ({"beside": 2.1}, [0]),
        ({"refused": 1}, [1]),
        ({"converged_s": 61.0}, [2]),
        ({"synced": 1999}, [2]),
        ({"requests": 210.0}, [3]),
        ({"writes": 20.1}, [4]),
    ],
    ids=str,
)
def test_each_goal_can_be_missed(given: dict[str, Any], missed: list[int]) -> None:
    found = result(**given)
    assert missed == [number for number, goal in enumerate(found.goals()) if not goal.reached]
    assert len(missed) == found.tables().count("**fail**")


def test_metrics_are_differences_of_the_chosen_series() -> None:
    """Requests by flow schema, writes by resource; reads and other metrics are left out."""

    def text(factor: int) -> str:
        return f"""# TYPE apiserver_request_total counter
apiserver_request_total{{code="200",resource="nodemetrics",verb="PATCH"}} {100 * factor}
apiserver_request_total{{code="201",resource="nodemetrics",verb="POST"}} {20 * factor}
apiserver_request_total{{code="200",resource="nodemetrics",verb="LIST"}} {7 * factor}
apiserver_request_total{{code="409",resource="configmaps",verb="PATCH"}} {10 * factor}
apiserver_flowcontrol_dispatched_requests_total{{flow_schema="a",priority_level="a"}} {300 * factor}
apiserver_flowcontrol_dispatched_requests_total{{flow_schema="b",priority_level="b"}} {40 * factor}
apiserver_longrunning_requests{{verb="WATCH",resource="pods"}} 12
apiserver_longrunning_requests{{verb="CONNECT",resource="pods"}} 3
apiserver_request_duration_seconds_bucket{{verb="LIST",le="+Inf"}} 5
process_resident_memory_bytes 3.5e+08
"""

    found = use(parse(text(1), time=100.0), parse(text(2), time=110.0), agents="a", service="b")
    assert (12.0, 1.0, 30.0, 4.0, 12.0, 3.5e8) == (
        found.node_metric_writes,
        found.budget_writes,
        found.agents,
        found.service,
        found.watches,
        found.memory,
    )
