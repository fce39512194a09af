"""Policies by name, and errors for invalid names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.simulate.engine import SimulationOptions, simulate
from lab.simulate.policies import PolicyError, check_unique_names, find_policy
from scorers.cluster.table import ClusterTable
from tests.lab.simulate.small import course, load, node, placed, pod, run
from watcher.core.config.problems import SettingsError

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


def test_the_least_or_the_most_allocated_node_is_chosen():
    of = course(node("a"), node("b"), pod("x", 2.0), *(pod(f"p{i}", 0.5, at=60.0) for i in range(3)))
    spread, packed = placed(of, run(of, "LeastAllocated")), placed(of, run(of, "MostAllocated"))
    assert spread["p0"] != spread["x"]
    assert {packed["x"]} == {packed[f"p{i}"] for i in range(3)}


def test_balanced_allocation_evens_cpu_and_memory():
    of = course(node("a", 8.0, gib=8), node("b", 8.0, gib=64), pod("x", 1.0, gib=8))
    assert {"x": "b"} == placed(of, run(of, "BalancedAllocation"))


def test_random_uses_all_nodes_and_depends_on_the_seed():
    """Also the loaded node, which each policy by load or by requests avoids."""
    of = course(*(node(f"n{i}") for i in range(4)), load("n0", 7.0), *(pod(f"p{i}", 0.1, at=300.0) for i in range(60)))
    first = placed(of, run(of, "Random"))
    counts = [list(first.values()).count(f"n{i}") for i in range(4)]
    assert 60 == sum(counts)
    assert min(counts) >= 6
    assert first == placed(of, run(of, "Random"))
    assert first != placed(of, run(of, "Random", seed=2))


def test_of_two_nodes_the_less_loaded_one_is_chosen():
    """With two nodes, both are always drawn; memory counts as well as CPU."""
    pods = [pod(f"p{i}", 0.1, at=300.0) for i in range(20)]
    by_cpu = course(node("a"), node("b"), load("a", 2.0), load("b", 1.0), *pods)
    assert {"b"} == set(placed(by_cpu, run(by_cpu, "PowerOfTwoChoices")).values())
    by_memory = course(node("a"), node("b"), load("a", 0.5, gib=1), load("b", 0.0, gib=20), *pods)
    assert {"a"} == set(placed(by_memory, run(by_memory, "PowerOfTwoChoices")).values())


def test_of_three_nodes_the_most_loaded_one_is_never_chosen():
    """Of any two nodes the less loaded one: the middle one if the idle one is not drawn."""
    pods = [pod(f"p{i}", 0.01, at=300.0, gib=0) for i in range(90)]
    of = course(*(node(f"n{i}") for i in range(3)), load("n0", 6.0), load("n1", 3.0), load("n2", 0.0), *pods)
    where = list(placed(of, run(of, "PowerOfTwoChoices")).values())
    assert 0 == where.count("n0")
    assert 15 <= where.count("n1") <= 45
    assert 90 == where.count("n1") + where.count("n2")


def test_two_choices_without_measurements_are_random():
    pods = [pod(f"p{i}", 0.1) for i in range(40)]
    of = course(*(node(f"n{i}") for i in range(4)), load("n0", 7.0), *pods)
    assert {f"n{i}" for i in range(4)} == set(placed(of, run(of, "PowerOfTwoChoices")).values())


def test_two_choices_with_a_single_node():
    of = course(node("a"), pod("x"), pod("y", at=300.0))
    assert {"x": "a", "y": "a"} == placed(of, run(of, "PowerOfTwoChoices"))


def test_a_profile_of_the_settings_is_a_policy():
    table = {"plugins": [{"name": "TargetLoadPacking", "args": {"targetUtilization": 70}}]}
    policy, _ = find("mine", {"mine": table})
    assert "mine" == policy.name
    assert not policy.settings.precise_scores
    assert 70 == policy.settings.plugins[0].args["targetUtilization"]


def test_the_suffix_forecast_keeps_the_other_arguments_and_plugins():
    plugins = [{"name": "HighLoadFilter", "args": {"failOpen": False}}, {"name": "TargetLoadPacking"}]
    policy, _ = find("mine:forecast", {"mine": {"plugins": plugins}})
    assert "mine:forecast" == policy.name
    assert [{"failOpen": False, "use": "forecast"}, {}] == [each.args for each in policy.settings.plugins]
    table = ClusterTable()
    policy.bind(table, seed=1)
    assert table.needs.horizon == "6h"


def test_a_kube_scheduler_configuration_is_a_policy(tmp_path: Path):
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
        ("LowRiskOverCommitment:forecast", "LowRiskOverCommitment cannot use forecasts", "LoadAwareScheduling"),
    ],
)
def test_an_unknown_name_is_an_error_with_a_hint(name: str, what: str, hint: str):
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
def test_a_profile_with_problems_is_an_error(name: str, table: dict[str, Any] | None, what: str):
    with pytest.raises(SettingsError, match=what):
        find(name, {} if table is None else {name: table})


def test_a_policy_that_needs_data_that_the_trace_lacks_is_an_error():
    args = {"nodeMetricSource": "cluster"}
    policy, _ = find("mine", {"mine": {"plugins": [{"name": "LoadAwareScheduling", "args": args}]}})
    with pytest.raises(PolicyError, match="cannot be simulated"):
        policy.bind(ClusterTable(), seed=1)


def test_two_policies_with_one_name_are_an_error():
    policy, _ = find("LeastAllocated")
    with pytest.raises(PolicyError, match="is given twice"):
        check_unique_names([policy, policy])


OUTSIDE = """
import numpy as np
from scorers.plugin_api.arguments import Arguments
from scorers.plugin_api.framework import Verdicts

class OnlyWeb:
    name = "OnlyWeb"
    arguments = Arguments

    def __init__(self, arguments, table, *, profile):
        pass

    def filter(self, pod, table, rows, *, now):
        owners = [owner.name for owner in pod.pod.metadata.owner_references]
        return Verdicts(np.full(len(rows), int(owners != ["web"])), ("", "not of web"))
"""


def test_a_third_party_filter_is_called_for_each_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pods of another owner that are otherwise equal are tried after it refused one."""
    (tmp_path / "only_web.py").write_text(OUTSIDE)
    information = tmp_path / "only_web-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: only-web\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[load_watcher.scorers]\nOnlyWeb = only_web:OnlyWeb\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    policy, _ = find("mine", {"mine": {"plugins": [{"name": "OnlyWeb"}]}})
    of = course(node("a"), pod("x", owner="Deployment/api"), pod("y", owner="Deployment/web"))
    assert {"y": "a"} == placed(of, simulate(of, policy, SimulationOptions()))
