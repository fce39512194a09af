"""The node of a name in the source: by the strongest evidence, and at most one name per node."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.naming.evidence import Evidence, KnownNode
from watcher.core.naming.name_resolver import (
    CACHED_NAMES,
    NodeIndex,
    describe_match,
    findings,
    missing_findings,
    without_port,
)
from watcher.core.review.findings import FleetFinding
from watcher.model import FindingKind, Remedy

NOW = 1_700_000_000.0


def node(name: str, *, label: str = "", created: float = float("-inf"), **addresses: str) -> KnownNode:
    """A node with addresses by type; several addresses of one type are separated by commas."""
    pairs = [(kind, each) for kind, texts in addresses.items() for each in texts.split(",")]
    return KnownNode(name, tuple(pairs), label, created)


# The names of a managed cluster: with a domain, and one that contains the address.
CLOUD = NodeIndex(
    [
        node(
            "ip-10-0-0-7.ec2.internal",
            label="ip-10-0-0-7",
            InternalIP="10.0.0.7,2001:db8::7",
            ExternalIP="54.1.2.7",
            Hostname="ip-10-0-0-7.ec2.internal",
            InternalDNS="ip-10-0-0-7.ec2.internal",
            ExternalDNS="ec2-54-1-2-7.compute.amazonaws.com",
        ),
        node(
            "ip-10-0-0-8.ec2.internal",
            label="ip-10-0-0-8",
            InternalIP="10.0.0.8,2001:db8::8",
            ExternalIP="54.1.2.8",
            Hostname="ip-10-0-0-8.ec2.internal",
        ),
    ]
)
# The names of self-managed machines: short names, host names that differ, and a node whose name is its address.
METAL = NodeIndex(
    [
        node("worker-1", label="rack1-worker-1", InternalIP="192.168.0.1", Hostname="worker-1"),
        node("worker-2", label="worker-2", InternalIP="192.168.0.2", Hostname="w2.lan"),
        node("192.168.0.3", InternalIP="192.168.0.3", Hostname="192.168.0.3"),
        node("twin-a", label="twin", InternalIP="192.168.0.9", Hostname="twin"),
        node("twin-b", label="twin", InternalIP="192.168.0.9", Hostname="twin"),
    ]
)
SEVEN = "ip-10-0-0-7.ec2.internal"


@pytest.mark.parametrize(
    ("index", "source", "expected", "by"),
    [
        (CLOUD, SEVEN, SEVEN, Evidence.NAME),
        (CLOUD, f"{SEVEN}:9100", SEVEN, Evidence.SPELLING),
        (CLOUD, "IP-10-0-0-7.EC2.internal.", SEVEN, Evidence.SPELLING),
        (CLOUD, "10.0.0.7", SEVEN, Evidence.INTERNAL_IP),
        (CLOUD, "10.0.0.7:9100", SEVEN, Evidence.INTERNAL_IP),
        (CLOUD, "2001:db8::7", SEVEN, Evidence.INTERNAL_IP),
        (CLOUD, "[2001:db8::7]:9100", SEVEN, Evidence.INTERNAL_IP),
        (CLOUD, "[2001:0DB8:0:0::0007]", SEVEN, Evidence.INTERNAL_IP),
        (CLOUD, "::ffff:10.0.0.7", SEVEN, Evidence.INTERNAL_IP),
        (CLOUD, "ip-10-0-0-7", SEVEN, Evidence.LABEL),
        (CLOUD, "ip-10-0-0-7:10250", SEVEN, Evidence.LABEL),
        (CLOUD, "54.1.2.7:9100", SEVEN, Evidence.EXTERNAL_IP),
        (CLOUD, "ec2-54-1-2-7.compute.amazonaws.com", SEVEN, Evidence.EXTERNAL_DNS),
        # another domain: the full name of the node shows that it is not in that domain
        (CLOUD, "ip-10-0-0-7.example.com", "", None),
        (CLOUD, "10.0.0.77", "", None),
        (CLOUD, "10.0.0", "", None),
        (METAL, "worker-1:9100", "worker-1", Evidence.SPELLING),
        (METAL, "worker-1.example.com", "worker-1", Evidence.SHORT),
        (METAL, "rack1-worker-1.example.com:9100", "worker-1", Evidence.SHORT),
        (METAL, "w2.lan", "worker-2", Evidence.HOSTNAME),
        # cut at its first dot, it is not a host name or label of any node
        (METAL, "w2.example.com", "", None),
        (METAL, "192.168.0.3:9100", "192.168.0.3", Evidence.SPELLING),
        (METAL, "192.168.0.9", "", Evidence.INTERNAL_IP),
        (METAL, "twin.example.com", "", Evidence.SHORT),
        (METAL, "", "", None),
        (METAL, ":9100", "", None),
        (METAL, "[::1", "", None),
        (METAL, "é\x00", "", None),
    ],
)
def test_the_node_of_a_name(index, source, expected, by):
    """By name, then by addresses in the order of their types, then by label; whole names before parts."""
    match = index.resolve((source,)).matches[source]
    assert (expected, by) == (match.node, match.by)
    assert (match.node or source,) == index.resolve((source,)).nodes


def test_stronger_evidence_takes_precedence():
    """The InternalIP of one node is not the ExternalIP, host name or label of another."""
    index = NodeIndex(
        [
            node("a", InternalIP="10.0.0.1", Hostname="host-1", InternalDNS="dns-1", ExternalDNS="dns-2"),
            node("b", ExternalIP="10.0.0.1", label="host-1", Hostname="a", ExternalDNS="dns-1"),
            node("c", label="10.0.0.1", ExternalIP="10.0.0.9", InternalDNS="dns-2"),
            node("d", ExternalDNS="10.0.0.9"),
        ]
    )
    expected = {"10.0.0.1": "a", "host-1": "a", "a": "a", "dns-1": "a", "dns-2": "c", "10.0.0.9": "c"}
    assert expected == {name: index.resolve((name,)).matches[name].node for name in expected}


def test_an_address_of_two_nodes_is_ambiguous():
    """For example, the object of a replaced node remains. Neither node is used, and weaker evidence does not decide."""
    index = NodeIndex([node("old", InternalIP="10.0.0.1"), node("new", InternalIP="10.0.0.1", ExternalIP="10.0.0.1")])
    match = index.resolve(("10.0.0.1:9100",)).matches["10.0.0.1:9100"]
    assert ("", ("new", "old")) == (match.node, match.claimed)
    (finding,) = findings(index.resolve(("10.0.0.1:9100",)), index, now=NOW)
    assert (FindingKind.AMBIGUOUS_NODE, Remedy.REPORTED, "10.0.0.1:9100") == (
        finding.kind,
        finding.remedy,
        finding.node,
    )
    assert "is the InternalIP of several nodes, new and old" in finding.reason
    assert "the source's name is used unchanged" in finding.reason


def test_of_two_names_of_one_node_the_one_with_stronger_evidence_counts():
    """The name of the node before its address. The other one stays as it is, and is reported."""
    names = ("10.0.0.7:9100", SEVEN, "ip-10-0-0-8")
    resolution = CLOUD.resolve(names)
    assert ("10.0.0.7:9100", SEVEN, "ip-10-0-0-8.ec2.internal") == resolution.nodes
    (finding,) = findings(resolution, CLOUD, now=NOW)
    assert (FindingKind.AMBIGUOUS_NODE, "10.0.0.7:9100") == (finding.kind, finding.node)
    assert f"is node {SEVEN} (by its InternalIP), and so is {SEVEN}" in finding.reason


def test_of_two_names_of_one_node_with_equal_evidence_neither_counts():
    """Two exporters, or two machines behind one address: nothing distinguishes them."""
    names = ("10.0.0.7:9100", "10.0.0.7:9101", "2001:db8::8")
    resolution = CLOUD.resolve(names)
    assert ("10.0.0.7:9100", "10.0.0.7:9101", "ip-10-0-0-8.ec2.internal") == resolution.nodes
    assert ["10.0.0.7:9100", "10.0.0.7:9101"] == [one.node for one in findings(resolution, CLOUD, now=NOW)]


def test_unknown_names_are_reported_with_the_nearest_names():
    """A typo, another domain, an adjacent address; without candidates, none is named."""
    assert ("worker-1", "worker-2") == METAL.candidates("wroker-1")[:2]
    assert SEVEN == CLOUD.candidates("ip-10-0-0-7.example.com")[0]
    assert () == METAL.candidates("database-eu-west.example.com")
    names = ("wroker-1", "database-eu-west.example.com")
    typo, other = sorted(findings(METAL.resolve(names), METAL, now=NOW), key=lambda one: one.node, reverse=True)
    assert (FindingKind.UNKNOWN_NODE, Remedy.REPORTED, "wroker-1", NOW) == (
        typo.kind,
        typo.remedy,
        typo.node,
        typo.time,
    )
    assert "is not a name, address or label of a node; most similar: worker-1, worker-2" in typo.reason
    assert "most similar" not in other.reason


def test_nodes_without_series_are_reported():
    """Nodes of the cluster that no name of the source matches."""
    without = CLOUD.without_series(CLOUD.resolve(("10.0.0.7", "elsewhere")).nodes)
    assert ("ip-10-0-0-8.ec2.internal",) == without
    (finding,) = missing_findings(without, now=NOW)
    assert (FindingKind.MISSING, Remedy.LEFT_OUT) == (finding.kind, finding.remedy)
    assert () == missing_findings((), now=NOW)


def test_each_outcome_has_a_text():
    """The text that doctor prints."""
    resolution = METAL.resolve(("worker-1", "w2.lan:9100", "192.168.0.9", "nobody-at-all"))
    assert {
        "worker-1": "is node worker-1 (by its name)",
        "w2.lan:9100": "is node worker-2 (by its Hostname)",
        "192.168.0.9": "is the InternalIP of several nodes, twin-a and twin-b: delete Node objects of nodes that no"
        " longer exist",
        "nobody-at-all": "is not a name, address or label of a node",
    } == {name: describe_match(match, METAL) for name, match in resolution.matches.items()}


def test_without_nodes_of_the_cluster_no_name_matches():
    index = NodeIndex([])
    assert ("a", "10.0.0.1") == index.resolve(("a", "10.0.0.1")).nodes
    assert () == index.candidates("a")


def test_thousands_of_unknown_names_are_one_finding():
    """The same list is not resolved again at the next tick."""
    fleet = NodeIndex(node(f"node-{k:05}.example.com", InternalIP=f"10.0.{k >> 8}.{k & 255}") for k in range(5000))
    names = tuple(f"10.1.{k >> 8}.{k & 255}:9100" for k in range(5000))
    resolution = fleet.resolve(names)
    (finding,) = findings(resolution, fleet, now=NOW)
    assert isinstance(finding, FleetFinding)
    assert 5000 == finding.nodes
    assert resolution is fleet.resolve((*names[:-1], names[-1]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:9100", "10.0.0.1"),
        ("[::1]:9100", "::1"),
        ("::1", "::1"),
        ("a:9100", "a"),
        ("a:b", "a"),
        ("a:B", "a:B"),
        ("[::1", "[::1"),
        ("http://10.0.0.1:9100/metrics", "10.0.0.1"),
        ("https://a/metrics", "a"),
        ("https://[::1]:9100", "::1"),
        ("a:9100/metrics", "a"),
        ("a:metrics/cadvisor", "a"),
        ("namespace/pod", "namespace/pod"),
        ("namespace/pod:9100", "namespace/pod"),
    ],
)
def test_the_port_is_not_part_of_a_name(text, expected):
    """A bare IPv6 address has no port."""
    assert expected == without_port(text)


# --- invariants ------------------------------------------------------------------------------------------------------

LABELS = st.sampled_from(["a", "b", "c", "a.x", "b.x", "a.y", "10.0.0.1", "10.0.0.2", "::1", ""])
SOURCES = st.builds(lambda name, port: f"{name}{port}", LABELS | st.text(max_size=6), st.sampled_from(["", ":1", ":2"]))


@st.composite
def clusters(draw) -> list[KnownNode]:
    names = draw(st.lists(LABELS.filter(bool), unique=True, max_size=4))
    kinds = st.sampled_from(["InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS", "Other"])
    return [
        KnownNode(name, tuple(draw(st.lists(st.tuples(kinds, LABELS), max_size=4))), draw(LABELS)) for name in names
    ]


@given(clusters(), st.lists(SOURCES, unique=True, max_size=8))
def test_two_names_never_get_one_node(nodes, sources):
    """A renamed series has the name of a node of the cluster, others keep their names, and all names are distinct."""
    resolution = NodeIndex(nodes).resolve(tuple(sources))
    assert len(set(sources)) == len(set(resolution.nodes))
    names = {one.name for one in nodes}
    for source, named in zip(sources, resolution.nodes, strict=True):
        match = resolution.matches[source]
        assert named == (match.node or source)
        assert (match.node in names) == bool(match.node)
        assert source not in names or named == source


@given(clusters(), st.lists(SOURCES, unique=True, max_size=8), st.randoms())
def test_the_order_does_not_matter(nodes, sources, random):
    """Neither that of the cluster's nodes nor that of the series."""
    one = NodeIndex(nodes).resolve(tuple(sources)).matches
    random.shuffle(nodes)
    random.shuffle(sources)
    assert one == NodeIndex(nodes).resolve(tuple(sources)).matches


@given(clusters(), st.lists(SOURCES, unique=True, max_size=8))
def test_each_name_without_a_node_has_one_finding(nodes, sources):
    """A name with a node has none."""
    index = NodeIndex(nodes)
    resolution = index.resolve(tuple(sources))
    unmapped = sorted(name for name, match in resolution.matches.items() if not match.node)
    assert unmapped == sorted(finding.node for finding in findings(resolution, index, now=NOW))


class _Interrupted(str):
    """A name whose lookups are interrupted by `then`."""

    then: Callable[[], object] = staticmethod(lambda: None)

    def __hash__(self) -> int:
        self.then()
        return super().__hash__()


@pytest.mark.parametrize("lookup", [1, 2, 3, 4])
def test_a_name_is_found_while_other_threads_fill_the_cache(lookup: int):
    """The cache is cleared when it is full, at any time of a search."""
    index = NodeIndex([node("w-1", InternalIP="10.0.0.1")])
    others = [f"other-{i}" for i in range(CACHED_NAMES + 1)]
    looked_up = iter(range(1, 100))

    def fill() -> None:
        if next(looked_up) == lookup:
            for other in others:
                index.find(other)

    name = _Interrupted("w-1")
    name.then = fill
    assert "w-1" == index.find(name).node
