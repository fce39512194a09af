"""Policies are read completely: valid ones become rules, and all problems are reported with their locations."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import model
from agent.metrics.registry import Metrics
from agent.policy import schema as fields
from agent.policy.objects import read_metric_rule, read_rules, whole_number
from agent.policy.policy_set import PolicyReadResult, read_texts
from agent.policy.problems import PolicyLocation, ProblemCollector
from agent.service.dependencies import known_metrics
from tests.agent.crane import cases
from tests.agent.policy.writing import (
    CRANE_API,
    METRICS,
    a_rule,
    an_object,
    node_qos,
    problems,
    reading,
    text_of,
    throttling,
)
from watcher.core.config.reader import read

SHIPPED = Path(__file__).parents[3] / "deploy" / "agent" / "policies"


def first(complaints: ProblemCollector) -> str | None:
    """The first problem in the classes of Crane's webhook."""
    if not complaints.problems:
        return None
    return "Required" if complaints.problems[0].message.startswith("is missing") else "Invalid"


# --- Crane's own cases -----------------------------------------------------------------------------------------------


@cases("validate_metric_rule")
def test_crane_s_cases_of_metric_rules(case: dict[str, Any]):
    complaints = ProblemCollector(PolicyLocation("vectors"))
    rule = read(fields.MetricRule, case["input"], complaints)
    read_metric_rule(rule, metrics=METRICS, complaints=complaints)
    assert case["expected"]["head"] == first(complaints)


@cases("validate_rules")
def test_crane_s_cases_of_rules(case: dict[str, Any]):
    complaints = ProblemCollector(PolicyLocation("vectors"))
    spec = read(fields.NodeQosSpec, case["input"], complaints)
    read_rules(spec.rules, policy="p", metrics=METRICS, additions={}, complaints=complaints)
    assert case["expected"]["head"] == first(complaints)


@cases("validate_node_quality_probe")
def test_crane_s_cases_of_probes(case: dict[str, Any]):
    found = problems(node_qos(nodeQualityProbe=case["input"]), throttling())
    assert ("Invalid" == case["expected"]["head"]) == ("spec.nodeQualityProbe" in found)


def as_manifest(given: dict[str, Any]) -> dict[str, Any]:
    """A PodQOS of the vectors as a manifest."""
    spec: dict[str, Any] = {"allowedActions": ["throttle"]}
    if "labels" in given or "exprs" in given:
        expressions = [
            {"key": each["key"], "operator": each["op"], "values": each["values"]} for each in given.get("exprs", ())
        ]
        spec["labelSelector"] = {"matchLabels": given.get("labels", {}), "matchExpressions": expressions}
    if not given.get("nil_scope"):
        scopes = [
            {"scopeName": each["scope"], "operator": each["operator"], "values": each["values"]}
            for each in given.get("scopes", ())
        ]
        spec["scopeSelector"] = {"matchExpressions": scopes}
    return an_object("PodQOS", given["name"], **spec)


REFUSED = {"empty-scope", "prio-reversed", "prio-exists", "bad-op-ns", "bad-op-qos"}
"""Selectors of the vectors that match no pod, or all of them, for any intention of the user."""


@cases("podqos_match")
def test_only_selectors_that_must_be_a_mistake_are_refused(case: dict[str, Any]):
    for pod_qos in case["input"]["podqos"]:
        found = reading(as_manifest(pod_qos), throttling())
        assert (pod_qos["name"] in REFUSED) == bool(found.problems), pod_qos["name"]


# --- valid policies --------------------------------------------------------------------------------------------------


def test_a_rule_has_the_values_of_its_object():
    additions = '{high: {restoreValue: "3500", minDwellSeconds: 60, onMissing: all}}'
    qos = node_qos(
        a_rule(avoidanceThreshold=2, restoreThreshold=3, strategy="Preview"),
        annotations={"load-watcher.io/rules": additions},
    )
    found = reading(qos, throttling())
    assert not found.problems
    (rule,) = found.policies.for_node({}).rules
    assert rule == model.Rule(
        policy="cpu",
        name="high",
        metric="cpu_total_usage",
        watermark=4000,
        action="throttle",
        restore_watermark=3500,
        avoidance_threshold=2,
        restore_threshold=3,
        preview=True,
        on_missing="all",
        min_dwell_seconds=60,
    )


