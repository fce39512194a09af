"""Profiles from the settings and from KubeSchedulerConfigurations, and their problems."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scorers.plugin_api.arguments import Arguments, ArgumentsError, read_arguments
from scorers.profiles.missing_forecasts import missing_forecast_notices
from scorers.profiles.profiles import ProfileSettings, read_profiles
from scorers.profiles.registry import PLUGINS, UnknownPlugin, extension_points, factory_of
from watcher.core.forecast.settings import ForecastSettings

CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: trimaran
  plugins:
    score:
      disabled:
      - name: NodeResourcesFit
      enabled:
      - name: TargetLoadPacking
        weight: 3
      - name: LoadVariationRiskBalancing
      - name: NodeAffinity
    filter:
      enabled:
      - name: HighLoadFilter
  pluginConfig:
  - name: TargetLoadPacking
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: TargetLoadPackingArgs
      targetUtilization: 60
      defaultRequests:
        cpu: "500m"
      defaultRequestsMultiplier: "1.8"
      watcherAddress: http://load-watcher:2020
  - name: Peaks
    args: {}
- schedulerName: other
"""


LIMITS = {"name": "NodeResourceLimits"}


def read(tmp_path: Path, scheduler: dict[str, Any]) -> tuple[Any, dict[str, str], tuple[str, ...]]:
    profiles, problems, notices = read_profiles(scheduler, cwd=tmp_path)
    return profiles, {each.key: f"{each.message}. {each.cure}" for each in problems}, notices


@pytest.mark.parametrize("name", PLUGINS)
def test_every_plug_in_of_the_table_exists_under_its_name(name: str) -> None:
    """Each filters or scores."""
    factory = factory_of(name)
    assert factory.name == name
    assert extension_points(factory)


def test_a_profile_of_the_settings_is_read(tmp_path: Path) -> None:
    """With defaults for omitted keys."""
    table = {
        "plugins": [
            {"name": "TargetLoadPacking", "weight": 2, "args": {"targetUtilization": 50}},
            {"name": "HighLoadFilter"},
        ]
    }
    (profile,), problems, notices = read(tmp_path, {"default": table})
    assert not problems
    assert not notices
    assert isinstance(profile, ProfileSettings)
    assert (profile.name, profile.precise_scores, profile.reserve, profile.bind) == (
        "default",
        False,
        "prioritize",
        False,
    )
    assert [(each.name, each.weight, each.points) for each in profile.plugins] == [
        ("TargetLoadPacking", 2, ("score",)),
        ("HighLoadFilter", 1, ("filter",)),
    ]


def test_a_configuration_of_kube_scheduler_is_read(tmp_path: Path) -> None:
    """With its weights and arguments; other plug-ins stay in kube-scheduler, with a notice."""
    (tmp_path / "scheduler.yaml").write_text(CONFIGURATION)
    (profile,), problems, notices = read(tmp_path, {"default": {"from": "scheduler.yaml", "profile": "trimaran"}})
    assert not problems
    assert [(each.name, each.weight, each.points) for each in profile.plugins] == [
        ("HighLoadFilter", 1, ("filter",)),
        ("TargetLoadPacking", 3, ("score",)),
        ("LoadVariationRiskBalancing", 1, ("score",)),
    ]
    assert profile.plugins[1].args["targetUtilization"] == 60
    assert [notice.split(": ", 1)[1][:40] for notice in notices] == [
        "NodeAffinity is not a load-watcher plug-",
        "Peaks has arguments in pluginConfig but ",
        "watcherAddress is ignored: the extender ",
    ]


