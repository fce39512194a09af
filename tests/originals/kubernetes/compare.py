"""Requests and limits of pods, in-place resizes included: component-helpers of Kubernetes and load-watcher."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scorers.cluster.pods import pod_info
from tests.originals.frame import Case, CaseComparison, Original, Outcome
from tests.originals.programs import ask_lines
from tests.originals.random_pods import COMPUTE, GPU, chance, pod
from watcher.core.kubernetes.objects import Pod


class PodAmountsComparison(CaseComparison):
    """Compares the requests, the requests that scoring counts, and the limits of a pod."""

    name = "amounts"
    default_cases = 5000

    def generate(self, source: random.Random) -> Case:
        """A pod; nine of ten are on a node, where a resize can be under way."""
        return pod(source, "p", node="n" if chance(source, 0.9) else "", names=(*COMPUTE, GPU))

    def ask_original(self, program: Path, cases: Sequence[Case]) -> list[dict[str, Any]]:
        return ask_lines(program, cases)

    def compare(self, case: Case, original: dict[str, Any]) -> Iterator[Outcome]:
        info = pod_info(msgspec.convert(case, Pod))
        found = {"requests": info.requests, "counted": info.counted_requests, "limits": info.limits}
        for check, amounts in found.items():
            yield Outcome(check, case, _not_zero(original[check]), _not_zero(amounts))

    def is_valid(self, case: Case) -> bool:
        """Statuses are found by the names of their containers, which a spec has once."""
        spec = case.get("spec", {})
        containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
        names = [each.get("name") for each in containers]
        return bool(names) and None not in names and len(set(names)) == len(names)


def _not_zero(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}


ORIGINAL = Original("kubernetes", "k8s.io/component-helpers v0.36.3", (PodAmountsComparison(),), ())