def test_an_action_has_the_values_of_its_object():
    action = an_object(
        "AvoidanceAction",
        annotations={"load-watcher.io/restore-step-ratio": "5"},
        coolDownSeconds=60,
        throttle={"cpuThrottle": {"minCPURatio": 20, "stepCPURatio": 10}, "memoryThrottle": {"forceGC": True}},
        eviction={"terminationGracePeriodSeconds": 7},
    )
    expected = model.AvoidanceAction("a", 60, model.CpuThrottle(20, 10), 5, True, True, 7)
    assert {"a": expected} == reading(action).policies.for_node({}).actions
    assert {"b": model.AvoidanceAction("b")} == reading(an_object("AvoidanceAction", "b")).policies.for_node({}).actions


def test_a_pod_qos_has_the_values_of_its_object():
    scopes = [
        {"scopeName": "QOSClass", "operator": "NotIn", "values": ["Guaranteed"]},
        {"scopeName": "Priority", "operator": "In", "values": ["-100", "0-3000", "-9--7"]},
    ]
    expressions = [{"key": "tier", "operator": "DoesNotExist"}]
    pod_qos = an_object(
        "PodQOS",
        labelSelector={"matchLabels": {"app": "x"}, "matchExpressions": expressions},
        scopeSelector={"matchExpressions": scopes},
        allowedActions=["throttle"],
    )
    found = reading(pod_qos, throttling())
    assert not found.problems
    (qos,) = found.policies.for_node({}).pod_qos
    assert frozenset({"throttle"}) == qos.allowed_actions
    assert model.LabelSelector((("app", "In", ("x",)), ("tier", "DoesNotExist", ()))) == qos.selector
    assert qos.scopes == (
        model.PodScope("QOSClass", "NotIn", ("Guaranteed",)),
        model.PodScope("Priority", "In", ("-100", "0-3000", "-9--7"), ((-100, -100), (0, 3000), (-9, -7))),
    )


def test_older_names_have_the_same_meaning():
    older = an_object("NodeQOSEnsurancePolicy", "cpu", objectiveEnsurances=[a_rule()])
    assert reading(node_qos(), throttling()).policies.for_node({}) == reading(older, throttling()).policies.for_node({})
    for spelled in ("labelselector", "labelSelector"):
        selecting: dict[str, Any] = {spelled: {"matchLabels": {"a": "b"}}}
        pod_qos = an_object("PodQOS", allowedActions=["throttle"], **selecting)
        (found,) = reading(pod_qos, throttling()).policies.for_node({}).pod_qos
        assert model.LabelSelector((("a", "In", ("b",)),)) == found.selector
    both = an_object("PodQOS", allowedActions=[], labelselector={}, labelSelector={})
    assert "another spelling of labelSelector" in problems(both)["spec.labelselector"]


def test_the_deviations_of_cranes_examples_are_accepted():
    """Rules named after their metrics, with underscores; fields of a probe that no CRD has any more; integers;
    resourceQOS alone."""
    rule = a_rule("ext_cpu_total_distribute", metricRule={"name": "cpu_total_usage", "value": 110}, strategy="None")
    probe = {"initialDelaySeconds": 10, "timeoutSeconds": 10, "nodeLocalGet": {"localCacheTTLSeconds": 60}}
    burst = an_object(
        "PodQOS", "burst", labelselector={"matchLabels": {"a": "b"}}, resourceQOS={"cpuQOS": {"cpuPriority": 7}}
    )
    older = an_object("NodeQOSEnsurancePolicy", "sched", objectiveEnsurances=[rule], nodeQualityProbe=probe)
    assert not reading(older, throttling(), burst).problems


def test_lists_json_and_several_files_are_read():
    listed = {"apiVersion": "v1", "kind": "List", "items": [node_qos(), throttling()]}
    whole = reading(node_qos(), throttling()).policies.for_node({})
    assert whole == reading(listed).policies.for_node({})
    texts = {"b.yaml": f"---\n---\n{text_of(node_qos())}", "a.json": json.dumps(throttling())}
    found = read_texts(texts, metrics=METRICS)
    assert not found.problems
    assert whole == found.policies.for_node({})


