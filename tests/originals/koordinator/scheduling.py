"""LoadAwareScheduling of Koordinator and of load-watcher: verdict and reason of the filter, and the score."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from scorers.cluster.node_metrics import NodeMetricObject, read_node_metric
from scorers.cluster.pods import pod_info
from scorers.cluster.table import ClusterTable
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.originals.frame import Case, CaseComparison, DifferenceClass, Outcome, copy_of, explained_by
from tests.originals.koordinator.cases import FACTORS, NODE, RESERVE_POD, THRESHOLDS, random_case
from tests.originals.programs import ask_lines
from tests.originals.random_pods import has_defaults, without_resize
from watcher.core.kubernetes.objects import Node, Pod

NOW = 1_900_000_000.0
RELATIVE_TIME = re.compile(r'"@(-?\d+)"')

SCHEDULING = ("filter", "score")

Answer = dict[str, Any]
"""{"code", "reason", "score"}, or {"error"}."""


def with_times(case: Case) -> Case:
    """The case with times relative to NOW."""

    def as_time(match: re.Match[str]) -> str:
        return json.dumps(datetime.fromtimestamp(NOW + int(match[1]), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))

    found: Case = json.loads(RELATIVE_TIME.sub(as_time, json.dumps(case)))
    return found


def ask_product(case: Case) -> Answer:
    """The answer of load-watcher's plug-in."""
    try:
        return _evaluate(with_times(case))
    except ValueError as error:  # ArgumentsError, or an object with an invalid quantity
        return {"error": str(error)}


def _evaluate(case: Case) -> Answer:
    table = ClusterTable()
    args = {**case["args"], "nodeMetricSource": "cluster"}
    plugin = PluginSettings("LoadAwareScheduling", 1, args, ("filter", "score"))
    profile = ProfileRunner(ProfileSettings("compared", (plugin,)), table)
    table.set_node(NODE, msgspec.convert(case["node"], Node))
    if case["nodeMetric"] is not None:
        table.set_node_metric(NODE, read_node_metric(msgspec.convert(case["nodeMetric"], NodeMetricObject)))
    for each in case["pods"]:
        table.set_pod(None, msgspec.convert(each, Pod), now=NOW)
    for each in case["reserved"]:
        table.reserve(msgspec.convert(each, Pod), NODE, now=NOW, until=NOW + 60)
    pod = pod_info(msgspec.convert(case["pod"], Pod))
    rows = np.array([table.row[NODE]], dtype=np.int64)
    ((_, verdicts),) = profile.filter(pod, rows, now=NOW).parts
    ((_, scores),) = profile.rank(pod, rows, now=NOW).parts
    code = int(verdicts.codes[0])
    return {
        "code": "Unschedulable" if code else "Success",
        "reason": verdicts.reasons[code],
        "score": int(scores.values[0]),
    }


class LoadAwareSchedulingComparison(CaseComparison):
    """Compares filter and score of a single node."""

    name = "LoadAwareScheduling"
    default_cases = 2000

    def generate(self, source: random.Random) -> Case:
        return random_case(source)

    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[Answer]:
        return ask_lines(program, cases, "schedule")

    def compare(self, case: Case, original: Answer) -> Iterator[Outcome]:
        """Whether the arguments are valid, and if both programs accept them, the filter and the score."""
        product = ask_product(case)
        yield Outcome("arguments", case, _acceptance(original), _acceptance(product), context=(original, product))
        if "error" in original or "error" in product:
            return
        for check in SCHEDULING:
            yield Outcome(check, case, _part(check, original), _part(check, product), context=(original, product))

    def is_valid(self, case: Case) -> bool:
        """Names are needed to find the objects again."""
        pods = [*case["pods"], *case["reserved"], case["pod"]]
        named = all({"name", "uid"} <= each.get("metadata", {}).keys() and has_defaults(each) for each in pods)
        bound = all(each.get("spec", {}).get("nodeName") for each in case["pods"])
        objects = [case["node"], *([case["nodeMetric"]] if case["nodeMetric"] is not None else [])]
        return named and bound and all(each.get("metadata", {}).get("name") for each in objects)


