"""The documented differences from the Trimaran plug-ins."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from scorers.plugins.load_variation_risk_balancing import LoadVariationRiskBalancing
from scorers.plugins.low_risk_over_commitment import LowRiskOverCommitment
from scorers.plugins.peaks import Peaks
from tests.originals.frame import Case, DifferenceClass, Outcome, copy_of, explained_by
from tests.originals.random_pods import without_resize
from tests.originals.trimaran.product import WATTS, Answer, ask_product, rounded

TRIMARAN = "pkg/trimaran"
PEAKS = (Peaks.name, WATTS)
RISKS = (LoadVariationRiskBalancing.name, LowRiskOverCommitment.name)
NO_RISE_W = 1e-9


# --- changes that give the original's answer -------------------------------------------------------------------------


def _with_missing_means_ignored(case: Case, outcome: Outcome) -> Case:
    """The node alone: the load of a resource without metrics does not count, a mean without value is 0."""
    metrics = case["load"].get(outcome.subject, [])
    known = {kind for kind, operator, _ in metrics if operator != "STD"}
    if outcome.check not in RISKS or known == {"CPU", "Memory"}:
        return case
    zeros = [[kind, "AVG", 0.0] for kind, operator, _ in metrics if operator == "STD" and kind not in known]
    return {
        **case,
        "alone": True,
        "nodes": [each for each in case["nodes"] if each["metadata"]["name"] == outcome.subject],
        "pods": [each for each in case["pods"] if each["spec"]["nodeName"] == outcome.subject],
        "load": {outcome.subject: metrics + zeros} if outcome.subject in case["load"] else {},
    }


def _with_containers_only(case: Case, outcome: Outcome) -> Case:
    """Sidecars as other init containers, no pod-level resources, no resizes."""
    for each in (*case["pods"], case["pod"]):
        each.get("spec", {}).pop("resources", None)
        for container in each.get("spec", {}).get("initContainers", ()):
            container.pop("restartPolicy", None)
    return {**case, "pods": [without_resize(each) for each in case["pods"]]}


def _with_smoothing(case: Case, outcome: Outcome) -> Case:
    return {**case, "smoothed": True} if outcome.check == LowRiskOverCommitment.name else case


def _with_latest_first(case: Case, outcome: Outcome) -> Case:
    """The newest value instead of the mean, where there are both."""
    if outcome.check not in PEAKS:
        return case
    for name, metrics in case["load"].items():
        if any([kind, operator] == ["CPU", "Latest"] for kind, operator, _ in metrics):
            case["load"][name] = [each for each in metrics if each[:2] != ["CPU", "AVG"]]
    return case


def _answer(case: Case, outcome: Outcome) -> Any:
    answer = ask_product(case, Peaks.name if outcome.check in PEAKS else outcome.check)
    if outcome.check == WATTS:
        return rounded(answer["rises"].get(outcome.subject, 0.0))  # upstream: 0 for a node without room
    return answer["scores"][outcome.subject]


# --- Peaks: the same watts, other scores -----------------------------------------------------------------------------


def _peaks_answer(outcome: Outcome) -> Answer | None:
    """The product's answer whose watts equal those of the original, after known changes if necessary, and whose score
    is exact for these watts; None if there is no such answer, or the outcome is not a score of Peaks."""
    if outcome.check != Peaks.name:
        return None
    theirs, ours = outcome.context
    for size in range(3):
        for changes in combinations((_with_latest_first, _with_containers_only), size):
            case = copy_of(outcome.case)
            for change in changes:
                case = change(case, outcome)
            answer = ask_product(case, Peaks.name) if changes else ours
            if all(rounded(theirs["raw"][name] / 1e15) == rounded(watts) for name, watts in answer["rises"].items()):
                return answer if answer["scores"][outcome.subject] == _exact_score(answer, outcome) else None
    return None


def _exact_score(answer: Answer, outcome: Outcome) -> int:
    """The score by the product's rules for the original's costs, which are integers: 0 for a node without cost, 100 if
    all costs are equal."""
    costs = {name: outcome.context[0]["raw"][name] for name in answer["rises"]}
    if outcome.subject not in costs:
        return 0
    lowest, highest = min(costs.values()), max(costs.values())
    if lowest == highest or not _rises(answer):
        return 100
    return int(100 - 100 * (costs[outcome.subject] - lowest) // (highest - lowest))


def _rises(answer: Answer) -> bool:
    return any(abs(watts) >= NO_RISE_W for watts in answer["rises"].values())


def _has_node_without_cost(outcome: Outcome) -> bool:
    answer = _peaks_answer(outcome)
    return answer is not None and answer["rises"].keys() < answer["scores"].keys()


def _has_no_rise(outcome: Outcome) -> bool:
    answer = _peaks_answer(outcome)
    return answer is not None and not _rises(answer)


def _is_rounding(outcome: Outcome) -> bool:
    answer = _peaks_answer(outcome)
    if answer is None or len(answer["rises"]) < len(answer["scores"]):
        return False
    return bool(abs(answer["scores"][outcome.subject] - outcome.original) == 1)


def _is_stricter(outcome: Outcome) -> bool:
    return outcome.check == "arguments" and outcome.original == "accepted" and outcome.product == "refused"


CLASSES = (
    DifferenceClass(
        "Invalid arguments are refused",
        "apis/config/v1/defaults.go:152, 160, 163, 171, 178: invalid values are replaced by defaults",
        "a replaced value hides the error from the user",
        _is_stricter,
    ),
    DifferenceClass(
        "An unknown load counts as the worst of the other nodes",
        f"{TRIMARAN}/resourcestats.go:89; loadvariationriskbalancing.go:117; lowriskovercommitment.go:216",
        "upstream reads a missing mean as 0 and ignores a missing resource, so that a node gains by missing data",
        explained_by(_answer, _with_missing_means_ignored),
    ),
    DifferenceClass(
        "Pods count as in kube-scheduler: sidecars, pod-level resources, in-place resizes",
        f"{TRIMARAN}/resourcestats.go:124; peaks/peaks.go:115",
        "upstream takes the largest init container, and reads neither pod-level resources nor the status",
        explained_by(_answer, _with_containers_only, _with_missing_means_ignored),
    ),
    DifferenceClass(
        "The deviation of a source that does not average is not scaled",
        f"{TRIMARAN}/lowriskovercommitment/lowriskovercommitment.go:220",
        "smoothingWindowSize undoes the averaging of a source; load-watcher knows which source averages",
        explained_by(_answer, _with_smoothing, _with_missing_means_ignored, _with_containers_only),
    ),
    DifferenceClass(
        "Peaks reads the mean where a node has the newest value too",
        f"{TRIMARAN}/peaks/peaks.go:122: the first of AVG and Latest in the response",
        "all plug-ins use the same load",
        explained_by(_answer, _with_latest_first, _with_containers_only),
    ),
    DifferenceClass(
        "Peaks scores a node without metrics, model, capacity or room 0",
        f"{TRIMARAN}/peaks/peaks.go:110, 129, 140, 191: cost 0, the lowest of all",
        "upstream prefers nodes on which it cannot compute the power or the pod does not fit",
        _has_node_without_cost,
    ),
    DifferenceClass(
        "Peaks scores all nodes 100 if no node needs more power",
        f"{TRIMARAN}/peaks/peaks.go:155: all keep the score 0",
        "equal costs have equal scores, whatever the cost is",
        _has_no_rise,
    ),
    DifferenceClass(
        "Peaks: one point of rounding",
        f"{TRIMARAN}/peaks/peaks.go:161: 100 * x / x may be 99.99…, truncated to 99",
        "load-watcher divides first, so that the highest cost scores 0",
        _is_rounding,
    ),
)
