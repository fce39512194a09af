"""The list of decisions through HTTP: newest first, with outcome, reason and rejections; filters, pages, and ETags."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.fakes.decisions import DecisionList
from tests.fakes.service import Protection
from tests.scorers.decisions.test_log import NAMES, Served
from tests.scorers.simulated_cluster import NOW


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    with made.live:
        yield made


def listed(served: Served, **query: str) -> dict[str, Any]:
    answer = served.live.ask(f"/scheduler/placements?{urlencode(query)}")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def outcomes(served: Served, **query: str) -> list[tuple[str, str]]:
    return [(each["pod"]["name"], each["outcome"]) for each in listed(served, **query)["placements"]]


def place_each(served: Served) -> None:
    """Place a pod on the best node, a pod on another node, a pod that all nodes reject, a pod that waits, and a pod
    that is deleted."""
    served.place(*NAMES, pod="best")
    served.event("best", node=listed(served)["placements"][0]["best"])
    served.place(*NAMES, pod="other", after=1)
    served.event("other", node="n01")
    served.place("n00", pod="nowhere", after=1)
    served.event("nowhere")
    served.place(*NAMES, pod="waits", after=1)
    served.event("waits")
    served.place(*NAMES, pod="gone", after=1)
    served.event("gone")
    served.event("gone", node=None)


def test_decisions_are_listed_newest_first_with_their_outcome(served: Served) -> None:
    place_each(served)
    expected = [
        ("gone", "deleted"),
        ("waits", "pending"),
        ("nowhere", "rejected"),
        ("other", "other"),
        ("best", "best"),
    ]
    assert outcomes(served) == expected
    assert outcomes(served, outcome="bound") == [("other", "other"), ("best", "best")]
    for name, outcome in expected:
        assert outcomes(served, outcome=outcome) == [(name, outcome)]
    assert outcomes(served, node="n01") == [("other", "other")]
    assert outcomes(served, pod="OTH", namespace="default") == [("other", "other")]
    assert outcomes(served, namespace="shop") == []
    assert outcomes(served, since=str(served.clock.now - 1.4)) == expected[:1]


def test_an_entry_has_the_reason_in_numbers_and_the_rejections(served: Served) -> None:
    served.place(*NAMES)
    served.event(node="n01")
    (entry,) = listed(served)["placements"]
    assert (NOW, "p", "n01") == (pytest.approx(entry["time"]), entry["profile"], entry["node"])
    assert entry["sentence"] == served.outcome()["sentence"]
    explained = next(each for each in served.why()["decision"]["ranking"]["nodes"] if each["name"] == "n01")
    assert entry["reason"] == "; ".join(f"{each['name']}: {each['reason']}" for each in explained["plugins"])
    assert "would be at 89.8 %" in entry["reason"]
    assert entry["candidates"][0] == entry["best"]
    reason = "node(s) had cpu load above the threshold with the pod"
    example = f"{reason}, n00: cpu 97.5 %, above 90 %"
    assert entry["rejected"] == [{"plugin": "HighLoadFilter", "reason": reason, "count": 1, "example": example}]


def test_a_pod_that_all_nodes_reject_has_the_reason_of_the_filter(served: Served) -> None:
    served.place("n00")
    served.event()
    (entry,) = listed(served)["placements"]
    assert (entry["outcome"], entry["node"], entry["best"]) == ("rejected", None, None)
    assert entry["reason"].endswith("n00: cpu 97.5 %, above 90 %")


def test_an_older_page_has_the_later_decisions_about_its_pods(served: Served) -> None:
    for i in range(5):
        served.place(*NAMES, pod=f"pod-{i}", after=1)
    served.place(*NAMES, pod="pod-0", after=20)
    first = listed(served, limit="3")
    assert ["pod-0", "pod-4", "pod-3"] == [each["pod"]["name"] for each in first["placements"]]
    rest = listed(served, limit="3", before=repr(first["placements"][-1]["time"]))
    assert [("pod-2", "unknown"), ("pod-1", "unknown"), ("pod-0", "asked_again")] == [
        (each["pod"]["name"], each["outcome"]) for each in rest["placements"]
    ]
    assert (True, False) == (first["more"], rest["more"])


def test_an_unchanged_list_is_a_304(served: Served) -> None:
    served.place(*NAMES)
    served.event()
    answer = served.live.ask("/scheduler/placements")
    etag = {"If-None-Match": answer.headers["ETag"]}
    assert served.live.ask("/scheduler/placements", headers=etag).status == 304
    served.event(node="n01")
    assert served.live.ask("/scheduler/placements", headers=etag).status == 200


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("outcome=bund", "did you mean bound?"),
        ("limit=0", "a whole number from 1 to 200"),
        ("since=soon", "use unix seconds"),
        ("pods=web", "did you mean pod?"),
    ],
)
def test_an_invalid_parameter_is_an_error_that_names_it(served: Served, query: str, says: str) -> None:
    answer = served.live.ask(f"/scheduler/placements?{query}")
    assert answer.status == 400
    assert says in answer.json()["error"]["hint"]


def test_without_a_log_or_a_store_the_error_states_it() -> None:
    for store, status, says in (
        (DecisionList(kept=0), 404, 'set store.decisions = "24h" and restart'),
        (DecisionList(), 503, "look at the disk"),
    ):
        served = Served(store=store)
        store.away = "" if status == 404 else "the disk is away"
        with served.live:
            answer = served.live.ask("/scheduler/placements")
            assert (answer.status, answer.json()["error"]["hint"]) == (status, says)


def test_a_token_protects_the_list() -> None:
    served = Served(protection=Protection(token="x"))
    with served.live:
        assert served.live.ask("/scheduler/placements").status == 401


def test_a_pod_without_a_decision_has_the_node_that_it_runs_on(served: Served) -> None:
    served.event(node="n03")
    answer = served.ask(pod="web")
    assert answer.status == 404
    assert answer.json()["pod"] == {"node": "n03", "since": None}
    assert served.ask(pod="nobody").json()["pod"] is None
