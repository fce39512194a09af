"""Which stored decisions a query selects."""

from typing import Any

import pytest

from watcher.core.decisions import DecisionQuery, StoredDecision

DECISION = StoredDecision(100, "shop", "web-1", "u", b"", node="n1")


@pytest.mark.parametrize(
    ("query", "matches"),
    [
        ({}, True),
        ({"kind": "shadow"}, False),
        ({"pod": ("shop", "web-1")}, True),
        ({"pod": ("shop", "web-2")}, False),
        ({"pod": ("default", "web-1")}, False),
        ({"namespace": "shop"}, True),
        ({"namespace": "default"}, False),
        ({"part": "eb-"}, True),
        ({"part": "db"}, False),
        ({"node": "n1"}, True),
        ({"node": "n2"}, False),
        ({"start": 100, "end": 101}, True),
        ({"start": 101}, False),
        ({"end": 100}, False),
    ],
    ids=str,
)
def test_a_query_selects_by_each_of_its_fields(query: dict[str, Any], matches: bool):
    assert matches == DecisionQuery(**{"kind": "placement", "limit": 1, **query}).matches(DECISION)


def test_a_query_without_other_fields_is_for_the_newest_decisions_of_all_times():
    query = DecisionQuery(kind="placement", limit=1)
    assert (True, 0, 2**63 - 1) == (query.newest, query.start, query.end)