def test_fields_that_kubectl_adds_are_ignored():
    qos = node_qos()
    qos["metadata"] |= {
        "uid": "1",
        "resourceVersion": "3",
        "managedFields": [{"a": 1}],
        "creationTimestamp": "2026-01-01",
    }
    qos["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    assert not reading({**qos, "status": {}}, throttling()).problems


@pytest.mark.parametrize(
    ("labels", "rules"), [({"pool": "batch"}, 2), ({"pool": "web"}, 1), ({}, 1), (None, 1)], ids=str
)
def test_a_node_qos_applies_to_the_nodes_that_it_selects(labels: dict[str, str] | None, rules: int):
    """If the labels of a node are unknown, only a NodeQOS for all nodes applies."""
    everywhere = node_qos()
    batch = node_qos(name="batch", selector={"matchLabels": {"pool": "batch"}})
    found = reading(batch, everywhere, throttling()).policies.for_node(labels)
    assert rules == len(found.rules)
    assert ["batch", "cpu"][-rules:] == [rule.policy for rule in found.rules]


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("4500m", 5), ("500m", 1), (4, 4), ("3Gi", 3 << 30), ("1e3", 1000), (0.5, 1), ("-1500m", -1)],
)
def test_quantities_are_rounded_up(quantity: str | float, expected: int):
    """As Quantity.Value() does."""
    assert expected == whole_number(quantity)


def test_the_shipped_policies_are_valid():
    texts = {path.name: path.read_text() for path in SHIPPED.glob("*.yaml")}
    found = read_texts(texts, metrics=METRICS)
    assert not found.problems
    assert not found.notices
    assert 2 == len(found.policies.for_node({}).rules)


# --- invalid policies ------------------------------------------------------------------------------------------------


def test_soft_limits_are_read_and_unknown_ones_reported():
    def of(text: str, **spec: object) -> PolicyReadResult:
        action = an_object("AvoidanceAction", "a", annotations={fields.GENTLE_ANNOTATION: text}, **spec)
        return read_texts({"a.yaml": text_of(action)}, metrics=METRICS)

    throttle = {"cpuThrottle": {"stepCPURatio": 10}}
    both = of("cpu.weight, memory.high", throttle=throttle)
    assert (frozenset({"cpu.weight", "memory.high"}), ()) == (
        both.policies.for_node({}).actions["a"].soft_limits,
        both.notices,
    )
    (problem,) = of("cpu.wait", throttle=throttle).problems
    assert "unknown soft limit 'cpu.wait'" in str(problem)
    assert "Did you mean cpu.weight?" in str(problem)
    (notice,) = of("cpu.weight", eviction={}).notices
    assert "it precedes cpuThrottle, which is missing" in str(notice)


@pytest.mark.parametrize(
    ("rule", "path", "words"),
    [
        (a_rule(metricRule={"name": "cpu_total_usge", "value": 1}), "metricRule.name", "Did you mean cpu_total_usage?"),
        (
            a_rule(metricRule={"name": "disk_write_utilization", "value": 70}),
            "metricRule.name",
            "The kernel reports reads and writes together: use disk_total_utilization.",
        ),
        (a_rule(metricRule={"name": "cpu_total_usage", "value": "0"}), "metricRule.value", "above 0"),
        (a_rule(metricRule={"name": "cpu_total_usage", "value": "-1"}), "metricRule.value", "above 0"),
        (a_rule(metricRule={"name": "cpu_total_usage", "value": "much"}), "metricRule.value", "not a quantity"),
        (a_rule(metricRule={"name": "cpu_total_usage", "value": [1]}), "metricRule.value", "must be a quantity"),
        (a_rule(metricRule={"name": "cpu_total_usage", "value": float("inf")}), "metricRule.value", "not a quantity"),
        (a_rule(metricRule={"name": "cpu_total_usage"}), "metricRule.value", "the watermark is missing"),
        (a_rule(metricRule="cpu"), "metricRule", "must be a mapping"),
        (a_rule(metricRule=None), "metricRule", "is missing"),
        (a_rule(avoidanceThreshold=0), "avoidanceThreshold", "from 1 to"),
        (a_rule(restoreThreshold=-1), "restoreThreshold", "from 1 to"),
        (a_rule(avoidanceThreshold="2"), "avoidanceThreshold", "a whole number"),
        (a_rule(avoidanceThreshold=1.5), "avoidanceThreshold", "a whole number"),
        (a_rule(restoredThreshold=1), "restoredThreshold", "Did you mean restoreThreshold?"),
        (a_rule(strategy="preview"), "strategy", "must be None or Preview"),
        (a_rule(actionName="throtle"), "actionName", "Did you mean throttle?"),
        (a_rule(actionName=None), "actionName", "is missing"),
        (a_rule(name=None), "name", "is missing"),
        (a_rule(name="cpu.high"), "name", "is not a valid name"),
        (a_rule(actionName="a_b"), "actionName", "DNS-1123"),
        (a_rule(name=7), "name", "put it in quotes"),
    ],
)
def test_a_problem_of_a_rule_is_reported_with_its_location(rule: dict[str, Any], path: str, words: str):
    found = problems(node_qos(rule), throttling())
    assert [f"spec.rules[0].{path}"] == list(found)
    assert words in found[f"spec.rules[0].{path}"]