@pytest.mark.parametrize(
    ("table", "key", "said"),
    [
        ("on", "scheduler.p", "is not a table"),
        ({}, "scheduler.p.plugins", "requires plug-ins"),
        ({"plugins": [{"name": "TargetLoadPaking"}]}, "scheduler.p.plugins[0].name", "did you mean TargetLoadPacking?"),
        ({"plugins": ["TargetLoadPacking"]}, "scheduler.p.plugins[0]", "must be a mapping"),
        ({"plugins": [{"name": "HighLoadFilter", "wait": 1}]}, "scheduler.p.plugins[0].wait", "unknown key"),
        ({"plugins": [{"name": "HighLoadFilter", "args": 1}]}, "scheduler.p.plugins[0].args", "must be a mapping"),
        ({"plugins": [{"name": "HighLoadFilter"}] * 2}, "scheduler.p.plugins", "HighLoadFilter is listed twice"),
        (
            {"plugins": [{"name": "TargetLoadPacking", "args": {"targetUtilisation": 5}}]},
            "scheduler.p.plugins[0].args.targetUtilisation",
            "did you mean targetUtilization?",
        ),
        ({"plugins": [LIMITS], "plugin": 1}, "scheduler.p.plugin", "did you mean plugins?"),
        (
            {"plugins": [{"name": "HighLoadFilter"}], "reserve": "yes"},
            "scheduler.p.reserve",
            "must be prioritize, bind or off",
        ),
        ({"plugins": [{"name": "HighLoadFilter"}], "bind": 1}, "scheduler.p.bind", "must be true or false"),
        ({"plugins": [{"name": "HighLoadFilter"}], "from": "x"}, "scheduler.p", "both plugins and from"),
        ({"from": "nowhere.yaml"}, "scheduler.p.from", "cannot be read"),
        ({"from": "scheduler.yaml"}, "scheduler.p.profile", "trimaran, other"),
        ({"from": "scheduler.yaml", "profile": "x"}, "scheduler.p.profile", "profiles are: trimaran, other"),
        ({"from": "scheduler.yaml", "profile": "other"}, "scheduler.p.from", "no load-watcher plug-in is enabled"),
        ({"from": "list.yaml"}, "scheduler.p.from", "is not a KubeSchedulerConfiguration"),
        ({"from": "broken.yaml"}, "scheduler.p.from", "is not valid YAML"),
    ],
)
def test_a_problem_has_its_key_and_a_remedy(tmp_path: Path, table: Any, key: str, said: str) -> None:
    """One problem each, and no profile."""
    (tmp_path / "scheduler.yaml").write_text(CONFIGURATION)
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("a: [1\n")
    profiles, problems, _ = read(tmp_path, {"p": table})
    assert profiles == ()
    assert list(problems) == [key]
    assert said in problems[key]


@pytest.mark.parametrize(
    ("right", "wrong", "key", "said"),
    [
        ("TargetLoadPacking\n    args", "TargetLoadPackng\n    args", "pluginConfig", "mean TargetLoadPacking?"),
        ("- name: LoadVariation", "- name: LoadVariaton", "plugins.score", "did you mean LoadVariationRiskBalancing?"),
        ("- name: HighLoadFilter", "- name: highloadFilter", "plugins.filter", "did you mean HighLoadFilter?"),
        ("pluginConfig:", "pluginConfigs:", "pluginConfigs", "did you mean pluginConfig?"),
        ("    score:", "    scores:", "plugins.scores", "did you mean score?"),
        ("- name: Peaks", "- name: TargetLoadPacking", "pluginConfig", "TargetLoadPacking is listed twice"),
        ("- name: NodeAffinity", "- name: Peaks", "Peaks.args", "is not a mapping"),
    ],
)
def test_an_invalid_configuration_of_kube_scheduler_is_a_problem(
    tmp_path: Path, right: str, wrong: str, key: str, said: str
) -> None:
    """Errors that kube-scheduler refuses are not ignored here: arguments would be lost, and defaults used."""
    text = CONFIGURATION.replace(right, wrong)
    assert text != CONFIGURATION
    if "mapping" in said:
        text = text.replace("args: {}", "args: [1]")
    (tmp_path / "scheduler.yaml").write_text(text)
    profiles, problems, _ = read(tmp_path, {"p": {"from": "scheduler.yaml", "profile": "trimaran"}})
    assert profiles == ()
    assert list(problems) == [f"scheduler.p.from.{key}"]
    assert said in problems[f"scheduler.p.from.{key}"]


