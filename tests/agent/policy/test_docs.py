"""The documentation shows the printed texts and all existing fields."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.executor.enforcement_switch import ENFORCEMENT, NODES_AT_ONCE, PER_MINUTE, RECENT
from agent.metrics.registry import Metrics
from agent.policy import schema
from agent.policy.policy_set import read_texts
from agent.service.dependencies import known_metrics
from tests.agent.policy.writing import METRICS, a_rule, an_object, node_qos, text_of, throttling

DOCS = Path(__file__).parents[3] / "docs"
POLICIES = (DOCS / "reference" / "agent-policies.md").read_text()
SAFETY = (DOCS / "concepts" / "agent-safety.md").read_text()


def block(marker: str) -> str:
    """The block of code after a comment."""
    match = re.search(rf"<!-- {re.escape(marker)} -->\n```\w*\n(.*?)```", POLICIES, re.DOTALL)
    assert match is not None, marker
    return match[1]


def test_the_documented_problems_are_those_that_are_printed():
    found = read_texts({"policies.yaml": block("example: policies.yaml")}, metrics=METRICS)
    assert block("problems: policies.yaml").splitlines() == "\n".join(map(str, found.problems)).splitlines()
    assert block("notices: policies.yaml").splitlines() == "\n".join(map(str, found.notices)).splitlines()


def test_the_documented_notices_are_those_that_are_printed():
    def rule(metric: str, action: str) -> dict[str, Any]:
        one = a_rule(metricRule={"name": metric, "value": 5}, actionName=action)
        return node_qos(one, name=metric.partition("_")[0])

    cut = {"cpuThrottle": {"stepCPURatio": 10}, "memoryThrottle": {"forceGC": True}}
    text = text_of(
        rule("memory_total_usage", "cut"),
        rule("disk_read_iops", "evict"),
        an_object("AvoidanceAction", "cut", throttle=cut),
        an_object("AvoidanceAction", "evict", eviction={}),
    )
    found = read_texts({"a.yaml": text}, metrics=known_metrics(Metrics()))
    assert block("notices: actions").splitlines() == [str(each) for each in found.notices]


def test_the_first_example_is_valid():
    example = POLICIES.partition("```yaml\n")[2].partition("```")[0]
    found = read_texts({"a.yaml": f"{example}---\n{text_of(throttling())}"}, metrics=METRICS)
    assert not found.problems
    assert not found.notices


@pytest.mark.parametrize(
    "kind",
    [
        schema.RuleSpec,
        schema.MetricRule,
        schema.RuleAddition,
        schema.CpuThrottleSpec,
        schema.EvictionSpec,
        schema.PodQosSpec,
    ],
    ids=lambda kind: kind.__name__,
)
def test_each_field_is_documented(kind: type[msgspec.Struct]):
    names = {field.encode_name for field in msgspec.structs.fields(kind)} - {"podQualityProbe"}
    assert not {name for name in names if not re.search(rf"[`.]{name}\b", POLICIES)}


def test_each_annotation_and_each_key_of_the_config_map_is_documented():
    assert all(name in POLICIES for names in schema.ANNOTATIONS.values() for name in names)
    assert all(f"`{key}`" in SAFETY for key in (ENFORCEMENT, PER_MINUTE, NODES_AT_ONCE, RECENT))