def test_all_problems_are_reported_at_once():
    qos = node_qos(a_rule(avoidanceThreshold=0, colour="red", metricRule={"name": "x", "value": 0}), a_rule("second"))
    action = an_object("AvoidanceAction", "throttle", throttle={"cpuThrottle": {"minCPURatio": 101}}, coolDownSeconds=0)
    found = reading({**qos, "sepc": {}}, action)
    assert [str(each.place) for each in found.problems] == [
        "a.yaml document 1: NodeQOS/cpu sepc",
        "a.yaml document 1: NodeQOS/cpu spec.rules[0].avoidanceThreshold",
        "a.yaml document 1: NodeQOS/cpu spec.rules[0].colour",
        "a.yaml document 1: NodeQOS/cpu spec.rules[0].metricRule.name",
        "a.yaml document 1: NodeQOS/cpu spec.rules[0].metricRule.value",
        "a.yaml document 2: AvoidanceAction/throttle spec.throttle.cpuThrottle.minCPURatio",
        "a.yaml document 2: AvoidanceAction/throttle spec.coolDownSeconds",
    ]


@pytest.mark.parametrize(
    ("manifest", "path", "words"),
    [
        (an_object("NodeQoS", rules=[]), "kind", "Did you mean NodeQOS?"),
        (
            {**node_qos(), "apiVersion": "ensurance.crane.io/v1"},
            "apiVersion",
            "must be load-watcher.io/v1alpha1 or ensurance.crane.io/v1alpha1",
        ),
        (
            {**node_qos(), "kind": "NodeQOSEnsurancePolicy"},
            "kind",
            "NodeQOSEnsurancePolicy is not a kind of load-watcher.io",
        ),
        (node_qos(name="1st"), "metadata.name", "not a valid name of a NodeQOS"),
        (an_object("NodeQOS"), "spec.rules", "without rules does nothing"),
        (an_object("PodQOS", "", allowedActions=[]), "metadata.name", "is missing"),
        (
            node_qos(nodeQualityProbe={"nodeLocalGet": {}, "httpGet": {}}),
            "spec.nodeQualityProbe",
            "has nodeLocalGet and httpGet",
        ),
        (node_qos(selector={"matchLabels": {"a": 1}}), "spec.selector.matchLabels.a", "put it in quotes"),
        (
            node_qos(selector={"matchExpressions": [{"key": "a", "operator": "In"}]}),
            "spec.selector.matchExpressions[0].values",
            "needs at least one",
        ),
        (
            node_qos(selector={"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}),
            "spec.selector.matchExpressions[0].values",
            "takes no values",
        ),
        (an_object("PodQOS", allowedActions=[], scopeSelector={}), "spec.scopeSelector", "every pod"),
        (
            an_object(
                "PodQOS",
                allowedActions=[],
                scopeSelector={
                    "matchExpressions": [{"scopeName": "QOSClass", "operator": "In", "values": ["besteffort"]}]
                },
            ),
            "spec.scopeSelector.matchExpressions[0].values[0]",
            "Did you mean BestEffort?",
        ),
        (
            an_object(
                "PodQOS",
                allowedActions=[],
                scopeSelector={"matchExpressions": [{"scopeName": "Priority", "operator": "In", "values": ["9-1"]}]},
            ),
            "spec.scopeSelector.matchExpressions[0].values[0]",
            "empty range",
        ),
        (an_object("AvoidanceAction", eviction={"terminationGracePeriodSeconds": -1}), None, "from 0 to"),
        (
            an_object("AvoidanceAction", annotations={"load-watcher.io/restore-step-ratio": "0"}),
            "metadata.annotations.load-watcher.io/restore-step-ratio",
            "from 1 to 100",
        ),
        (
            node_qos(annotations={"load-watcher.io/rule": "{}"}),
            "metadata.annotations.load-watcher.io/rule",
            "Did you mean load-watcher.io/rules?",
        ),
        (
            node_qos(annotations={"load-watcher.io/rules": "{hihg: {}}"}),
            "metadata.annotations.load-watcher.io/rules.hihg",
            "Did you mean high?",
        ),
        (
            node_qos(annotations={"load-watcher.io/rules": "{high: {restoreVal: 1}}"}),
            "metadata.annotations.load-watcher.io/rules.high.restoreVal",
            "Did you mean restoreValue?",
        ),
        (
            node_qos(annotations={"load-watcher.io/rules": "{high: {restoreValue: 0}}"}),
            "metadata.annotations.load-watcher.io/rules.high.restoreValue",
            "above 0",
        ),
        (
            node_qos(annotations={"load-watcher.io/rules": '{high: {restoreValue: "4001"}}'}),
            "rule high",
            "between the two it would do both",
        ),
    ],
)
def test_a_problem_of_an_object_is_reported_with_its_location(manifest: dict[str, Any], path: str | None, words: str):
    found = problems(manifest, throttling())
    ((place, message),) = found.items()
    assert words in message
    assert path is None or path == place


def test_an_empty_scope_selector_needs_the_annotation():
    everyone = an_object(
        "PodQOS", annotations={"load-watcher.io/match-every-pod": "true"}, allowedActions=["throttle"], scopeSelector={}
    )
    found = reading(everyone, throttling())
    assert not found.problems
    assert "selects every pod" in str(found.notices[0])
    assert () == found.policies.for_node({}).pod_qos[0].scopes


def test_rules_that_throttle_and_restore_at_once_contradict_each_other():
    annotations = {"load-watcher.io/rules": "{high: {restoreValue: 5000}}"}
    high = node_qos(a_rule(metricRule={"name": "cpu_total_usage", "value": 6000}), name="high", annotations=annotations)
    (found,) = reading(node_qos(), high, throttling()).problems
    assert "contradicts cpu.high: above 4000 cpu.high runs throttle, which high.high undoes" in found.message
    several = reading(node_qos(), node_qos(name="other"), throttling())
    assert not several.problems
    assert "the lower watermark, 4000, applies" in several.notices[0].message


CUT = an_object(
    "AvoidanceAction",
    "cut",
    throttle={"cpuThrottle": {"stepCPURatio": 10}, "memoryThrottle": {"forceGC": True}},
    eviction={},
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (
            "container_sched_run_queue_time",  # as in Crane's own example
            ["cut cannot throttle pods or reclaim page cache or evict pods for {}: the rule only keeps new pods away"],
        ),
        (
            "window_cpu_avg_5m",
            ["cut cannot throttle pods or reclaim page cache or evict pods for {}: the rule only keeps new pods away"],
        ),
        (
            "psi_cpu_some_avg10",
            ["cut cannot throttle pods or reclaim page cache or evict pods for {}: the rule only keeps new pods away"],
        ),
        (
            "memory_total_usage",
            ["cut cannot throttle pods for {}: for this rule, it can only reclaim page cache and evict pods"],
        ),
        (
            "cpu_total_usage",
            ["cut cannot reclaim page cache for {}: for this rule, it can only throttle pods and evict pods"],
        ),
        (
            "disk_read_iops",
            [
                "cut cannot throttle pods or reclaim page cache for {}: for this rule, it can only evict pods",
                "{} cannot be quantified: to evict pods, cut selects all pods on which it is allowed",
            ],
        ),
    ],
)
def test_notices_name_the_parts_of_an_action_that_do_not_reduce_the_metric(metric: str, expected: list[str]):
    rule = a_rule(metricRule={"name": metric, "value": 3}, actionName="cut")
    found = read_texts({"a.yaml": text_of(node_qos(rule), CUT)}, metrics=known_metrics(Metrics()))
    assert not found.problems
    assert [each.format(metric) for each in expected] == [each.message for each in found.notices]
    assert {"spec.rules[0]"} == {each.place.path for each in found.notices}


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (
            "{high: &a [1], b: {restoreValue: *a}}",
            "line 1, column 34: aliases",
        ),  # nine levels fill the memory
        ("{high: {restoreValue: 1, restoreValue: 2}}", "duplicate key restoreValue"),
        ("{high: [", "line 1, column"),
        ("[high]", "in YAML or JSON"),
    ],
)
def test_problems_of_an_annotation_are_reported(annotation: str, words: str):
    found = problems(node_qos(annotations={"load-watcher.io/rules": annotation}), throttling())
    assert words in found["metadata.annotations.load-watcher.io/rules"]


