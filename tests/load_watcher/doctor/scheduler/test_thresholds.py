"""Thresholds with which pods are evicted repeatedly: the evictor starts at a load that the scheduler still allows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from load_watcher.doctor.scheduler.plugins import ProfilePlugins, use_of
from load_watcher.doctor.scheduler.thresholds import EvictionThresholds, compare_thresholds, evictors_in
from tests.doctor import doctor
from watcher.platform.checks.results import CheckResult

LOW_NODE_LOAD = {
    "kind": "DeschedulerConfiguration",
    "apiVersion": "descheduler/v1alpha2",
    "profiles": [
        {
            "name": "koord-descheduler",
            "pluginConfig": [
                {
                    "name": "LowNodeLoad",
                    "args": {
                        "lowThresholds": {"cpu": 20, "memory": 30},
                        "highThresholds": {"cpu": 60, "memory": 80, "pods": 95},
                        "prodHighThresholds": {"cpu": 40},
                        "prodLowThresholds": {"cpu": 10},
                        "nodePools": [{"name": "big", "highThresholds": {"cpu": 90}}],
                    },
                }
            ],
        }
    ],
}
NODE_QOS = """
kind: NodeQOS
apiVersion: ensurance.crane.io/v1alpha1
metadata: {name: watermarks}
spec:
  rules:
  - {name: cpu, actionName: evict, metricRule: {name: cpu_total_utilization, value: "64.5"}}
  - {name: slow-down, actionName: throttle, metricRule: {name: cpu_total_utilization, value: 50}}
  - {name: memory, actionName: evict, strategy: Preview, metricRule: {name: memory_total_utilization, value: 50}}
  - {name: load, actionName: evict, metricRule: {name: cpu_load_1_min, value: 5}}