@pytest.mark.parametrize(("bind", "notices"), [(True, 0), (False, 1)])
def test_reserve_at_bind_without_bind_is_a_notice(tmp_path: Path, bind: bool, notices: int) -> None:
    """It is not an error: the watch reports the pods."""
    (profile,), problems, reported = read(tmp_path, {"p": {"plugins": [LIMITS], "reserve": "bind", "bind": bind}})
    assert (profile.reserve, problems, len(reported)) == ("bind", {}, notices)
    assert all("scheduler.p.reserve" in each and "bind = true" in each for each in reported)


def from_configuration(tmp_path: Path, plugins: str, config: str = "[]") -> tuple[dict[str, Any], dict[str, str]]:
    """The points of each plug-in, and problems."""
    head = CONFIGURATION.partition("profiles:")[0]
    text = f"{head}profiles:\n- plugins: {plugins}\n  pluginConfig: {config}\n"
    (tmp_path / "scheduler.yaml").write_text(text)
    profiles, problems, _ = read(tmp_path, {"p": {"from": "scheduler.yaml"}})
    return {each.name: each.points for profile in profiles for each in profile.plugins}, problems


@pytest.mark.parametrize(
    ("sets", "points"),
    [
        ("", {"LoadAwareScheduling": ("filter", "score")}),
        (", filter: {disabled: [{name: LoadAwareScheduling}]}", {"LoadAwareScheduling": ("score",)}),
        (", score: {disabled: [{name: '*'}]}", {"LoadAwareScheduling": ("filter",)}),
        (", filter: {disabled: [{name: NodeAffinity}]}", {"LoadAwareScheduling": ("filter", "score")}),
        (
            ", score: {disabled: [{name: '*'}], enabled: [{name: LoadAwareScheduling}]}",
            {"LoadAwareScheduling": ("filter", "score")},
        ),
    ],
)
def test_a_plug_in_that_is_disabled_at_a_point_is_not_used_there(
    tmp_path: Path, sets: str, points: dict[str, Any]
) -> None:
    """As in kube-scheduler: multiPoint enables a plug-in at all points except where it is disabled."""
    plugins = f"{{multiPoint: {{enabled: [{{name: LoadAwareScheduling}}]}}{sets}}}"
    assert from_configuration(tmp_path, plugins) == (points, {})


def test_a_plug_in_without_effect_is_a_problem(tmp_path: Path) -> None:
    """kube-scheduler does not start with one."""
    plugins = "{filter: {enabled: [{name: TargetLoadPacking}]}, score: {enabled: [{name: Peaks}]}}"
    _, problems = from_configuration(tmp_path, plugins, "[{name: Peaks, args: {NodePowerModel: {}}}]")
    assert list(problems) == ["scheduler.p.from.TargetLoadPacking"]
    assert "is enabled at filter, which it does not implement. enable it under plugins.score" in problems.popitem()[1]


def test_arguments_of_another_plug_in_are_a_problem(tmp_path: Path) -> None:
    """Arguments under the wrong name; null counts as not given."""
    config = "[{name: TargetLoadPacking, args: {kind: PeaksArgs, defaultRequests: null}}]"
    _, problems = from_configuration(tmp_path, "{score: {enabled: [{name: TargetLoadPacking}]}}", config)
    assert list(problems) == ["scheduler.p.from.TargetLoadPacking.args.kind"]
    assert "'PeaksArgs' belongs to another plug-in; use TargetLoadPackingArgs" in problems.popitem()[1]