def test_a_percentage_that_is_never_exceeded_is_reported():
    rule = a_rule(metricRule={"name": "cpu_total_utilization", "value": 100}, actionName="taint")
    (notice,) = reading(node_qos(rule), an_object("AvoidanceAction", "taint")).notices
    assert "is never triggered: cpu_total_utilization is a percentage" in notice.message
    below = a_rule(metricRule={"name": "cpu_total_utilization", "value": 99}, actionName="taint")
    assert not reading(node_qos(below), an_object("AvoidanceAction", "taint")).notices


def _scoped(name: str, operator: str, *values: str) -> dict[str, Any]:
    return {"scopeSelector": {"matchExpressions": [{"scopeName": name, "operator": operator, "values": list(values)}]}}


@pytest.mark.parametrize(
    ("selectors", "reported"),
    [
        (_scoped("Namespace", "NotIn", "kube-system"), True),
        (_scoped("QOSClass", "In", "BestEffort", "Burstable", "Guaranteed"), True),
        (_scoped("Priority", "In", "-2147483648-2147483647"), True),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}, True),
        (_scoped("Namespace", "In", "kube-system"), False),
        (_scoped("QOSClass", "In", "BestEffort", "Burstable"), False),
        (_scoped("Priority", "In", "0-3000"), False),
        ({"labelSelector": {"matchLabels": {"b": "c"}}, **_scoped("Namespace", "NotIn", "kube-system")}, False),
    ],
)
def test_a_pod_qos_that_selects_nearly_every_pod_is_reported(selectors: dict[str, Any], reported: bool):
    found = reading(an_object("PodQOS", allowedActions=["throttle"], **selectors), throttling())
    assert not found.problems
    words = ["selects every pod except the excluded ones"] if reported else []
    assert words == [each.message for each in found.notices]


