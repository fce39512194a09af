"""Hints merged: golden cases of the Topology Manager, and the same as the product of all lists."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.topology import Hint, Hints, Merged, Policy, compare, merge, most_of_narrowest, single_numa_hints
from tests.agent.qrm.vectors import cases


def hint(given: dict[str, Any]) -> Hint:
    return Hint(None if given["nodes"] is None else frozenset(given["nodes"]), given["preferred"])


def provider(given: dict[str, Any] | None) -> Hints | None:
    if given is None:
        return None
    return {resource: None if hints is None else [hint(each) for each in hints] for resource, hints in given.items()}


def merged(case: dict[str, Any]) -> Merged:
    return merge(Policy(case["policy"]), case["numa_nodes"], [provider(each) for each in case["providers"]])


@cases("topology_merge")
def test_merge(case: dict[str, Any]):
    expected = {resource: hint(each) for resource, each in case["expected"].items()}
    assert merged(case) == Merged(expected, case["admit"])


@cases("manager_admit")
def test_admit(case: dict[str, Any]):
    found = merged(case)
    assert found.admit == case["admit"]
    assert found.hints == {resource: hint(each) for resource, each in case["expected"].items()}


@cases("compare_hints")
def test_compare(case: dict[str, Any]):
    current = None if case["current"] is None else hint(case["current"])
    candidate = hint(case["candidate"])
    found = compare(case["best_non_preferred_affinity_count"], current, candidate)
    if case["expected"] == "current":
        assert found == current
    else:
        assert found == candidate


@cases("max_of_min_affinity_counts")
def test_most_of_narrowest(case: dict[str, Any]):
    assert most_of_narrowest([[hint(each) for each in hints] for hints in case["hints"]]) == case["expected"]


@cases("filter_single_numa_hints")
def test_single_numa_hints(case: dict[str, Any]):
    given = [[hint(each) for each in hints] for hints in case["hints"]]
    assert single_numa_hints(given) == [[hint(each) for each in hints] for hints in case["expected"]]


# --- any hints -------------------------------------------------------------------------------------------------------

NODES = (0, 1, 2)
hints = st.builds(Hint, st.none() | st.frozensets(st.sampled_from(NODES)), st.booleans())
providers = st.lists(
    st.none() | st.dictionaries(st.sampled_from("abcd"), st.none() | st.lists(hints, max_size=4), max_size=2),
    max_size=4,
)
merging = st.sampled_from([Policy.BEST_EFFORT, Policy.RESTRICTED, Policy.SINGLE_NUMA_NODE])


def by_product(policy: Policy, given: list[Hints | None]) -> Hint:
    """The rule as it is written down: each combination in turn against the best so far."""
    lists: list[list[Hint]] = []
    for each in given:
        lists += [
            [Hint(None, preferred=True)] if found is None else list(found) or [Hint(None, preferred=False)]
            for found in (each or {"*": None}).values()
        ]
    if policy is Policy.SINGLE_NUMA_NODE:
        lists = single_numa_hints(lists)
    needed, best = most_of_narrowest(lists), None
    for combination in itertools.product(*lists):
        masks = [each.nodes for each in combination if each.nodes is not None]
        common = frozenset(NODES).intersection(*masks)
        preferred = all(each.preferred for each in combination) and len(set(masks)) <= 1
        best = compare(needed, best, Hint(common, preferred))
    best = best or Hint(frozenset(NODES), preferred=False)
    if policy is Policy.SINGLE_NUMA_NODE and best.nodes == frozenset(NODES):
        return Hint(None, best.preferred)
    return best


@given(merging, providers)
def test_the_same_as_the_product_of_all_lists(policy: Policy, given: list[Hints | None]):
    found = merge(policy, NODES, given)
    assert set(found.hints.values()) == {by_product(policy, given)}
    assert found.admit == (policy is Policy.BEST_EFFORT or by_product(policy, given).preferred)


@given(merging, providers, st.randoms())
def test_the_order_of_providers_does_not_matter(policy: Policy, given: list[Hints | None], random: Any):
    shuffled = list(given)
    random.shuffle(shuffled)
    assert set(merge(policy, NODES, given).hints.values()) == set(merge(policy, NODES, shuffled).hints.values())


def test_more_numa_nodes_than_can_be_weighed_are_refused():
    assert merge(Policy.NONE, range(9), []).admit
    with pytest.raises(ValueError, match="at most 8 NUMA nodes, this machine has 9; use the policy none"):
        merge(Policy.RESTRICTED, range(9), [])


def test_hints_of_a_large_machine_are_merged_without_their_product():
    """Eight nodes, six resources with each of the 255 sets of nodes: the product has 10**14 members."""
    every = [
        Hint(frozenset(nodes), preferred=len(nodes) == 1)
        for size in range(1, 9)
        for nodes in itertools.combinations(range(8), size)
    ]
    found = merge(Policy.RESTRICTED, range(8), [{f"r{i}": every} for i in range(6)])
    assert found.admit
    assert set(found.hints.values()) == {Hint(frozenset({0}), preferred=True)}