def _acceptance(answer: Answer) -> str:
    return "refused" if "error" in answer else "accepted"


def _part(check: str, answer: Answer) -> Any:
    return answer["score"] if check == "score" else [answer["code"], answer.get("reason", "")]


# --- documented differences ------------------------------------------------------------------------------------------


def _answer(case: Case, outcome: Outcome) -> Any:
    product = ask_product(case)
    return None if "error" in product else _part(outcome.check, product)


def _without_placeholders(case: Case, _: Outcome) -> Case:
    for each in (*case["pods"], *case["reserved"]):
        each["metadata"].get("annotations", {}).pop(RESERVE_POD, None)
    return case


def _without_resizes(case: Case, _: Outcome) -> Case:
    return {**case, "pods": [without_resize(each) for each in case["pods"]]}


INVALID_THRESHOLDS = ('"cpu":-5', '"memory":150', "p42", "-5m")
INVALID_FACTORS = ('"cpu":-10', '"memory":2000')


def _ignores_node_annotation(outcome: Outcome) -> bool:
    """The node has an invalid annotation, and load-watcher's answer is the same without it."""
    changed = copy_of(outcome.case)
    annotation = changed["node"]["metadata"].get("annotations", {}).pop(THRESHOLDS, "")
    return any(text in annotation for text in INVALID_THRESHOLDS) and _answer(changed, outcome) == outcome.product


def _ignores_pod_annotation(outcome: Outcome) -> bool:
    """A pod has an invalid annotation, and load-watcher's answer is the same without it."""
    changed, found = copy_of(outcome.case), False
    for each in (*changed["pods"], *changed["reserved"], changed["pod"]):
        annotations = each["metadata"].get("annotations", {})
        if any(text in annotations.get(FACTORS, "") for text in INVALID_FACTORS):
            found = bool(annotations.pop(FACTORS))
    return found and _answer(changed, outcome) == outcome.product


def _is_stricter(outcome: Outcome) -> bool:
    """load-watcher refuses arguments that Koordinator does not check."""
    if outcome.product != "refused":
        return False
    problem = outcome.context[1]["error"]
    unchecked = ("prodUsageThresholds.", "estimatedSecondsAfterPodScheduled:", "estimator: unknown")
    return any(text in problem for text in unchecked)


LOAD_AWARE = "pkg/scheduler/plugins/loadaware"

CLASSES = (
    DifferenceClass(
        "Placeholder pods of reservations",
        f"{LOAD_AWARE}/pod_assign_cache.go:290; changed after v1.8.0 by koordinator-sh/koordinator#2921",
        "a placeholder uses nothing; load-watcher follows the version after v1.8.0",
        explained_by(_answer, _without_placeholders),
        SCHEDULING,
    ),
    DifferenceClass(
        "An invalid annotation `scheduling.koordinator.sh/usage-thresholds` of a node is ignored as a whole",
        f"{LOAD_AWARE}/helper.go:83 (GetCustomUsageThresholds)",
        "Koordinator does not check it: it rejects the node for every pod if a threshold is below 0",
        _ignores_node_annotation,
        ("filter",),
    ),
    DifferenceClass(
        "A pod's annotation with an estimated scaling factor outside 0 to 1000 is ignored",
        f"{LOAD_AWARE}/estimator/default_estimator.go:60 (GetCustomEstimatedScalingFactors)",
        "Koordinator does not check it: a negative factor makes the load of the node smaller",
        _ignores_pod_annotation,
        SCHEDULING,
    ),
    DifferenceClass(
        "A pod with an in-place resize is estimated from the larger of its old and new resources",
        f"{LOAD_AWARE}/estimator/default_estimator.go:75 (PodRequests without UseStatusResources)",
        "load-watcher counts a pod as kube-scheduler does until the resize is complete",
        explained_by(_answer, _without_resizes, _without_placeholders),
        SCHEDULING,
    ),
    DifferenceClass(
        "Arguments that Koordinator does not check are errors",
        "pkg/scheduler/apis/config/validation/validation_pluginargs.go:32; estimator/types.go",
        "a threshold for prod pods outside 0 to 100, a negative period or an unknown estimator is an error",
        _is_stricter,
        ("arguments",),
    ),
)