def test_rules_of_the_older_and_the_newer_kind_with_the_same_name_are_refused():
    """Their samples would be counted together."""
    older = an_object("NodeQOSEnsurancePolicy", "cpu", rules=[a_rule()])
    (found,) = reading(node_qos(), older, throttling()).problems
    assert "has the same key, cpu.high, as the rule in NodeQOS/cpu" in found.message
    assert not reading(node_qos(a_rule("other")), older, throttling()).problems


def test_duplicate_names_are_reported():
    (found,) = reading(throttling(), throttling()).problems
    assert "is a duplicate of the object in a.yaml document 1" in found.message
    assert "another rule" in problems(node_qos(a_rule(), a_rule()), throttling())["spec.rules[1].name"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: NodeQOS\nkind: PodQOS\n", "line 2, column 1: duplicate key kind"),
        ("a: &a [1]\nb: *a\n", "line 2, column 4: aliases"),
        ("a: [", "is not YAML: line"),
        ("just text", "must be a Kubernetes object, and is 'just text'"),
        ("[" * 1500, "is not YAML: nested too deeply"),
        ('kind: "\\ud800"\n', "line 1, column 7: the text contains a lone surrogate"),
        ("- a\n", "must be a Kubernetes object"),
    ],
)
def test_a_file_without_policies_is_reported(text: str, words: str):
    (found,) = read_texts({"a.yaml": text}, metrics=METRICS).problems
    assert words in found.message


