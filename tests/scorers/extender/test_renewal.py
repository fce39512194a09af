"""A reload of the settings: other profiles over the same table take effect at once or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorers.cluster.table import ClusterTable
from scorers.extender.hosting import InProcessLoad
from scorers.extender.service import SchedulingService
from tests.fakes.snapshots import WINDOWS
from tests.scorers.plugins.koordinator.test_service import Service
from tests.scorers.simulated_cluster import NOW, info, load, node, pod, rows
from watcher.core.config.problems import SettingsError
from watcher.model import Window

PACKING = {"name": "TargetLoadPacking", "args": {"targetUtilization": 50}}
LIMITS = {"name": "NodeResourceLimits"}
AWARE = {"name": "LoadAwareScheduling"}
ASKING = info(containers=[{"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}])


@pytest.fixture
def service(tmp_path: Path) -> Service:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("kind: Config")  # no request uses it
    return Service(kubeconfig)


@pytest.fixture
def scheduling(service: Service) -> SchedulingService:
    made = SchedulingService(profiles(a=[PACKING, LIMITS], b=[AWARE]), service, InProcessLoad(service))
    fill(made.table)
    return made


def fill(table: ClusterTable) -> None:
    for name in ("n0", "n1"):
        table.set_node(name, node(name, {"cpu": "4", "memory": "8Gi"}))
    for i in range(3):
        resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": f"{i + 1}"}}
        table.set_pod(None, pod(f"p{i}", node=f"n{i % 2}", containers=[resources], scheduled=NOW - 10), now=NOW)
    table.set_load(load({name: {("CPU", "AVG"): 10.0, ("Memory", "AVG"): 20.0} for name in ("n0", "n1")}), now=NOW)


def profiles(**plugins: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: {"plugins": each} for name, each in plugins.items()}


def scores(of: SchedulingService, profile: str) -> list[float]:
    found: list[float] = of.extender.profiles[profile].rank(ASKING, rows(of.table, "n0", "n1"), now=NOW).values.tolist()
    return found


def answers_after_a_start(service: Service, settings: dict[str, Any], profile: str) -> list[float]:
    """The answers of a service that starts with these settings."""
    made = SchedulingService(settings, service, InProcessLoad(service))
    fill(made.table)
    return scores(made, profile)


@pytest.mark.parametrize(
    "wanted",
    [
        profiles(a=[PACKING, LIMITS], b=[AWARE]),
        profiles(a=[{"name": "TargetLoadPacking", "args": {"targetUtilization": 30}}]),
        profiles(a=[{"name": "LowRiskOverCommitment"}, LIMITS], c=[{"name": "LoadVariationRiskBalancing"}]),
        profiles(a=[{**LIMITS, "args": {"defaultLimits": {"cpu": "allocatable"}}}], b=[AWARE, LIMITS]),
        profiles(b=[{**AWARE, "args": {"scoreAccordingProdUsage": True, "nodeMetricSource": "windowsAndPods"}}]),
    ],
    ids=["the same", "another argument", "other plug-ins", "sums of their own", "other needs"],
)
def test_other_profiles_answer_as_after_a_restart(
    scheduling: SchedulingService, service: Service, wanted: dict[str, Any]
) -> None:
    """Also for pods and nodes that are added later; the old plug-ins receive no events."""
    scheduling.prepare_reload(wanted)()
    assert sorted(wanted) == sorted(scheduling.extender.profiles)
    for name in wanted:
        assert answers_after_a_start(service, wanted, name) == scores(scheduling, name)
    at_start = SchedulingService(wanted, service, InProcessLoad(service)).table
    assert at_start.needs == scheduling.table.needs
    reported = [[type(each).__name__ for each in table.listeners] for table in (at_start, scheduling.table)]
    assert sorted(reported[0]) == sorted(reported[1])


def test_an_unchanged_plug_in_is_reused(scheduling: SchedulingService) -> None:
    """Its sums over all pods are not computed again; a weight is not an argument."""
    before = scheduling.extender.profiles["a"].plugins
    scheduling.prepare_reload(profiles(a=[{**PACKING, "weight": 5}, {**LIMITS, "weight": 3}]))()
    after = scheduling.extender.profiles["a"]
    assert before[1][1] is after.plugins[1][1]
    assert [5, 3] == [each.weight for each, _ in after.scoring]


def test_reservations_remain(scheduling: SchedulingService) -> None:
    """The table is the same object."""
    scheduling.table.reserve(pod("waiting"), "n1", now=NOW, until=NOW + 5)
    scheduling.prepare_reload(profiles(z=[PACKING]))()
    assert {"waiting": "n1"} == scheduling.table.reserved


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (profiles(a=[{"name": "TargetLoadPaking"}]), "did you mean TargetLoadPacking?"),
        (profiles(a=[{"name": "Peaks"}]), "NodePowerModel: is required"),
        (profiles(a=[{**AWARE, "args": {"nodeMetricSource": "cluster"}}]), "restart load-watcher with these settings"),
    ],
)
def test_invalid_settings_change_nothing(
    scheduling: SchedulingService, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, Any], said: str
) -> None:
    """They are refused with all problems."""
    monkeypatch.delenv("NODE_POWER_MODEL", raising=False)
    before, table = dict(scheduling.extender.profiles), list(scheduling.table.listeners)
    with pytest.raises(SettingsError) as refused:
        scheduling.prepare_reload({**wanted, "b": {"plugins": [LIMITS]}})
    assert said in str(refused.value)
    assert before == scheduling.extender.profiles
    assert table == list(scheduling.table.listeners)


def test_other_windows_take_effect(scheduling: SchedulingService, service: Service) -> None:
    """Plug-ins that depend on windows are created again."""
    before = scheduling.extender.profiles["b"].plugins
    service.windows = (*WINDOWS, Window("30m", 1800))
    scheduling.prepare_reload(profiles(b=[AWARE]))()
    assert service.windows == scheduling.table.windows
    assert before[0][1] is not scheduling.extender.profiles["b"].plugins[0][1]


def test_profiles_that_overload_nodes_with_these_requests_are_problems(scheduling: SchedulingService) -> None:
    """By the current requests and profiles: the pods request 1.5 cores and no memory, the nodes use 0.8 cores."""
    report = scheduling.build().problems
    assert report is not None
    said = [(each.text, each.cure) for each in report()]
    requested = "the pods of this cluster request 1.88 times their cpu usage, 0.00 times their memory usage"
    assert [
        (
            "Profile a: TargetLoadPacking with these arguments overloads more nodes than the default scheduler if pods "
            f"request less than about half of their usage; {requested}",
            'Set resources = ["cpu", "memory"] (docs/concepts/simulation.md).',
        ),
        (
            "Profile a: NodeResourceLimits with these arguments overloads more nodes than the default scheduler even "
            f"if pods request enough; {requested}",
            'Use another score plug-in, such as LoadVariationRiskBalancing with formula = "kep" '
            "(docs/concepts/simulation.md).",
        ),
    ] == said
    resources = {"requests": {"memory": "4Gi"}}
    scheduling.table.set_pod(None, pod("large", node="n0", containers=[resources], scheduled=NOW - 10), now=NOW)
    assert [said[1][0].replace("0.00", "1.25")] == [each.text for each in report()]
    scheduling.prepare_reload(profiles(b=[AWARE]))()
    assert [] == report()
    scheduling.prepare_reload(profiles(a=[LIMITS]))()
    scheduling.table.set_load(None, now=NOW)
    assert [] == report()  # the ratios are unknown
