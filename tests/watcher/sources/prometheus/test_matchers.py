"""Matchers: their syntax, and their presence in each built-in query."""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.queries.matchers import Matcher, narrowed, parse_matchers
from watcher.core.queries.promql import is_plain
from watcher.model import METRIC_BY_KEY
from watcher.sources.config import InstantQuery, RangeQuery
from watcher.sources.prometheus.evidence_queries import (
    exporter_pods_query,
    host_names_query,
    known_nodes_query,
    profile,
    whole_profile,
)
from watcher.sources.prometheus.plans import NodeLabel, among, make_plan
from watcher.sources.prometheus.queries import CANDIDATES, candidates
from watcher.sources.settings import QuerySettings

LABELS = (
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
    | st.sampled_from(["k8s.cluster.name", "1st", "my-label", "ü", 'a"b', "a\\b", "<label>", "a b"])
).filter(lambda label: label != "__name__")
OPERATORS = st.sampled_from(["=", "!=", "=~", "!~"])
VALUES = st.text(max_size=12) | st.sampled_from(['a"b', "a\\", "<label>", "<raw>", "}", "{", "#", "a'b`", "\n", "日本"])
MATCHERS = st.builds(Matcher, LABELS, OPERATORS, VALUES)


# --- writing and reading ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('cluster="a"', [("cluster", "=", "a")]),
        ('{cluster="a"}', [("cluster", "=", "a")]),
        (' cluster = "a" , env =~ "x|y", ', [("cluster", "=", "a"), ("env", "=~", "x|y")]),
        ("a!='x\"y',b!~`\\d+`", [("a", "!=", 'x"y'), ("b", "!~", r"\d+")]),
        (r'a="\"\\\n\u00fc"', [("a", "=", '"\\\nü')]),
        (r"a='\''", [("a", "=", "'")]),
        ('a="x,y=\\"z\\"}"', [("a", "=", 'x,y="z"}')]),
        ('a=""', [("a", "=", "")]),
        ('"k8s.cluster.name"="a",k8s.node=~`b`', [("k8s.cluster.name", "=", "a"), ("k8s.node", "=~", "b")]),
        ("""{'ü"'!="a"}""", [('ü"', "!=", "a")]),
        ("", []),
        ("{}", []),
    ],
)
def test_matchers_are_read_in_the_syntax_of_promql(text: str, expected: list[tuple[str, str, str]]):
    """All operators, all kinds of strings, braces or none."""
    assert [Matcher(*each) for each in expected] == list(parse_matchers(text))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("cluster=a", "does not have the form"),
        ('cluster="a" env="b"', "does not have the form"),
        ('cluster=="a"', "does not have the form"),
        ('"a"', "does not have the form"),
        ("cluster", "does not have the form"),
        ('cluster="a",,env="b"', "does not have the form"),
        ('" a"="a"', '" a" is not a label name'),
        ('""="a"', "is not a label name"),
        (r'"a\n"="a"', "is not a label name"),
        ('__name__="up"', "__name__"),
        (r'a=~"\d"', "write a backslash as two backslashes"),
    ],
)
def test_an_invalid_matcher_is_an_error_with_the_reason(text: str, part: str):
    with pytest.raises(ValueError, match=re.escape(part)):
        parse_matchers(text)


@given(st.lists(MATCHERS, max_size=3))
def test_written_matchers_can_be_read(matchers: list[Matcher]):
    """For any values."""
    assert matchers == list(parse_matchers(",".join(map(str, matchers))))


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("x", 'x{a="b"}'),
        ("x{}", 'x{a="b"}'),
        ('x{mode="idle"}', 'x{mode="idle", a="b"}'),
        ('x{mode="{",}', 'x{mode="{", a="b"}'),
        ('{__name__="x"}', '{__name__="x", a="b"}'),
        ('{"x.y", "c.d"!="e"}', '{"x.y", "c.d"!="e", a="b"}'),
    ],
)
def test_a_selector_can_be_narrowed(selector: str, expected: str):
    """It keeps its matchers, and stays a selector."""
    assert expected == narrowed(selector, Matcher("a", "=", "b"))
    assert is_plain(expected)
    assert selector == narrowed(selector)