def test_other_objects_in_the_same_file_are_ignored_with_a_notice():
    found = reading(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}, an_object("ServicePolicy", "s")
    )
    assert not found.problems
    assert ["is ignored: it is not a policy", "is ignored: no component ever read it"] == [
        each.message for each in found.notices
    ]


def test_values_without_effect_are_reported():
    qos = node_qos(
        nodeQualityProbe={"nodeLocalGet": {"localCacheTTLSeconds": 60}, "timeoutSeconds": 3},
        elasticCpuLimit={"elasticNodeCpuLimit": {"percent": 3}},
    )
    nothing = an_object("PodQOS", "none", allowedActions=["throttle", "gone"])
    bare = an_object("AvoidanceAction", "bare", eviction=None, throttle={})
    found = reading(qos, throttling(), nothing, bare)
    assert not found.problems
    assert [f"{each.place.path}: {each.message.partition(':')[0]}" for each in found.notices] == [
        "spec.nodeQualityProbe.nodeLocalGet.localCacheTTLSeconds: has no effect here",
        "spec.nodeQualityProbe.timeoutSeconds: has no effect here",
        "spec.elasticCpuLimit: has no effect here",
        "spec: selects no pods",
        "spec.allowedActions: unknown AvoidanceAction gone",
        "spec.eviction: is null, which is the same as absent; write {} for an empty mapping",
        "spec.throttle: does not throttle CPU",
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "value", "rules", "metricRule", "selector", "matchLabels", "x"]), inner
        )
    ),
    max_leaves=12,
)


@settings(max_examples=50)
@given(
    st.sampled_from(["NodeQOS", "NodeQOSEnsurancePolicy", "PodQOS", "AvoidanceAction"]),
    st.dictionaries(
        st.sampled_from(
            [
                "rules",
                "selector",
                "nodeQualityProbe",
                "throttle",
                "eviction",
                "scopeSelector",
                "labelSelector",
                "allowedActions",
            ]
        ),
        JSON,
    ),
    JSON,
)
def test_any_object_is_read_or_refused(kind: str, spec: dict[str, Any], addition: Any):
    manifest = {
        "apiVersion": "ensurance.crane.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": "a", "annotations": {"load-watcher.io/rules": json.dumps(addition)}},
        "spec": spec,
    }
    found = read_texts({"a.json": json.dumps(manifest)}, metrics=METRICS)
    assert all(str(each) for each in (*found.problems, *found.notices))


# --- two API groups --------------------------------------------------------------------------------------------------


def of_crane(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same object in Crane's group."""
    return {**manifest, "apiVersion": CRANE_API}


def test_objects_of_both_groups_are_one_set():
    """A rule of one group may name an action of the other."""
    found = reading(node_qos(), of_crane(throttling()), of_crane(node_qos(name="more")))
    assert not found.problems
    assert ["cpu.high", "more.high"] == [rule.key for rule in found.policies.for_node({}).rules]


@pytest.mark.parametrize("crane_first", [False, True])
def test_of_equal_names_in_both_groups_that_of_load_watcher_is_used(crane_first: bool):
    """A notice names the other one."""
    pair = [node_qos(a_rule(avoidanceThreshold=2)), of_crane(node_qos(a_rule(avoidanceThreshold=3)))]
    found = reading(*(reversed(pair) if crane_first else pair), throttling())
    assert found.usable
    assert [2] == [rule.avoidance_threshold for rule in found.policies.for_node({}).rules]
    (notice,) = found.notices
    assert "NodeQOS/cpu: is not used: the object of the same kind and name in load-watcher.io" in str(notice)
    assert "Delete the object of ensurance.crane.io" in notice.cure


def test_duplicates_in_one_group_are_a_problem_beside_the_other_group():
    found = reading(of_crane(node_qos()), node_qos(), node_qos(), throttling())
    assert ["is a duplicate"] == [each.message[:14] for each in found.problems]