---
kind: AvoidanceAction
metadata: {name: evict}
spec: {eviction: {terminationGracePeriodSeconds: 30}}
---
kind: AvoidanceAction
metadata: {name: throttle}
spec: {throttle: {cpuThrottle: {minCPURatio: 10, stepCPURatio: 10}}}
"""


def said(plugins: Mapping[str, Any], **evictor: Mapping[str, float]) -> list[CheckResult]:
    evictors = [EvictionThresholds("e", **evictor)] if evictor else []
    return list(compare_thresholds([ProfilePlugins("p", use_of(plugins))], evictors))


@pytest.mark.parametrize(
    ("plugins", "evicts", "words"),
    [
        (
            {"LoadAwareScheduling": {}},
            {"node": {"memory": 80.0}},
            "LoadAwareScheduling allows pods on nodes up to 95 % of memory, but e evicts above 80 %",
        ),
        ({"LoadAwareScheduling": {}}, {"node": {"cpu": 65.0}}, "up to 65 % of cpu"),
        ({"LoadAwareScheduling": {}}, {"node": {"cpu": 66.0}}, None),
        # a percentile replaces the mean, thresholds of 0 do not count
        (
            {"LoadAwareScheduling": {"aggregated": {"usageThresholds": {"cpu": 50}, "usageAggregationType": "p95"}}},
            {"node": {"cpu": 60.0, "memory": 80.0}},
            None,
        ),
        (
            {"LoadAwareScheduling": {"aggregated": {"usageThresholds": {"cpu": 50}}}},
            {"node": {"cpu": 60.0}},
            "up to 65 % of cpu",
        ),
        ({"LoadAwareScheduling": {"usageThresholds": {"cpu": 0}}}, {"node": {"cpu": 60.0}}, None),
        (
            {"LoadAwareScheduling": {"prodUsageThresholds": {"cpu": 45}}},
            {"node": {}, "prod": {"cpu": 40.0}},
            "up to 45 % of cpu by prod pods",
        ),
        (
            {"HighLoadFilter": {"usageThresholds": {"cpu": 70}}},
            {"node": {"cpu": 70.0, "memory": 50.0}},
            "HighLoadFilter allows pods on nodes up to 70 % of cpu",
        ),
        # of two filters the lower one closes the node
        (
            {"HighLoadFilter": {"usageThresholds": {"cpu": 50}}, "LoadAwareScheduling": {}},
            {"node": {"cpu": 60.0}},
            None,
        ),
        # without a filter, packing must not aim there
        (
            {"TargetLoadPacking": {"targetUtilization": 70}},
            {"node": {"cpu": 60.0, "memory": 10.0}},
            "TargetLoadPacking allows pods on nodes up to 70 % of cpu",
        ),
        ({"TargetLoadPacking": {}}, {"node": {"cpu": 41.0}}, None),
        (
            {"TargetLoadPacking": {"resources": ["cpu", "memory"]}},
            {"node": {"memory": 30.0}},
            "up to 40 % of memory",
        ),
        (
            {"TargetLoadPacking": {"targetUtilization": 70}, "HighLoadFilter": {"usageThresholds": {"cpu": 75}}},
            {"node": {"cpu": 80.0}},
            None,
        ),
        ({"LoadVariationRiskBalancing": {}}, {"node": {"cpu": 10.0}}, None),
    ],
    ids=str,
)
def test_an_evictor_must_start_above_the_threshold_that_closes_nodes(
    plugins: Mapping[str, Any], evicts: Mapping[str, Any], words: str | None
) -> None:
    """At the same percentage, a pod that just fits is evicted."""
    (found,) = said(plugins, **evicts)
    if words is None:
        assert "ok" == found.status
    else:
        assert ("fail", True, True) == (found.status, words in found.what, "can return to its node" in found.what)
        assert "well below" in found.cure


def test_a_packing_target_above_the_threshold_of_a_filter_is_never_reached() -> None:
    """Pods are not evicted repeatedly, but the target has no effect."""
    (found,) = said({"TargetLoadPacking": {"targetUtilization": 70}, "LoadAwareScheduling": {}})
    assert "warn" == found.status
    assert "fills nodes up to 70 % of cpu, but LoadAwareScheduling rejects them above 65 %" in found.what
    assert [] == said({"TargetLoadPacking": {"targetUtilization": 65}, "LoadAwareScheduling": {}})


def test_without_a_scheduler_nothing_is_compared() -> None:
    (found,) = compare_thresholds([], [EvictionThresholds("e", {"cpu": 60.0})])
    assert (
        "skipped",
        "e: no scheduler profile to compare it with; give one with --scheduler-config or [scheduler.NAME]",
    ) == (found.status, found.what)


def test_low_node_load_is_read_with_its_pools() -> None:
    """Values that a pool omits are those of the top level; a pool without low thresholds evicts nothing."""
    document = yaml.safe_dump(LOW_NODE_LOAD)
    expected = [
        EvictionThresholds("LowNodeLoad", {"cpu": 60.0, "memory": 80.0}, {"cpu": 40.0}),
        EvictionThresholds("LowNodeLoad, pool big", {"cpu": 90.0}, {"cpu": 40.0}),
    ]
    assert (expected, []) == evictors_in(document)
    as_map = yaml.safe_dump({"kind": "ConfigMap", "data": {"koord-descheduler-config": document, "other": "x"}})
    assert (expected, []) == evictors_in(as_map)


@pytest.mark.parametrize(
    "args", [{"paused": True}, {"dryRun": True}, {"useDeviationThresholds": True}, {"lowThresholds": {}}], ids=str
)
def test_arguments_that_evict_nothing_are_skipped(args: Mapping[str, Any]) -> None:
    """Deviations are from a mean that is not known in advance."""
    given = {"kind": "LowNodeLoadArgs", "highThresholds": {"cpu": 60}, "lowThresholds": {"cpu": 20}}
    assert 1 == len(evictors_in(yaml.safe_dump(given))[0])
    evictors, (reported,) = evictors_in(yaml.safe_dump({**given, **args}))
    assert ([], "skipped") == (evictors, reported.status)


def test_rules_of_the_agent_count_if_their_action_evicts() -> None:
    """A watermark is rounded up, as Crane reads it."""
    assert ([EvictionThresholds("NodeQOS watermarks, rule cpu", {"cpu": 65.0})], []) == evictors_in(NODE_QOS)


@pytest.mark.parametrize("text", ["", "- 1", "kind: Deployment", "kind: [", "data: 1\nkind: ConfigMap"])
def test_a_document_without_an_evictor_is_reported(text: str) -> None:
    """With a remedy, and without a traceback."""
    evictors, (problem,) = evictors_in(text)
    assert [] == evictors
    assert ("fail", True) == (problem.status, bool(problem.cure))


@pytest.mark.parametrize("odd", [None, 1.5, "x", [], {}, [1], {"a": 1}, [{"name": 1}], {"cpu": "x"}, {"cpu": 60}])
@pytest.mark.parametrize("key", ["usageThresholds", "aggregated", "targetUtilization", "resources"])
def test_invalid_arguments_are_compared_too(key: str, odd: Any) -> None:
    """The check of the settings reports them."""
    plugins = {name: {key: odd} for name in ("TargetLoadPacking", "HighLoadFilter", "LoadAwareScheduling")}
    assert all(each.status in ("ok", "warn", "fail") for each in said(plugins, node={"cpu": 50.0}))
    text = yaml.safe_dump_all(
        [{"kind": kind, "spec": {"rules": odd}, key: odd} for kind in ("NodeQOS", "LowNodeLoadArgs")]
    )
    assert [] == evictors_in(text)[0]


@pytest.mark.slow
def test_the_command_compares_the_settings_with_the_evictor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configured profiles, pasted ones, and the extender of kube-scheduler."""
    monkeypatch.chdir(tmp_path)
    plugins = '[ { name = "LoadAwareScheduling", args = { usageThresholds = { cpu = 55 } } } ]'
    (tmp_path / "s.toml").write_text(f"[scheduler.default]\nplugins = {plugins}\n")
    (tmp_path / "evict.yaml").write_text(yaml.safe_dump(LOW_NODE_LOAD))
    doctor("--config", "s.toml").one("scheduler", "ok", "no conflicts between the plug-ins of [scheduler.default]")
    good = doctor("--config", "s.toml", "--evictor-config", "evict.yaml")
    assert 2 == len(good.of("scheduler", "ok"))
    (tmp_path / "s.toml").write_text(f"[scheduler.default]\nplugins = {plugins.replace('55', '60')}\n")
    bad = doctor("--config", "s.toml", "--evictor-config", "evict.yaml")
    bad.one(
        "scheduler", "fail", "[scheduler.default]: LoadAwareScheduling", "evict.yaml: LowNodeLoad evicts above 60 %"
    )
    extender = {"urlPrefix": "http://lw:2020/scheduler/defalt", "prioritizeVerb": "prioritize", "weight": 9}
    asking = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    profile = {"schedulerName": "x", "plugins": {"score": {"enabled": [{"name": "TargetLoadPacking"}]}}}
    (tmp_path / "k.yaml").write_text(yaml.safe_dump({**asking, "profiles": [profile], "extenders": [extender]}))
    asked = doctor("--config", "s.toml", "--scheduler-config", "k.yaml", "--url", "http://127.0.0.1:1")
    asked.one("scheduler", "fail", "k.yaml: extender http://lw:2020/scheduler/defalt", "did you mean default?")
    alone = doctor("--scheduler-config", "k.yaml")
    alone.one("scheduler", "skipped", "k.yaml: its extender cannot be checked")
