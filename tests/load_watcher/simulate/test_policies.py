"""Who decides, by name; and what is said of names that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from load_watcher.simulate.policies import PolicyError, check_unique_names, find_policy
from scorers.cluster.table import ClusterTable
from tests.load_watcher.simulate.small import course, node, placed, pod, run
from watcher.platform.settings.problems import SettingsError

CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: trimaran
  plugins:
    score:
      enabled: [{name: TargetLoadPacking}, {name: NodeResourcesFit}]
  pluginConfig:
  - name: TargetLoadPacking
    args: {targetUtilization: 60, watcherAddress: "http://x"}
"""


def find(name: str, scheduler: dict[str, Any] | None = None, *, cwd: Path = Path()) -> Any:
    return find_policy(name, scheduler or {}, cwd=cwd)


def test_least_and_most_allocated():
    of = course(node("a"), node("b"), pod("x", 2.0), *(pod(f"p{i}", 0.5, at=60.0) for i in range(3)))
    spread, packed = placed(of, run(of, "LeastAllocated")), placed(of, run(of, "MostAllocated"))
    assert spread["p0"] != spread["x"]
    assert {packed["x"]} == {packed[f"p{i}"] for i in range(3)}


def test_balanced_allocation_evens_cpu_and_memory():
    of = course(node("a", 8.0, gib=8), node("b", 8.0, gib=64), pod("x", 1.0, gib=8))
    assert {"x": "b"} == placed(of, run(of, "BalancedAllocation"))


def test_a_profile_of_the_settings():
    table = {"plugins": [{"name": "TargetLoadPacking", "args": {"targetUtilization": 70}}]}
    policy, _ = find("mine", {"mine": table})
    assert "mine" == policy.name
    assert not policy.settings.precise_scores
    assert 70 == policy.settings.plugins[0].args["targetUtilization"]


def test_the_suffix_forecast_keeps_the_other_arguments_and_plugins():
    plugins = [{"name": "TargetLoadPacking", "args": {"targetUtilization": 70}}, {"name": "LowRiskOverCommitment"}]
    policy, _ = find("mine:forecast", {"mine": {"plugins": plugins}})
    assert "mine:forecast" == policy.name
    assert [{"targetUtilization": 70, "use": "forecast"}, {}] == [each.args for each in policy.settings.plugins]
    table = ClusterTable()
    policy.bind(table)
    assert table.needs.horizon == "6h"


def test_a_kube_scheduler_configuration(tmp_path: Path):
    (tmp_path / "scheduler.yaml").write_text(CONFIGURATION)
    policy, notices = find("scheduler.yaml:trimaran", cwd=tmp_path)
    assert "trimaran" == policy.name
    assert policy.settings.precise_scores
    assert any("NodeResourcesFit" in notice for notice in notices)
    assert "scheduler" == find("scheduler.yaml", cwd=tmp_path)[0].name


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("TargetLoadPackin", "unknown policy TargetLoadPackin", "did you mean TargetLoadPacking?"),
        ("leastallocated", "unknown policy leastallocated", "did you mean LeastAllocated?"),
        ("xyz", "known: LeastAllocated", "FILE.yaml:PROFILE"),
        ("LeastAllocated:forecast", "LeastAllocated cannot use forecasts", "omit :forecast"),
        ("LowRiskOverCommitment:forecast", "LowRiskOverCommitment cannot use forecasts", "TargetLoadPacking"),
    ],
)
def test_a_name_that_is_none(name: str, what: str, hint: str):
    with pytest.raises(PolicyError, match=what) as raised:
        find(name)
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("name", "table", "what"),
    [
        ("mine", {"plugins": [{"name": "TargetLoadPackin"}]}, "unknown plug-in TargetLoadPackin"),
        ("none.yaml", None, "cannot be read"),
        ("Peaks", None, "NodePowerModel"),
    ],
)
def test_a_profile_with_problems(name: str, table: dict[str, Any] | None, what: str):
    with pytest.raises(SettingsError, match=what):
        find(name, {} if table is None else {name: table})


def test_what_a_trace_does_not_have_is_refused():
    args = {"nodeMetricSource": "cluster"}
    policy, _ = find("mine", {"mine": {"plugins": [{"name": "LoadAwareScheduling", "args": args}]}})
    with pytest.raises(PolicyError, match="cannot be simulated"):
        policy.bind(ClusterTable())


def test_two_of_one_name():
    policy, _ = find("LeastAllocated")
    with pytest.raises(PolicyError, match="is given twice"):
        check_unique_names([policy, policy])
