"""Mistakes in pasted configurations of kube-scheduler, each with its remedy."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from load_watcher.doctor.scheduler.configuration import check_configuration
from load_watcher.doctor.scheduler.plugin_arguments import address_problems
from tests.doctor import doctor
from watcher.platform.checks.results import CheckResult, CheckStatus

GOOD = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
profiles:
- schedulerName: trimaran
  plugins:
    score:
      disabled: [{name: NodeResourcesFit}, {name: NodeResourcesBalancedAllocation}]
      enabled: [{name: TargetLoadPacking}]
  pluginConfig:
  - name: TargetLoadPacking
    args:
      targetUtilization: 60
      defaultRequests: {cpu: "1000m"}
      defaultRequestsMultiplier: "1.8"
      watcherAddress: http://load-watcher.load-watcher.svc.cluster.local:2020
"""
ARGS = ("profiles", 0, "pluginConfig", 0, "args")
POINTS = ("profiles", 0, "plugins")
SCORE = (*POINTS, "score")
GONE = object()


def reported(document: Any) -> list[CheckResult]:
    return list(check_configuration(document if isinstance(document, str) else yaml.safe_dump(document)))


def changed(*path: Any, to: Any) -> Any:
    """The valid configuration with one value changed or removed."""
    document: Any = copy.deepcopy(yaml.safe_load(GOOD))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    if to is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return document


def test_a_valid_configuration_has_no_problems():
    """As a file, in a ConfigMap, as JSON (which is YAML), and with third-party plug-ins."""
    assert [] == reported(GOOD)
    assert [] == reported({"kind": "ConfigMap", "apiVersion": "v1", "data": {"scheduler-config.yaml": GOOD}})
    others = [{"name": "TargetLoadPacking"}, {"name": "NodeResourceLimits"}, {"name": "AcmeScore"}]
    assert [] == reported(changed(*SCORE, "enabled", to=others))
    assert [] == reported(changed(*SCORE, "disabled", to=[{"name": "*"}]))
    everywhere = {"multiPoint": {"enabled": [{"name": "TargetLoadPacking"}], "disabled": [{"name": "*"}]}}
    assert [] == reported(changed("profiles", 0, "plugins", to=everywhere))


@pytest.mark.parametrize(
    ("path", "to", "status", "words"),
    [
        (("profiles",), GONE, "fail", ("no list of profiles",)),
        (("leaderElection",), GONE, "warn", ("wait for it forever", "leaderElect: false")),
        ((*SCORE, "enabled"), [], "fail", ("no profile enables a plug-in", "TargetLoadPacking}")),
        (
            (*SCORE, "disabled"),
            GONE,
            "fail",
            ("NodeResourcesFit and NodeResourcesBalancedAllocation",),
        ),
        (
            (*SCORE, "disabled"),
            [{"name": "NodeResourcesFit"}],
            "fail",
            ("add [{name: NodeResourcesBalancedAllocation}]",),
        ),
        (
            ("profiles", 0, "plugins", "filter"),
            {"disabled": [{"name": "NodeResourcesFit"}]},
            "fail",
            ("also disabled as a filter",),
        ),
        (
            (*SCORE, "enabled"),
            [{"name": "TargetLoadPacking"}, {"name": "LoadVariationRiskBalancing"}],
            "warn",
            ("are enabled together",),
        ),
        ((*ARGS, "watcherAddress"), "load-watcher:2020", "fail", ('"load-watcher:2020" is not an http://',)),
        ((*ARGS, "watcherAddress"), "http://load-watcher", "fail", ("no port", ":2020")),
        (
            (*ARGS, "watcherAddress"),
            "http://load-watcher:2020/watcher",
            "fail",
            ("remove /watcher",),
        ),
        ((*ARGS, "watcherAddress"), GONE, "fail", ("watcherAddress is not set", "and not load-watcher")),
        ((*ARGS, "targetUtilisation"), 50, "fail", ("did you mean targetUtilization?",)),
        ((*ARGS, "targetUtilization"), 140, "fail", ("targetUtilization: must be", "docs/concepts/scheduling.md")),
        ((*ARGS, "metricProvider"), {"type": "Prometheus"}, "warn", ("since watcherAddress is set",)),
    ],
)
def test_each_problem_is_reported_with_its_remedy(path, to, status, words):
    """Other results may follow from it."""
    found = reported(changed(*path, to=to))
    texts = [f"{each.what} fix: {each.cure}" for each in found if each.status == status]
    assert any(all(word.casefold() in text.casefold() for word in words) for text in texts), found
    assert all(each.cure for each in found)


def test_plugins_of_the_kep_that_do_not_exist_any_more_are_reported():
    """Disabling the names of the KEP has no effect today, so the two plug-ins that score by requests still do."""
    found = reported(changed(*SCORE, "disabled", to=[{"name": "NodeResourcesLeastAllocated"}]))
    assert ["fail"] == [each.status for each in found]
    assert "NodeResourcesFit" in found[0].cure


def test_disabling_all_plugins_at_score_includes_those_of_multipoint():
    """kube-scheduler leaves them out of this extension point."""
    plugins = {"multiPoint": {"enabled": [{"name": "TargetLoadPacking"}]}, "score": {"disabled": [{"name": "*"}]}}
    found = reported(changed("profiles", 0, "plugins", to=plugins))
    assert any("no profile enables a plug-in that scores by load" in each.what for each in found)


