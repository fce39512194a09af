"""Compares Crane's agent with its emulator (tests/reference/crane) and with the agent of this project.

The emulator must give the same answers; classes.py defines which differences of the agent are documented.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.originals.crane import cases, policies
from tests.originals.crane.answers import (
    PoliciesRefusedError,
    agent_decisions,
    agent_order,
    agent_plan,
    decided,
    emulated_decisions,
    emulated_order,
    emulated_plans,
    original_decision,
    original_plan,
    shown,
    triggered_part,
)
from tests.originals.crane.classes import AGENT, CLASSES, EMULATOR
from tests.originals.frame import Case, CaseComparison, Original, Outcome
from tests.originals.programs import ask_lines


class CraneComparison(CaseComparison):
    """A comparison whose cases the program reads as Kubernetes objects."""

    def ask_original(self, program: Path, cases_: Sequence[Case]) -> list[Any]:
        answers = ask_lines(program, [self.question(case) for case in cases_])
        if wrong := [each["error"] for each in answers if each.get("error")]:
            raise RuntimeError(f"{program.name} refuses a case: {wrong[0]}")
        return answers

    def question(self, case: Case) -> Case:
        """The case as the program reads it."""
        return cases.objects(case)

    def is_valid(self, case: Case) -> bool:
        return cases.is_valid(case)


class Sorters(CraneComparison):
    """The order of pods."""

    name = "sorters"
    default_cases = 1_000

    def generate(self, source: random.Random) -> Case:
        return cases.sort_case(source)

    def compare(self, case: Case, original: Any) -> Iterator[Outcome]:
        order = original.get("order", [])
        yield Outcome(f"{EMULATOR}: order of {case['sorter']}", case, order, emulated_order(case))
        yield Outcome(f"{AGENT}: order of {case['sorter']}", case, order, agent_order(case))


class Plans(CraneComparison):
    """Evictions and quotas."""

    name = "plans"
    default_cases = 1_500

    def generate(self, source: random.Random) -> Case:
        return cases.plan_case(source)

    def compare(self, case: Case, original: Any) -> Iterator[Outcome]:
        made = original_plan(case, original)
        emulated = [shown(case, each) for each in emulated_plans(case)]
        yield Outcome(f"{EMULATOR}: {case['kind']}", case, made, made if made in emulated else emulated[0])
        if case["kind"] == "evict" or not case["failing"]:  # the agent makes its plan before a write fails
            yield Outcome(f"{AGENT}: {case['kind']}", case, decided(made), agent_plan(case))


class Cycles(CraneComparison):
    """Decisions of the analyzer in successive cycles."""

    name = "cycles"
    default_cases = 500

    def generate(self, source: random.Random) -> Case:
        return policies.cycles_case(source)

    def question(self, case: Case) -> Case:
        return cases.objects(policies.for_original(case))

    def is_valid(self, case: Case) -> bool:
        return cases.is_valid(case) and policies.is_valid(case)

    def compare(self, case: Case, original: Any) -> Iterator[Outcome]:
        decisions = [original_decision(each) for each in original["cycles"]]
        yield Outcome(f"{EMULATOR}: cycles", case, decisions, emulated_decisions(case))
        try:
            answers = agent_decisions(case)
        except PoliciesRefusedError as error:  # a reduced case may be invalid for the agent only
            answers = [{"error": str(error)} for _ in decisions]
        pairs = zip(map(triggered_part, decisions), answers, strict=True)
        for number, (expected, found) in enumerate(pairs):
            yield Outcome(f"{AGENT}: triggered rules", case, expected, found, f"cycle {number}", number)


ORIGINAL = Original(
    name="crane",
    version="github.com/gocrane/crane v0.11.0",
    comparisons=(Sorters(), Plans(), Cycles()),
    classes=CLASSES,
)
