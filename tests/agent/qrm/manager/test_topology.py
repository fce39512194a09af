"""Merged hints: golden cases of the Topology Manager, and equality with the product of all lists."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.manager.topology import (
    ANYWHERE,
    IMPOSSIBLE,
    Hint,
    Hints,
    Merged,
    TopologyPolicy,
    merge,
    most_of_narrowest,
    single_numa_hints,
)
from tests.agent.qrm.manager.hint_order import compare
from tests.agent.qrm.vectors import cases


def hint(given: dict[str, Any]) -> Hint:
    return Hint(None if given["nodes"] is None else frozenset(given["nodes"]), given["preferred"])


def provider(given: dict[str, Any] | None) -> Hints | None:
    if given is None:
        return None
    return {resource: None if hints is None else [hint(each) for each in hints] for resource, hints in given.items()}


def merged(case: dict[str, Any]) -> Merged:
    return merge(TopologyPolicy(case["policy"]), case["numa_nodes"], [provider(each) for each in case["providers"]])


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
merging = st.sampled_from([TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED, TopologyPolicy.SINGLE_NUMA_NODE])


def collected(given: list[Hints | None]) -> list[tuple[str, list[Hint]]]:
    return [
        (resource, [ANYWHERE] if found is None else list(found) or [IMPOSSIBLE])
        for each in given
        for resource, found in (each or {"*": None}).items()
    ]


def by_product(policy: TopologyPolicy, given: list[Hints | None]) -> Hint:
    """The rule as documented: each combination in turn, compared with the best one so far."""
    lists = [found for _, found in collected(given)]
    if policy is TopologyPolicy.SINGLE_NUMA_NODE:
        lists = single_numa_hints(lists)
    needed, best = most_of_narrowest(lists), None
    for combination in itertools.product(*lists):
        masks = [each.nodes for each in combination if each.nodes is not None]
        common = frozenset(NODES).intersection(*masks)
        preferred = all(each.preferred for each in combination) and len(set(masks)) <= 1
        best = compare(needed, best, Hint(common, preferred))
    best = best or Hint(frozenset(NODES), preferred=False)
    if policy is TopologyPolicy.SINGLE_NUMA_NODE and best.nodes == frozenset(NODES):
        return Hint(None, best.preferred)
    return best


@given(merging, providers)
def test_the_merged_hint_equals_that_of_the_product_of_all_lists(policy: TopologyPolicy, given: list[Hints | None]):
    found = merge(policy, NODES, given)
    assert set(found.hints.values()) == {by_product(policy, given)}
    assert found.admit == (policy is TopologyPolicy.BEST_EFFORT or by_product(policy, given).preferred)


def numeric_by_product(given: list[Hints | None], aligned: str) -> Merged:
    """That policy as it is written down (reference/qrm.md §4.5): the first of the best combinations."""
    lists = collected(given)
    if not lists:
        return Merged({"*": ANYWHERE}, admit=True)
    if any(found is not None and not found for provider in given for found in (provider or {}).values()):
        return Merged({}, admit=False)
    best: tuple[int, int] | None = None
    chosen: tuple[Hint, ...] = ()
    for combination in itertools.product(*(found for _, found in lists)):
        named = list(zip((resource for resource, _ in lists), combination, strict=True))
        sets = sorted((each.nodes for each in combination if each.nodes is not None), key=len)
        nested = all(one <= other for one, other in itertools.pairwise(sets))
        if not nested or not agree([each for resource, each in named if resource in aligned]):
            continue
        free = sum(each.preferred for resource, each in named if resource not in aligned)
        cost = -free, max(len(each.nodes or ()) for each in combination)
        if best is None or cost < best:
            best, chosen = cost, combination
    if best is None:
        return Merged({}, admit=False)
    return Merged({resource: each for (resource, _), each in zip(lists, chosen, strict=True)}, admit=True)


def agree(hints: list[Hint]) -> bool:
    """The resources that are to be aligned, in their order."""
    for one, other in itertools.pairwise(hints):
        if one.nodes is None and other.nodes is None:
            if one.preferred != other.preferred:
                return False
        elif one.nodes is None or other.nodes is None:
            if not (one.preferred if one.nodes is None else other.preferred):
                return False
        elif one.nodes != other.nodes:
            return False
    return not hints or any(each.preferred for each in hints[-2:])


@given(providers, st.sampled_from(["", "a", "ab", "bd", "abcd"]))
def test_the_numeric_hint_equals_that_of_the_product_of_all_lists(given: list[Hints | None], aligned: str):
    assert merge(TopologyPolicy.NUMERIC, NODES, given, aligned=list(aligned)) == numeric_by_product(given, aligned)


def test_numeric_refuses_an_empty_list_but_admits_a_hint_without_nodes():
    card = Hint(None, preferred=False)
    assert merge(TopologyPolicy.NUMERIC, NODES, [{"gpu": []}]) == Merged({}, admit=False)
    assert merge(TopologyPolicy.NUMERIC, NODES, [{"gpu": [card]}]) == Merged({"gpu": card}, admit=True)
    assert merge(TopologyPolicy.NUMERIC, NODES, [{"cpu": [card]}]) == Merged({}, admit=False)


@given(merging, providers, st.randoms())
def test_the_order_of_providers_does_not_matter(policy: TopologyPolicy, given: list[Hints | None], random: Any):
    shuffled = list(given)
    random.shuffle(shuffled)
    assert set(merge(policy, NODES, given).hints.values()) == set(merge(policy, NODES, shuffled).hints.values())


def test_numeric_refuses_more_than_eight_numa_nodes():
    assert merge(TopologyPolicy.NONE, range(9), []).admit
    with pytest.raises(ValueError, match="at most 8 NUMA nodes, but this machine has 9; use the policy best-effort"):
        merge(TopologyPolicy.NUMERIC, range(9), [])


@pytest.mark.parametrize("policy", [TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED])
def test_hints_of_64_numa_nodes_are_merged(policy: TopologyPolicy):
    """The number of compared sets is bounded, whatever a plug-in offers."""
    pairs = [Hint(frozenset(nodes), preferred=True) for nodes in itertools.combinations(range(64), 2)]
    single = [Hint(frozenset({node}), preferred=True) for node in range(64)]
    same = merge(policy, range(64), [{"cpu": pairs, "memory": pairs, "NIC": None}])
    assert set(same.hints.values()) == {Hint(frozenset({0, 1}), preferred=True)}
    apart = merge(policy, range(64), [{"cpu": pairs[::-1], "memory": single, "disk": pairs}])
    assert set(apart.hints.values()) == {Hint(frozenset({0}), preferred=False)}
    assert apart.admit is (policy is TopologyPolicy.BEST_EFFORT)


def every_set(preferred: int = 1) -> list[Hint]:
    """All sets of nodes of a large machine; those of the smallest size are preferred."""
    return [
        Hint(frozenset(nodes), preferred=len(nodes) == preferred)
        for size in range(1, 9)
        for nodes in itertools.combinations(range(8), size)
    ]


LARGE = {"cpu": every_set(), "memory": every_set(), **{f"r{i}": every_set(2) for i in range(4)}}
"""Eight nodes, six resources with each of the 255 sets of nodes: the product has 10**14 members, too many to enumerate,
even restricted to sets that contain each other.
"""


@pytest.mark.parametrize("policy", [TopologyPolicy.BEST_EFFORT, TopologyPolicy.RESTRICTED])
def test_hints_of_a_large_machine_are_merged_without_their_product(policy: TopologyPolicy):
    """The single nodes and the pairs are all different: the result is not preferred, on as few nodes as all need."""
    found = merge(policy, range(8), [LARGE])
    assert found == Merged(
        dict.fromkeys(LARGE, Hint(frozenset({0}), preferred=False)), policy is TopologyPolicy.BEST_EFFORT
    )
    same = merge(policy, range(8), [dict.fromkeys(LARGE, every_set(3))])
    assert set(same.hints.values()) == {Hint(frozenset({0, 1, 2}), preferred=True)}


def test_numeric_skips_combinations_that_cannot_become_the_best():
    found = merge(TopologyPolicy.NUMERIC, range(8), [LARGE])
    narrow, wide = Hint(frozenset({0}), preferred=True), Hint(frozenset({0, 1}), preferred=True)
    assert found == Merged({name: wide if name.startswith("r") else narrow for name in LARGE}, admit=True)
    # Each of the others has another node: one of them can be aligned, the rest follow it.
    alone = {f"r{i}": [Hint(each.nodes, preferred=each.nodes == {i}) for each in every_set()] for i in range(4)}
    everywhere = [Hint(frozenset(range(8)), preferred=True)]
    apart = merge(TopologyPolicy.NUMERIC, range(8), [{"cpu": everywhere, "memory": everywhere, **alone}])
    assert [apart.hints[f"r{i}"] for i in range(4)] == [Hint(frozenset({0}), preferred=i == 0) for i in range(4)]
