"""Two responses are read, and their differences added up."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.compare.comparison import Comparison, ServiceLoads, read_answer, winners
from scorers.plugins.target_load_packing import packing_scores

SCORES = partial(packing_scores, target=40.0)

Loads = dict[str, dict[tuple[str, str], float]]


def body(nodes: Loads, *, end: int = 1_700_000_000) -> bytes:
    document: dict[str, Any] = {
        "timestamp": end + 1,
        "window": {"duration": "15m", "start": end - 900, "end": end},
        "source": "Prometheus",
        "data": {
            "NodeMetricsMap": {
                name: {
                    "metrics": [
                        {"name": "x", "type": kind, "operator": operator, "rollup": "15m", "value": value}
                        for (kind, operator), value in loads.items()
                    ]
                }
                for name, loads in nodes.items()
            }
        },
    }
    return json.dumps(document).encode()


def answer(nodes: Loads) -> ServiceLoads:
    return read_answer(body(nodes))


def cpu(value: float) -> dict[tuple[str, str], float]:
    return {("CPU", "AVG"): value, ("CPU", "STD"): 1.0, ("Memory", "AVG"): 50.0, ("Memory", "STD"): 1.0}


def compared(*pairs: tuple[Loads, Loads], tolerance: float = 5.0) -> Comparison:
    comparison = Comparison(SCORES, tolerance)
    for ours, theirs in pairs:
        comparison.add(answer(ours), answer(theirs))
    return comparison


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.floats(0, 100), min_size=1))
def test_equal_responses_have_no_difference(loads: dict[str, float]) -> None:
    """For any nodes and loads."""
    nodes = {name: cpu(load) for name, load in loads.items()}
    comparison = compared((nodes, nodes))
    assert comparison.differences_in_words() == ()
    assert comparison.winners[0] == comparison.winners[1] != ()


def test_each_kind_of_difference_is_reported() -> None:
    """Nodes on one side, a metric on one side, different values, another chosen node."""
    ours = {"a": cpu(40), "b": cpu(10), "only-here": cpu(5), "d": cpu(20)}
    theirs = {"a": cpu(10), "b": cpu(40), "only-there": cpu(5), "d": {("CPU", "AVG"): 24.9}}
    assert compared((ours, theirs)).differences_in_words() == (
        "1 node known only to this service: only-here",
        "1 node known only to the other service: only-there",
        "CPU AVG of 2 nodes differs by more than 5 points: a, b",
        "CPU STD of 1 node only from this service: d",
        "Memory AVG of 1 node only from this service: d",
        "Memory STD of 1 node only from this service: d",
        "TargetLoadPacking would choose other nodes",
    )


def test_a_difference_counts_if_more_than_half_of_the_comparisons_have_it() -> None:
    """Not a node that appears a tick later on one side, or a load that changes between two windows."""
    one, two = {"a": cpu(10), "b": cpu(40)}, {"a": cpu(40)}
    assert compared((one, one), (one, two)).differences_in_words() == ("TargetLoadPacking would choose other nodes",)
    assert compared((one, one), (one, one), (one, two)).differences_in_words() == ()
    twice = compared((one, one), (one, two), (one, two))
    assert twice.differences_in_words()[0] == "1 node known only to this service: b"
    assert twice.differences["CPU", "AVG"].largest == 30.0
    assert twice.differences["CPU", "AVG"].largest_of == "a"


def test_one_common_best_node_is_an_agreement() -> None:
    """kube-scheduler selects any of the best; 38 and 38.2 percent both round to 97."""
    comparison = compared(({"a": cpu(38), "b": cpu(38.2)}, {"a": cpu(20), "b": cpu(38.1)}))
    assert comparison.winners == (("a", "b"), ("b",))
    assert comparison.same_winner == 1


def test_the_variants_of_the_go_service_are_read() -> None:
    """No rollup, null where a list could be, other types, several CPU metrics of which the last counts, ..."""
    found = read_answer(
        b'{"timestamp":1,"window":{"duration":"15m","start":1,"end":2},"source":"Datadog","extra":[1],"data":'
        b'{"NodeMetricsMap":{"a":{"metrics":[{"type":"CPU","operator":"AVG","value":1},'
        b'{"type":"CPU","operator":"Latest","value":7.5},{"type":"Bandwidth","operator":"AVG","value":1e9},'
        b'{"type":"CPU","operator":"STD","value":null}]},"b":{"metrics":null},"c":null}}}'
    )
    assert found.packing == {"a": 7.5}
    assert found.values["CPU", "AVG"] == {"a": 1.0}
    assert found.values["CPU", "STD"] == {"a": 0.0}
    assert found.nodes == {"a"}
    assert winners(found, SCORES) == ("a",)


def test_without_an_average_the_latest_value_counts() -> None:
    """As in the plug-ins."""
    found = answer({"a": {("CPU", "Latest"): 3.0, ("Memory", "Latest"): 4.0}, "b": {("CPU", "AVG"): 5.0}})
    assert found.values["CPU", "AVG"] == {"a": 3.0, "b": 5.0}
    assert found.values["Memory", "AVG"] == {"a": 4.0}


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"data":{"NodeMetricsMap":{"a":{"metrics":[{"type":"CPU","operator":"AVG","value":NaN}]}}}}',
        b'{"data":{"NodeMetricsMap":{"a":{"metrics":[{"type":"CPU","operator":"AVG","value":"7"}]}}}}',
    ],
)
def test_a_response_that_the_plugins_discard_is_an_error(broken: bytes) -> None:
    """With one NaN, each scheduler has no load; such a service must not count as equal."""
    with pytest.raises(ValueError, match="would reject it"):
        read_answer(broken)


@pytest.mark.parametrize("empty", [b"{}", b'{"data":{"NodeMetricsMap":null}}', body({"a": {("Memory", "AVG"): 1.0}})])
def test_a_response_without_any_cpu_is_an_error(empty: bytes) -> None:
    """Each node would score 0."""
    with pytest.raises(ValueError, match="no CPU load"):
        read_answer(empty)
