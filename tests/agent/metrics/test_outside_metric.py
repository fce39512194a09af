"""A metric in a separate package: built as by pip, found by its entry point, and used in a plan."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from agent.decision.analysis import AnalyzerState
from agent.decision.analyzer import analyze
from agent.decision.plan_inputs import PlanInputs
from agent.decision.planner import plan
from agent.metrics.options import DecisionOptions
from agent.metrics.trigger_only import triggering
from agent.model import AvoidanceAction, Eviction, PodQos, Policies, Rule
from agent.service.custom_metrics import installed_metrics
from tests.agent.scenes import CPU, pod, state
from tests.outside_packages import on_path, unpacked
from tests.real.parts import REPOSITORY
from watcher.platform.entry_points import ExtensionError

OUTSIDE = REPOSITORY / "tests" / "outside_metric"
MODULE = "load_watcher_running_pods"
NAME = "kubelet_running_pods"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked(OUTSIDE, tmp_path_factory)


@pytest.fixture
def reachable(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return on_path(installed, tmp_path, MODULE, monkeypatch)


def refused() -> tuple[str, str]:
    with pytest.raises(ExtensionError) as raised:
        installed_metrics()
    return str(raised.value), raised.value.hint


def test_a_packaged_metric_is_planned_like_a_built_in_one(reachable: Path):
    """Two pods too many; the pod that is evicted for CPU is one of them."""
    rules = (
        Rule("nq", "pods", NAME, 3.0, "evict"),
        Rule("nq", "cpu", CPU, 4_000.0, "evict"),
    )
    held = Policies(
        rules,
        {"evict": AvoidanceAction("evict", evicts=True)},
        (PodQos("all", frozenset({"evict"}), scopes=()),),
    )
    pods = [
        pod(name, cpu, start_time=float(age)) for age, (name, cpu) in enumerate([("a", 1.5), ("b", 0.1), ("c", 0.1)])
    ]
    seen = state([*pods, pod("d", 0.1, start_time=9.0), pod("e", 3.0, priority=9)], **{CPU: 5_000.0, NAME: 5.0})
    metrics = installed_metrics()
    made = plan(analyze(seen, held, AnalyzerState()), PlanInputs(seen, metrics, DecisionOptions(excess=0.0)))
    gone = [step.pod for step in made.steps if isinstance(step.change, Eviction)]
    assert ["default/a", "default/d"] == gone
    assert {NAME: 0.0} == {stage.metric: stage.gap_after for stage in made.stages if stage.metric == NAME}
    assert {"cpu": 100.0, "pods": 1.0} == next(
        each.released for stage in made.stages for each in stage.candidates if each.pod == "default/d" and each.chosen
    )


def test_the_metric_needs_its_package():
    assert NAME not in installed_metrics()


def test_a_package_that_cannot_be_imported_is_reported(reachable: Path):
    (reachable / f"{MODULE}.py").write_text("import no_such_library")
    message, hint = refused()
    assert f"cannot load the metric {NAME} from the package load-watcher-running-pods: ModuleNotFoundError" in message
    assert "no_such_library" in message
    assert hint.startswith("Check that load-watcher-running-pods supports this version")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def metrics(chains):\n    return 7\n", "must return a tuple of metrics, not int"),
        ("def metrics():\n    return ()\n", "TypeError: metrics() takes 0 positional arguments"),
        (
            "from agent.metrics.action_metric import ActionMetric\ndef metrics(chains):\n"
            "    return (ActionMetric(name='own', evictable=True),)\n",
            "metric own: evictable requires evict",
        ),
        (
            "from agent.metrics.action_metric import ActionMetric\ndef metrics(chains):\n"
            "    return (ActionMetric(name='cpu_total_usage'),)\n",
            "cannot register a metric of the package load-watcher-running-pods: the metric name cpu_total_usage is"
            " already in use",
        ),
    ],
)
def test_an_invalid_metric_is_reported(reachable: Path, source: str, problem: str):
    (reachable / f"{MODULE}.py").write_text(source)
    assert problem in refused()[0]


def test_two_packages_with_the_same_metric_are_reported(reachable: Path):
    """None of them is used silently."""
    (info,) = reachable.glob("*.dist-info")
    other = reachable / "other_pods-2.0.dist-info"
    shutil.copytree(info, other)
    metadata = (other / "METADATA").read_text().replace("load-watcher-running-pods", "other-pods")
    (other / "METADATA").write_text(metadata)
    assert (
        f"several packages provide the metric {NAME}: load-watcher-running-pods, other-pods",
        "Uninstall all but one of them.",
    ) == refused()


def test_user_defined_metrics_are_registered_too():
    own = triggering("queue_length")
    assert own is installed_metrics([own])["queue_length"]
    with pytest.raises(ExtensionError, match="cannot register a metric of the settings"):
        installed_metrics([own, own])


def test_the_page_shows_the_tested_package():
    """The code of the page is the code that is tested."""
    page = (REPOSITORY / "docs" / "learn" / "own-metric.md").read_text()
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert module == (OUTSIDE / f"{MODULE}.py").read_text()
    project = (OUTSIDE / "pyproject.toml").read_text()
    (shown,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [line for line in shown.splitlines() if line not in project.splitlines()] == []
