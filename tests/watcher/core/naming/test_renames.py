"""Names that change over time: each machine keeps one name, and no node gets the load of another."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.naming.evidence import KnownNode
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.naming.renames import NamedBatch, NodeRenames, apply_renames
from watcher.core.review.outage import OutageGuard
from watcher.core.review.samples import combine
from watcher.core.review.settings import ReviewSettings
from watcher.core.windows.history import History
from watcher.model import METRIC_BY_KEY, Finding, FindingKind, Remedy, SeriesBatch, Window

CPU = METRIC_BY_KEY["CPU"]
WINDOWS = (Window("5m", 300),)
T0 = 1_700_000_010.0


def at(address: str, name: str, *, created: float = float("-inf")) -> KnownNode:
    return KnownNode(name, (("InternalIP", address),), "", created)


def batch_of(*sources: str, times: tuple[float, ...], value: float) -> SeriesBatch:
    """Series of each source with `value` at each of the times."""
    series = np.repeat(np.arange(len(sources)), len(times))
    time = np.tile(np.array(times), len(sources))
    return SeriesBatch(CPU, sources, series, time, np.full(len(time), value))


class Story:
    """Naming and history as in a tick, with a clock in minutes; each minute has its own value."""

    def __init__(self) -> None:
        self.history = History(resolution=15, windows=WINDOWS, slack_s=3600.0)
        self.guard = OutageGuard(ReviewSettings())
        self.naming = NodeRenames()
        self.minute = 0

    def tick(self, *sources: str, nodes: list[KnownNode], back: int = 0) -> tuple[Finding, ...]:
        """Fetch this minute and `back` minutes before it."""
        self.minute += 1
        times = tuple(T0 + 60.0 * (self.minute - k) - 30.0 for k in range(back, -1, -1))
        named = self.naming.name(
            batch_of(*sources, times=times, value=float(self.minute)), NodeIndex(nodes), now=T0 + 60.0 * self.minute
        )
        return self.take(named)

    def past(self, *sources: str, nodes: list[KnownNode], minute: int) -> None:
        """Fetch an earlier slice, with the list of nodes of the last tick."""
        batch = batch_of(*sources, times=(T0 + 60.0 * minute - 30.0,), value=float(minute))
        self.take(self.naming.name_past(batch, NodeIndex(nodes), now=T0 + 60.0 * self.minute))

    def take(self, named: NamedBatch) -> tuple[Finding, ...]:
        found = apply_renames([named], history=self.history, guard=self.guard, now=T0 + 60.0 * self.minute)
        cells, _ = combine(named.batch, resolution=15, limits=ReviewSettings())
        self.history.append(CPU, cells)
        self.history.drop_empty_nodes()
        return (*named.findings, *found)

    @property
    def kept(self) -> dict[str, list[int]]:
        """The minutes with a sample, by name."""
        found: dict[str, set[int]] = {}
        for block in self.history.blocks():
            for row, column in np.argwhere(~np.isnan(block.values)).tolist():
                time = (block.first_slot + row) * 15
                found.setdefault(block.nodes[column], set()).add(int((time - T0) // 60) + 1)
        return {name: sorted(minutes) for name, minutes in sorted(found.items())}


A, B = "10.0.0.1", "10.0.0.2"


def test_a_node_that_joins_late_gets_the_earlier_samples_of_its_machine():
    """Without its Node object (before it exists, after it was deleted), the machine has its address as name, with all
    its samples."""
    story = Story()
    assert () == story.tick(A, B, nodes=[at(B, "b")])
    (finding,) = story.tick(A, B, nodes=[at(A, "a"), at(B, "b")])
    assert {"a": [1, 2], "b": [1, 2]} == story.kept
    assert (FindingKind.NODE_NAMES, Remedy.RENAMED, "a") == (finding.kind, finding.remedy, finding.node)
    assert f"it was known as {A} before" in finding.reason
    story.tick(A, B, nodes=[at(B, "b")])
    assert {A: [1, 2, 3], "b": [1, 2, 3]} == story.kept


def test_an_address_that_moves_to_another_node_does_not_move_its_samples():
    """The fetch overlaps with the time of the previous node. That node is deleted, and so are its samples."""
    story = Story()
    for _ in range(3):
        story.tick(A, B, nodes=[at(A, "old"), at(B, "b")])
    found = story.tick(A, B, nodes=[at(A, "new"), at(B, "b")], back=2)
    assert {"b": [1, 2, 3, 4]} == story.kept
    (finding,) = found
    assert (FindingKind.NODE_NAMES, Remedy.DROPPED, "new") == (finding.kind, finding.remedy, finding.node)
    assert f"{A} is node new (by its InternalIP), but was node old before" in finding.reason
    story.tick(A, B, nodes=[at(A, "new"), at(B, "b")], back=2)
    assert [5] == story.kept["new"]


def test_two_nodes_that_exchange_addresses_keep_their_own_samples():
    """Both still exist: samples stay with the node of their time."""
    story = Story()
    story.tick(A, B, nodes=[at(A, "a"), at(B, "b")])
    found = story.tick(A, B, nodes=[at(A, "b"), at(B, "a")], back=1)
    assert {"a": [1], "b": [1]} == story.kept
    assert ["a", "b"] == sorted(finding.node for finding in found)
    story.tick(A, B, nodes=[at(A, "b"), at(B, "a")], back=1)
    assert {"a": [1, 3], "b": [1, 3]} == story.kept


def test_an_address_may_belong_to_no_node_between_two_nodes():
    """The old object is deleted first, or both exist for a while: in both cases the next node gets no earlier
    samples."""
    for between in ([], [at(A, "old"), at(A, "new")]):
        story = Story()
        story.tick(A, nodes=[at(A, "old")])
        story.tick(A, nodes=between)
        assert {A: [1, 2]} == story.kept
        story.tick(A, nodes=[at(A, "new")], back=2)
        story.tick(A, nodes=[at(A, "new")], back=2)
        assert {"new": [4]} == story.kept


def test_a_node_that_had_two_addresses_in_turn_keeps_its_samples():
    """It is measured at the last address. The first one, now of another node, does not take its samples away."""
    for sources in ((A, B), (B, A)):
        story = Story()
        story.tick(*sources, nodes=[at(A, "a")])
        story.tick(*sources, nodes=[at(B, "a")])
        story.tick(*sources, nodes=[at(A, "new")])
        assert {B: [1, 2, 3]} == story.kept


def test_a_node_has_no_samples_from_before_its_creation():
    """After a restart, the earlier owner of the address is unknown, but the creation time of the node is known."""
    story = Story()
    created = T0 + 120.0
    story.minute = 4
    story.tick(A, "named", nodes=[at(A, "new", created=created), KnownNode("named", created=created)], back=4)
    assert {"named": [1, 2, 3, 4, 5], "new": [3, 4, 5]} == story.kept


def test_a_node_that_was_created_in_the_future_has_samples():
    """The clock of the cluster is ahead."""
    story = Story()
    story.tick(A, nodes=[at(A, "new", created=T0 + 3600.0)])
    story.past(A, nodes=[at(A, "new", created=T0 + 3600.0)], minute=0)
    assert {"new": [0, 1]} == story.kept


def test_the_name_of_a_node_takes_precedence_over_its_address():
    """Series with the name of the node continue its history; those with the address begin under their own name."""
    story = Story()
    nodes = [at(A, "a")]
    story.tick(A, nodes=nodes)
    story.tick(A, "a", nodes=nodes)
    assert {A: [2], "a": [1, 2]} == story.kept
    story.tick(A, nodes=nodes)
    assert {"a": [1, 2, 3]} == story.kept


def test_slices_of_the_past_use_the_present_names():
    """An exporter that changed its port has two names in the past and one now; a slice must not make it ambiguous."""
    story = Story()
    nodes = [at(A, "a"), at(B, "b")]
    story.minute = 5
    story.tick(f"{A}:9101", nodes=nodes)
    story.past(f"{A}:9100", f"{A}:9101", B, nodes=nodes, minute=3)
    story.past(f"{A}:9100", nodes=nodes, minute=2)
    assert {f"{A}:9100": [2, 3], "a": [3, 6], "b": [3]} == story.kept
    assert () == story.tick(f"{A}:9101", nodes=nodes)


def test_a_slice_of_the_past_may_be_fetched_first():
    """Without a fetch of the present, it is named by itself."""
    story = Story()
    story.past(A, nodes=[at(A, "a")], minute=1)
    assert {"a": [1]} == story.kept


def test_each_metric_is_renamed_separately():
    """Another exporter may use another name for the same node."""
    naming, index = NodeRenames(), NodeIndex([at(A, "a")])
    gpu = METRIC_BY_KEY["GPU"]
    by_name = SeriesBatch(gpu, ("a",), np.zeros(1, dtype=np.int64), np.array([T0]), np.array([1.0]))
    for _ in range(2):
        assert ("a",) == naming.name(batch_of(A, times=(T0,), value=1.0), index, now=T0).batch.nodes
        assert ("a",) == naming.name(by_name, index, now=T0).batch.nodes


def test_without_a_change_names_are_not_resolved_again():
    """For the same names and the same list of nodes, the result is the same object, and nothing is renamed."""
    naming, index = NodeRenames(), NodeIndex([at(A, "a")])
    first = naming.name(batch_of(A, times=(T0,), value=1.0), index, now=T0)
    again = naming.name(batch_of(A, times=(T0 + 60,), value=1.0), index, now=T0 + 60)
    assert {A: "a"} == first.renamed
    assert {} == again.renamed
    assert first.resolution is again.resolution


def test_the_memory_of_past_names_is_bounded():
    """For a source with ever new names."""
    naming = NodeRenames()
    for k in range(500):
        address = f"10.0.{k // 250}.{k % 250}"
        naming.name(batch_of(address, times=(T0,), value=1.0), NodeIndex([at(address, f"node-{k}")]), now=T0)
    (known,) = naming._metrics.values()
    assert len(known.owners) <= 103


@pytest.mark.parametrize("empty", [(), ("a",)])
def test_a_batch_without_samples_is_named(empty):
    """Series without a sample in the span."""
    batch = batch_of(*empty, times=(), value=0.0)
    created = [at(A, "a", created=T0)]
    assert empty == NodeRenames().name(batch, NodeIndex(created), now=T0).batch.nodes


SOURCES = st.lists(st.sampled_from([A, B, "a", "b", f"{A}:1", f"{A}:2", "elsewhere"]), unique=True, max_size=5)
CLUSTERS = st.lists(
    st.builds(at, st.sampled_from([A, B, "10.0.0.3"]), st.sampled_from(["a", "b", "c"])),
    unique_by=lambda node: node.name,
    max_size=3,
)


@given(st.lists(st.tuples(SOURCES, CLUSTERS), max_size=6))
def test_each_sample_is_stored_under_one_name(steps):
    """For any change of names and nodes: under its own name or that of a node."""
    story = Story()
    for sources, nodes in steps:
        story.minute += 1
        named = story.naming.name(
            batch_of(*sources, times=(T0 + 60.0 * story.minute - 30.0,), value=1.0),
            NodeIndex(nodes),
            now=T0 + 60.0 * story.minute,
        )
        story.take(named)
        fetched = [name for name, minutes in story.kept.items() if story.minute in minutes]
        assert len(fetched) <= len(sources)
        assert set(fetched) <= {*sources, *(node.name for node in nodes)}
