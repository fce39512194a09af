"""The documented differences between Crane's agent and the agent of this project.

Each class is a fault of Crane that the emulator can leave out (tests/reference/crane/faults.py). It explains a
difference if the emulator without all faults decides exactly as the agent does, and the emulator stops giving the
answer of Crane when this fault is repaired after those before it.
"""

from __future__ import annotations

import json
from functools import lru_cache, partial
from typing import Any

from tests.originals.crane.answers import (
    decided,
    emulated_decisions,
    emulated_order,
    emulated_plans,
    shown,
    triggered_part,
)
from tests.originals.frame import DifferenceClass, Outcome
from tests.reference.crane.faults import REPAIRED, CraneFault

EMULATOR, AGENT = "emulator", "agent"


def _is_reason(fault: CraneFault, outcome: Outcome) -> bool:
    if not outcome.check.startswith(AGENT):
        return False
    return _reason(json.dumps([outcome.case, outcome.context, outcome.original, outcome.product])) is fault


@lru_cache(maxsize=100)
def _reason(outcome_text: str) -> CraneFault | None:
    """The fault that explains the difference between the answer of Crane and that of the agent."""
    case, cycle, original, product = json.loads(outcome_text)
    text = json.dumps(case)

    def answers(repaired: frozenset[CraneFault]) -> list[Any]:
        found = _emulated(text, repaired)
        return found if cycle is None else [triggered_part(each[cycle]) for each in found]

    if original not in answers(frozenset()) or any(each != product for each in answers(REPAIRED)):
        return None
    repaired: frozenset[CraneFault] = frozenset()
    for fault in CraneFault:
        repaired |= {fault}
        if original not in answers(repaired):
            return fault
    return None


@lru_cache(maxsize=1_000)
def _emulated(case_text: str, repaired: frozenset[CraneFault]) -> list[Any]:
    """The possible answers of the emulator to a case, as JSON: one for each order of the metrics."""
    case = json.loads(case_text)
    if case["kind"] == "cycles":
        return [emulated_decisions(case, repaired)]
    if case["kind"] == "sort":
        return [emulated_order(case, repaired)]
    return [decided(shown(case, made)) for made in emulated_plans(case, repaired)]


CLASSES = tuple(
    DifferenceClass(fault.sentence, fault.citation, fault.reason, partial(_is_reason, fault)) for fault in CraneFault
)