def test_all_problems_of_arguments_are_reported_at_once() -> None:
    """With the entry of a map and the possible values, and without problems of arguments that are not given."""
    args = {
        "targetUtilisation": 50,
        "podDemand": "most",
        "defaultRequests": {"cpu": "1x", "memory": [1]},
        "defaultRequestsMultiplier": "much",
    }
    with pytest.raises(ArgumentsError) as raised:
        read_arguments("TargetLoadPacking", factory_of("TargetLoadPacking").arguments, args)
    assert raised.value.problems == (
        "targetUtilisation: unknown argument; did you mean targetUtilization?",
        "podDemand: must be upstream, effective, requests or limits (given: 'most')",
        'defaultRequests.memory: must be a quantity ("4500m", "3Gi", 80) (given: [1])',
        "defaultRequestsMultiplier: must be a number like \"1.5\", 0 to 1000 (given: 'much')",
    )
    aggregated = {"aggregated": {"usageAggregationType": "p42"}}
    with pytest.raises(ArgumentsError, match=r"usageAggregationType: must be avg, p50, p90, p95 or p99 .*'p42'"):
        read_arguments("LoadAwareScheduling", factory_of("LoadAwareScheduling").arguments, aggregated)


class NeedyArgs(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    must_have: int


def test_a_missing_argument_without_a_default_is_a_problem() -> None:
    """Plug-ins of other packages may have such arguments."""
    with pytest.raises(ArgumentsError, match="arguments of Needy: mustHave: is required"):
        read_arguments("Needy", NeedyArgs, {})
    with pytest.raises(ArgumentsError, match="mustHave: must be a whole number"):
        read_arguments("Needy", NeedyArgs, {"mustHave": "x"})
    assert read_arguments("Needy", NeedyArgs, {"mustHave": 1})[0].must_have == 1


@pytest.mark.parametrize("weight", [0, -1, 1.5, "2", True, 10**9])
def test_weights_are_whole_numbers_above_zero(tmp_path: Path, weight: Any) -> None:
    """A weight of zero would silently disable a plug-in."""
    _, problems, _ = read(tmp_path, {"p": {"plugins": [{"name": "HighLoadFilter", "weight": weight}]}})
    assert list(problems) == ["scheduler.p.plugins[0].weight"]


def test_problems_of_a_weight_and_an_argument_are_reported_at_once(tmp_path: Path) -> None:
    wrong = {"name": "TargetLoadPacking", "weight": 0, "args": {"targetUtilisation": 40}}
    _, problems, _ = read(tmp_path, {"p": {"plugins": [wrong]}})
    assert set(problems) == {"scheduler.p.plugins[0].weight", "scheduler.p.plugins[0].args.targetUtilisation"}


def test_an_unknown_plug_in_lists_the_known_ones() -> None:
    with pytest.raises(UnknownPlugin, match="installed plug-ins: HighLoadFilter, LoadAwareScheduling"):
        factory_of("x")


# --- forecasts -------------------------------------------------------------------------------------------------------


def ahead(horizon: str) -> dict[str, Any]:
    return {"plugins": [{"name": "HighLoadFilter", "args": {"use": "forecast", "horizon": horizon}}]}


def test_profiles_with_different_horizons_are_a_problem(tmp_path: Path) -> None:
    """A copy of the load has the forecasts of one horizon."""
    assert read_profiles({"one": ahead("6h"), "two": ahead("6h")}, cwd=tmp_path)[1] == ()
    (problem,) = read_profiles({"one": ahead("6h"), "two": ahead("1h")}, cwd=tmp_path)[1]
    assert ("scheduler.two", "HighLoadFilter uses forecasts over 1h, and another plug-in over 6h") == (
        problem.key,
        problem.message,
    )


@pytest.mark.parametrize(
    ("forecast", "notice"),
    [
        (ForecastSettings(), None),
        (ForecastSettings(enabled=False), "needs forecasts, which are disabled, so it uses windows; set forecast.enab"),
        (ForecastSettings(horizons=(1,)), 'has 1h, so it uses windows; add "6h" to forecast.horizons'),
    ],
)
def test_forecasts_that_the_settings_do_not_provide_are_a_problem(
    tmp_path: Path, forecast: ForecastSettings, notice: str | None
) -> None:
    (profile,) = read_profiles({"one": ahead("6h")}, cwd=tmp_path)[0]
    found = missing_forecast_notices(profile, forecast)
    assert [True] * (notice is not None) == [str(notice) in each for each in found], found