@pytest.mark.parametrize(
    ("extenders", "missing"),
    [
        ([{"urlPrefix": "http://a/scheduler/default", "prioritizeVerb": "prioritize"}], False),
        ([{"urlPrefix": "http://a/scheduler/default", "filterVerb": "filter"}], True),
        ([{"urlPrefix": "http://a/other", "prioritizeVerb": "prioritize"}], True),
        (["odd"], True),
        ("odd", True),
    ],
    ids=str,
)
def test_the_extender_counts_as_a_plugin_that_scores_by_load(extenders: object, missing: bool):
    """Unless it only filters."""
    found = reported({**changed("profiles", 0, "plugins", to={}), "extenders": extenders})
    assert missing == any("no profile enables a plug-in that scores by load" in each.what for each in found)


def test_arguments_of_a_plugin_that_is_not_enabled_are_reported():
    """They have no effect."""
    found = reported(changed(*SCORE, "enabled", to=[{"name": "LoadVariationRiskBalancing"}]))
    texts = " ".join(each.what for each in found)
    assert "the arguments of TargetLoadPacking have no effect: it is not enabled" in texts
    assert "LoadVariationRiskBalancing: watcherAddress is not set" in texts


def test_low_risk_over_commitment_needs_pre_score_and_weights_as_shares():
    """Both are reported for this plug-in only."""
    document = changed(*SCORE, "enabled", to=[{"name": "LowRiskOverCommitment"}])
    args = {"watcherAddress": "http://a:2020", "riskLimitWeights": {"cpu": 50}}
    document["profiles"][0]["pluginConfig"] = [{"name": "LowRiskOverCommitment", "args": args}]
    found = {each.status: each.what for each in reported(document)}
    assert "preScore" in found[CheckStatus.WARN]
    assert "riskLimitWeights" in found[CheckStatus.FAIL]
    document["profiles"][0]["plugins"]["preScore"] = {"enabled": [{"name": "LowRiskOverCommitment"}]}
    args["riskLimitWeights"] = {"cpu": 0.5}
    assert [] == reported(document)


def test_a_plugin_with_its_own_metric_provider_is_a_warning():
    """It works, without load-watcher."""
    provider = {"type": "Prometheus", "address": "http://p:9090", "token": "s3cret"}
    (found,) = reported(changed(*ARGS, to={"metricProvider": provider}))
    assert found.status is CheckStatus.WARN
    assert "and not load-watcher" in found.what
    assert "s3cret" not in str(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("profiles: [", "invalid YAML: line 2, column 1"),
        ("\tkind: x", "invalid YAML"),
        ("", "it contains no KubeSchedulerConfiguration"),
        ("- 1", "it contains no KubeSchedulerConfiguration"),
        ("kind: Deployment", "only Deployment"),
        ("kind: ConfigMap\ndata: {a: 'kind: KubeSchedulerConfiguration'}", "no list of profiles"),
        ("kind: KubeSchedulerConfiguration\nprofiles: 7", "no list of profiles"),
    ],
)
def test_a_document_that_is_not_a_configuration_is_reported(text, words):
    """With a remedy, and without a traceback."""
    found = reported(text)
    assert any(words in each.what for each in found), found
    assert all(each.cure for each in found)


ODD: list[Any] = [None, 1.5, "x", [], {}, [1], {"a": 1}, [{"name": 1}], "http://["]


def places(inner: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values in a document."""
    yield path
    for step in inner if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ():
        yield from places(inner[step], (*path, step))


@pytest.mark.slow
def test_any_value_in_the_configuration_is_checked_without_an_exception():
    """Each value of the valid one in turn is replaced by an unusual one; each result has a remedy."""
    for path in list(places(yaml.safe_load(GOOD)))[1:]:
        for odd in ODD:
            for each in reported(changed(*path, to=odd)):
                assert each.cure, (path, odd, each)


def test_an_address_is_shown_without_its_password():
    """In each result."""
    (found,) = address_problems("http://user:s3cret@load-watcher?token=s3cret", where="x")
    assert "no port" in found.what
    assert "s3cret" not in str(found)


@pytest.mark.slow
def test_the_command_reads_files_of_flags_and_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """--scheduler-config, even if the settings are invalid, and `from` with its profile in [scheduler]."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("http://", ""))
    (tmp_path / "s.toml").write_text('[scheduler.default]\nfrom = "bad.yaml"\nprofile = "trimaran"\n')
    good = doctor("--scheduler-config", "good.yaml", "--set", "server.prot=1")
    assert {"settings"} == good.failed()
    good.one("scheduler", "ok", "good.yaml: its profiles use load-watcher")
    bad = doctor("--scheduler-config", "bad.yaml")
    bad.one("scheduler", "fail", "bad.yaml: profile trimaran, TargetLoadPacking: watcherAddress")
    taken = doctor("--config", "s.toml")
    taken.one("scheduler", "ok", "bad.yaml: the profile imported by [scheduler] is valid")
    (tmp_path / "bad.yaml").write_text(GOOD.replace("{name: NodeResourcesFit}, ", ""))
    rival = doctor("--config", "s.toml")
    rival.one("scheduler", "fail", "bad.yaml: profile trimaran: NodeResourcesFit scores by requests")
    (tmp_path / "s.toml").write_text('[scheduler.default]\nfrom = "good.yaml"\nprofile = "trimarran"\n')
    doctor("--config", "s.toml").one("settings", "fail", "scheduler.default.profile", "trimarran")
    (tmp_path / "s.toml").write_text('[scheduler.default]\nfrom = "nowhere.yaml"\n')
    doctor("--config", "s.toml").one("settings", "fail", "nowhere.yaml")