# --- matchers in queries ---------------------------------------------------------------------------------------------

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left) \([^)]*\)")
RANGE = re.compile(r"\[[0-9smh]+\]")
SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*+)(?:{([^}]*)}|(?!\s*[({]))")


def selectors(query: str) -> Iterator[tuple[str, set[str]]]:
    """Name and matchers of each selector of a query, without code of the product: the words outside of strings, ranges
    and lists of labels that are neither operators nor functions."""
    strings: list[str] = STRING.findall(query)
    numbers = iter(range(len(strings)))
    bare = STRING.sub(lambda _: f"#{next(numbers)}", query)
    for found in SELECTOR.finditer(RANGE.sub("", GROUPING.sub("", bare))):
        if found[1] not in ("and", "or", "unless"):
            inside = [each.strip() for each in (found[2] or "").split(",")]
            yield found[1], {re.sub("#([0-9]+)", lambda n: strings[int(n[1])], each) for each in inside if each}


def questions(key: str, matchers: list[Matcher], *, label: NodeLabel) -> Iterator[str]:
    """All possible queries about a metric."""
    for candidate in candidates(METRIC_BY_KEY[key], None, matchers=matchers):
        yield profile(candidate.evidence, labels=("node",))
        yield whole_profile(candidate.evidence)
        yield exporter_pods_query(candidate.evidence, matchers=matchers)
        yield f"topk(1, {candidate.evidence})"
        if candidate.raw:
            yield narrowed(candidate.raw, among("instance", ["10.0.0.1:9100"])) + "[10m]"
        plan = make_plan(METRIC_BY_KEY[key], candidate, label=label, scrape_interval=15.0, rejected=())
        question = plan.question(0.0, 60.0, resolution=15)
        assert isinstance(question, InstantQuery | RangeQuery)
        yield question.query
    yield host_names_query(matchers=matchers)
    yield known_nodes_query(matchers=matchers)


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(CANDIDATES))
@given(matchers=st.lists(MATCHERS, min_size=1, max_size=2))
def test_each_selector_has_the_matchers(key: str, matchers: list[Matcher]):
    """Of any candidate, guard, profile or query of names, for any values."""
    for query in questions(key, matchers, label=NodeLabel("node")):
        found = list(selectors(query))
        assert found, query
        for name, inside in found:
            assert {str(each) for each in matchers} <= inside, (name, query)


@pytest.mark.parametrize("key", sorted(CANDIDATES))
def test_the_selectors_are_found(key: str):
    """The test above finds them: there are as many with matchers as without."""
    node, one = NodeLabel("node"), [Matcher("cluster", "=", "a")]
    plain, matched = (list(questions(key, matchers, label=node)) for matchers in ([], one))
    assert [[name for name, _ in selectors(query)] for query in plain] == [
        [name for name, _ in selectors(query)] for query in matched
    ]
    assert all(query.count('cluster="a"') == len(list(selectors(query))) for query in matched)


def test_the_memory_expression_has_them_six_times():
    """The complete text of the expression with the most series."""
    plain, matched = (candidates(METRIC_BY_KEY["Memory"], None, matchers=m)[1] for m in ((), [Matcher("c", "=", "x")]))
    assert 6 == matched.expression.count('{c="x"}')
    assert plain.expression == matched.expression.replace('{c="x"}', "")
    assert 'node_memory_MemTotal_bytes{c="x"}' == matched.raw


def test_a_configured_expression_is_sent_unchanged():
    """Its guard, too: it may select several clusters on purpose."""
    query = QuerySettings("sum by (node) (my:cpu)", "ratio", guard="raw")
    assert candidates(METRIC_BY_KEY["CPU"], query) == candidates(
        METRIC_BY_KEY["CPU"], query, matchers=[Matcher("cluster", "=", "a")]
    )


def test_a_value_cannot_end_its_string():
    """PromQL reads the escapes of JSON."""
    evil = Matcher("cluster", "=", 'a"} or up{x="')
    assert str(evil) == f"cluster={json.dumps(evil.value)}"
    assert is_plain(narrowed("up", evil))
