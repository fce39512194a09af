"""Records of decisions: built from arrays, encoded and decoded, and as sentences."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from scorers.decisions import records
from scorers.decisions.documents import (
    ASKED_AGAIN,
    BOUND,
    DELETED,
    PENDING,
    UNKNOWN,
    OutcomeState,
    decision_document,
    ordinal,
    outcome_sentence,
)
from scorers.decisions.records import (
    BEST_NODES,
    FilterRecord,
    PlacementDecision,
    PlacementOutcome,
    RankedNodes,
    RankingRecord,
)
from scorers.plugin_api.framework import Scores, Verdicts
from scorers.profiles.profiles import PluginSettings
from scorers.profiles.ranking import FilterResult, RankResult
from tests.scorers.simulated_cluster import NOW, info

numbers = st.floats() | st.floats(0, 100)  # NaN and infinities included
scores = st.floats(0, 100) | st.sampled_from([0.0, 50.0, 100.0])
texts = st.text(max_size=10)


def saying(text: str) -> Callable[[int], str]:
    return lambda i: f"{text} {i}"


@st.composite
def rankings(draw: st.DrawFn) -> tuple[RankResult, list[str], np.ndarray[Any, Any]]:
    """Any number of nodes with any names, equal scores, and steps that are unknown, infinite or not floats."""
    names = draw(st.lists(texts, max_size=30, unique=True))
    n = len(names)

    def column(of: st.SearchStrategy[Any], kind: Any = np.float64) -> np.ndarray[Any, Any]:
        return np.array(draw(st.lists(of, min_size=n, max_size=n)), dtype=kind)

    parts = tuple(
        (
            PluginSettings(name, draw(st.integers(1, 10_000)), {}, ("score",)),
            Scores(
                column(numbers),
                {"load %": column(numbers), "bytes": column(st.integers(-(2**63), 2**63 - 1), np.int64)}
                | {"stale": column(st.booleans(), np.bool_)},
                {"a": draw(numbers), "b": {"c": draw(texts), "d": np.float64(draw(numbers))}},
                draw(texts.map(saying)),
            ),
        )
        for name in draw(st.lists(texts, max_size=3))
    )
    return RankResult(column(scores), parts), names, column(numbers)


def a_decision(**what: Any) -> PlacementDecision:
    base = records.new_decision(info("web"), profile="p", time=NOW, columns=None, window="15m", identity="u")
    return msgspec.structs.replace(base, **what)


@given(rankings(), st.sampled_from([10, 100]), st.booleans())
def test_a_decoded_record_is_equal_and_its_document_is_valid_json(found: Any, most: int, withheld: bool) -> None:
    """For any results of plug-ins, values that are not finite are neither stored nor returned."""
    ranked, names, sampled = found
    ranking = records.ranking_record(ranked, names, sampled=sampled, asked=len(names), most=most, withheld=withheld)
    decision = a_decision(ranking=ranking)
    assert decision == records.decode_decision(decision.encode())
    chosen = records.nodes_at([len(names) - 1], ranked, names, sampled=sampled) if names else None
    outcome = PlacementOutcome(BOUND, NOW + 1, names[-1] if names else "x", chosen)
    assert outcome == records.decode_outcome(records.encode_outcome(outcome))
    document = decision_document(decision, OutcomeState(BOUND, outcome), now=NOW + 9)
    json.dumps(msgspec.to_builtins(document), allow_nan=False)


@given(rankings())
def test_the_best_nodes_equal_those_of_a_sort(found: Any) -> None:
    """Equal scores are ordered by name; the rank is 1 plus the number of better nodes."""
    ranked, names, sampled = found
    best = records.ranking_record(ranked, names, sampled=sampled, asked=99, most=10).best
    expected = sorted(range(len(names)), key=lambda i: (-ranked.values[i], names[i]))[:BEST_NODES]
    assert [names[i] for i in expected] == list(best.names)
    assert [1 + int((ranked.values > ranked.values[i]).sum()) for i in expected] == list(best.ranks)


EARLIER: dict[str, Any] = {
    "time": NOW,
    "profile": "p",
    "namespace": "default",
    "name": "web",
    "uid": "u",
    "load": {"source": "Test", "window_end": 1, "age_s": 2.0},
    "filtered": {
        "asked": 3,
        "unknown": 0,
        "passed": 2,
        "plugins": [
            {"name": "A", "rejected": [{"reason": "hot", "count": 1, "nodes": ["n1"], "details": {}}]},
            {"name": "B"},
        ],
    },
}


def test_a_row_of_an_earlier_version_has_the_same_document() -> None:
    """Earlier versions omit empty inputs, rejections and windows, and write empty details."""
    row = zstandard.ZstdCompressor().compress(msgspec.json.encode(EARLIER))
    decision = records.decode_decision(row)
    body = msgspec.json.encode(decision_document(decision, OutcomeState(UNKNOWN), now=NOW))
    document = msgspec.json.decode(body)
    assert document["load"] == EARLIER["load"] | {"window": ""}
    assert document["filter"] == {
        "asked": 3,
        "unknown": 0,
        "passed": 2,
        "reserved": None,
        "plugins": [
            {"name": "A", "inputs": {}, "rejected": [{"reason": "hot", "count": 1, "nodes": ["n1"]}]},
            {"name": "B", "inputs": {}, "rejected": []},
        ],
    }


@given(st.binary(max_size=200))
def test_invalid_bytes_of_a_decision_are_refused(payload: bytes) -> None:
    """Truncated ones, too."""
    whole = a_decision().encode()
    for damaged in (payload, whole[:-1], whole[:20] + payload):
        if damaged != whole:
            with pytest.raises(ValueError, match="invalid stored decision"):
                records.decode_decision(damaged)


def test_verdicts_are_counted_by_reason_with_the_first_names() -> None:
    """By plug-in. A node passes if all plug-ins pass it, or if it is unknown."""
    names = [f"n{i:02d}" for i in range(20)][::-1]
    codes = np.array([1] * 12 + [2] * 2 + [0] * 6)
    verdicts = Verdicts(codes, ("", "hot", "stale"), inputs={"limit": np.inf})
    other = Verdicts(np.array([0] * 13 + [1] * 2 + [0] * 5), ("", "full"))
    parts = tuple((PluginSettings(name), each) for name, each in (("A", verdicts), ("B", other), ("C", verdicts)))
    passed = records.filter_record(FilterResult(parts), names, asked=23)
    assert (23, 3, 8) == (passed.asked, passed.unknown, passed.passed)
    a, b, _ = passed.plugins
    assert {"limit": None} == a.inputs
    assert [("hot", 12, ("n08", "n09", "n10", "n11", "n12")), ("stale", 2, ("n06", "n07"))] == [
        (each.reason, each.count, each.nodes) for each in a.rejected
    ]
    assert [("full", 2, ("n05", "n06"))] == [(each.reason, each.count, each.nodes) for each in b.rejected]


def test_the_resources_of_a_recorded_pod_are_limited() -> None:
    """Otherwise a decision could be as large as a request."""
    asked = {f"example.com/r{i:04d}": str(i) for i in range(5000)}
    pod = info("web", containers=[{"requests": asked}])
    decision = records.new_decision(pod, profile="p", time=NOW, columns=None, window="", identity="u")
    assert records.MOST_RESOURCES == len(decision.requests)


# --- sentences -------------------------------------------------------------------------------------------------------


def ranked(*scores: float, **more: Any) -> RankingRecord:
    names = [f"n{i}" for i in range(len(scores))]
    found = RankResult(np.array(scores), ())
    return records.ranking_record(found, names, sampled=np.full(len(scores), NOW), asked=len(scores), most=10, **more)


FAR = RankedNodes(("n99",), (12.34,), (3456,), (None,), ())
TWELVE = ranked(*[90.0] * 12)


@pytest.mark.parametrize(
    ("what", "became", "expected"),
    [
        ({"ranking": ranked(90, 80)}, "n0", "bound to n0 2.0 s later: ranked 1st of 2 nodes (score 90)"),
        ({"ranking": ranked(90, 90)}, "n1", "bound to n1 2.0 s later: ranked 1st of 2 nodes (score 90, equal to n0)"),
        (
            {"ranking": ranked(64, 61)},
            "n1",
            "bound to n1 2.0 s later: ranked 2nd of 2 nodes (score 61; highest 64 on n0); on the scale 0 to 10 both "
            "scored 6, as did 2 nodes in total, so chance or another plug-in of kube-scheduler decided",
        ),
        (
            {"ranking": ranked(90, 61.25)},
            "n1",
            "bound to n1 2.0 s later: ranked 2nd of 2 nodes (score 61.25; highest 90 on n0): another plug-in or "
            "extender of kube-scheduler outweighed it",
        ),
        (
            {"ranking": ranked(90, 61, withheld=True)},
            "n1",
            "bound to n1 2.0 s later: ranked 2nd of 2 nodes (score 61; highest 90 on n0); kube-scheduler received 0 "
            "for all nodes, because most nodes in its request are unknown",
        ),
        (
            {"ranking": TWELVE},
            PlacementOutcome(BOUND, NOW, "n99", FAR),
            "bound to n99: ranked 3,456th of 12 nodes (score 12.34; highest 90 on n0): another plug-in or extender of "
            "kube-scheduler outweighed it",
        ),
        (
            {"ranking": TWELVE},
            PlacementOutcome(BOUND, NOW, "n99"),
            "bound to n99: not among the extender's best 10 of 12 nodes; rank not recorded",
        ),
        (
            {"ranking": TWELVE},
            PlacementOutcome(BOUND, NOW, "n99", asked=False),
            "bound to n99: the extender did not rank this node: it was not in the request, or it is unknown",
        ),
        (
            {"filtered": FilterRecord(5, 0, 1)},
            PlacementOutcome(BOUND, NOW, "n4"),
            "bound to n4: kube-scheduler requested no scores, because only one node passed the filters",
        ),
        (
            {"filtered": FilterRecord(5, 0, 3)},
            PlacementOutcome(BOUND, NOW, "n4"),
            "bound to n4: kube-scheduler requested no scores, so the extender cannot explain the choice",
        ),
        ({}, PlacementOutcome(DELETED, NOW + 90), "deleted 90.0 s later, before it was bound to any node"),
        (
            {},
            OutcomeState(ASKED_AGAIN, time=NOW + 1.25),
            "not bound after this decision: kube-scheduler called the extender for it again 1.2 s later",
        ),
        ({}, OutcomeState(PENDING), "not bound yet"),
        (
            {"filtered": FilterRecord(5, 0, 0)},
            OutcomeState(PENDING),
            "not bound yet: no node passed the extender's filters",
        ),
        ({}, OutcomeState(UNKNOWN), "unknown: the pod no longer exists, and its outcome was not observed"),
    ],
)
def test_the_outcome_is_a_sentence(what: Any, became: Any, expected: str) -> None:
    """For each possible outcome."""
    if isinstance(became, str):
        became = PlacementOutcome(BOUND, NOW + 2, became)
    if isinstance(became, PlacementOutcome):
        became = OutcomeState(became.kind, became)
    assert expected == outcome_sentence(a_decision(**what), became)


def test_ranks_are_ordinal_numbers() -> None:
    """1st, 2nd, 3rd; 11th, 12th, 13th."""
    expected = {1: "1st", 2: "2nd", 3: "3rd", 4: "4th", 11: "11th", 12: "12th", 13: "13th", 21: "21st", 102: "102nd"}
    assert expected | {1113: "1,113th"} == {number: ordinal(number) for number in (*expected, 1113)}
