"""The Trimaran plug-ins of scheduler-plugins and of load-watcher: the score of each node, and for Peaks its watts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.originals.frame import Case, CaseComparison, Original, Outcome
from tests.originals.programs import ask_lines
from tests.originals.random_pods import has_defaults
from tests.originals.trimaran.cases import body, random_case
from tests.originals.trimaran.classes import CLASSES
from tests.originals.trimaran.product import WATTS, Answer, ask_product, rounded


class TrimaranComparison(CaseComparison):
    """Compares the scores of each node. The context of an outcome has both answers for the plug-in."""

    name = "scores"
    default_cases = 800

    def generate(self, source: random.Random) -> Case:
        return random_case(source)

    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[dict[str, Answer]]:
        return ask_lines(program, [{**case, "watcher": body(case)} for case in cases])

    def compare(self, case: Case, original: dict[str, Answer]) -> Iterator[Outcome]:
        """For each plug-in, whether its arguments are valid; if both programs accept them, the score of each node."""
        for plugin, theirs in original.items():
            ours = ask_product(case, plugin)
            accepted = ["refused" if "error" in each else "accepted" for each in (theirs, ours)]
            yield Outcome("arguments", case, accepted[0], accepted[1], subject=plugin, context=(theirs, ours))
            if "refused" in accepted:
                continue
            for name, score in ours["scores"].items():
                yield Outcome(plugin, case, theirs["final"][name], score, subject=name, context=(theirs, ours))
            for name, watts in ours["rises"].items():
                yield Outcome(WATTS, case, rounded(theirs["raw"][name] / 1e15), rounded(watts), subject=name)

    def is_valid(self, case: Case) -> bool:
        """Names are needed to find the objects again; pods of deleted nodes would not."""
        nodes = {each.get("metadata", {}).get("name") for each in case["nodes"]}
        pods = [*case["pods"], case["pod"]]
        named = all({"name", "namespace", "uid"} <= each.get("metadata", {}).keys() for each in pods)
        named = named and all(map(has_defaults, pods))
        placed = {each.get("spec", {}).get("nodeName") for each in case["pods"]}
        complete = all(len(each) == 3 for of in case["load"].values() for each in of)
        return bool(nodes) and None not in nodes and named and placed <= nodes and complete and len(case["args"]) > 0


ORIGINAL = Original("trimaran", "sigs.k8s.io/scheduler-plugins v0.34.7", (TrimaranComparison(),), CLASSES)
