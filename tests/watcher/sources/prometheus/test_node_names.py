"""Evidence of node names that cannot be read: no node gets another name because a query fails."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, cast

import msgspec
import pytest

from tests.fakes.prometheus import Asked, FakePrometheus, matrix, responded, vector
from tests.fetches import QUICK, sections, use
from watcher.model import FindingKind
from watcher.sources.base import Fetch
from watcher.sources.prometheus.metrics import SEARCH_EVERY_FETCHES
from watcher.sources.prometheus.node_names import Decision, NodeEvidenceReader
from watcher.sources.prometheus.provider import PrometheusProvider
from watcher.sources.prometheus_api import PrometheusResponse

T = TypeVar("T")
NOW = 1_700_000_000.0
CPU = "instance:node_cpu:ratio"
ROWS = [{"instance": f"10.0.0.{i}:9100", "job": "node"} for i in (1, 2)]
NAMES = [{**row, "nodename": f"w-{i}"} for i, row in enumerate(ROWS, 1)]
NODES = [{"node": f"n-{i}", "internal_ip": f"10.0.0.{i}"} for i in (1, 2)]
AWAY = responded('{"status": "error", "errorType": "unavailable", "error": "the store is away"}', status=503)
REFUSED = responded('{"status": "error", "errorType": "bad_data", "error": "not permitted"}', status=400)


@dataclass
class Server:
    """Returns `names`, `nodes` and `targets` (clusters of machines) as the evidence: rows, or a whole response. The
    metric has the series `rows`."""

    names: Sequence[dict[str, str]] | bytes = field(default_factory=lambda: NAMES)
    nodes: Sequence[dict[str, str]] | bytes = ()
    targets: Sequence[dict[str, str]] | bytes = ()
    rows: Sequence[dict[str, str]] = field(default_factory=lambda: ROWS)

    def answer(self, asked: Asked) -> bytes:
        of_names = self.targets if asked.query.startswith("group") else self.names
        for word, given in (("kube_node_info", self.nodes), ("node_uname_info", of_names)):
            if word in asked.query:
                return given if isinstance(given, bytes) else vector(*given)
        if CPU not in asked.query:
            return vector()
        if asked.query.startswith("count"):
            return vector(*self.rows)
        return matrix(*((row, [(NOW - 15, "0.5"), (NOW, "0.25")]) for row in self.rows))


def play(server: Server, *steps: Callable[[Server], None]) -> list[Fetch]:
    """The fetch after each step; before each, the evidence is due again."""

    async def work(provider: PrometheusProvider) -> list[Fetch]:
        got = []
        for step in steps:
            step(server)
            for _ in range(SEARCH_EVERY_FETCHES + 2):
                last = await provider.fetch(NOW - 60, NOW)
            got.append(last)
        return got

    with FakePrometheus(server.answer, state_metrics=True) as fake:
        given = {**QUICK, "address": fake.url, "backoff": ()}
        return use(lambda: PrometheusProvider(*sections(**given)), work)


def nodes_of(got: Fetch) -> set[str]:
    return {node for batch in got.batches for node in batch.nodes}


def failures_of(got: Fetch) -> list[str]:
    return [each.reason for each in got.findings if each.kind is FindingKind.QUERY_FAILED]


def nothing(_: Server) -> None:
    """Do not change the server."""


@pytest.mark.slow
@pytest.mark.parametrize("now", [AWAY, REFUSED, ()], ids=["unavailable", "refused", "no result"])
@pytest.mark.parametrize("which", ["names", "nodes"])
def test_a_node_keeps_its_name_if_the_evidence_is_away(which: str, now: Sequence[dict[str, str]] | bytes):
    """A finding has the query."""
    server = Server(nodes=NODES if which == "nodes" else (), names=() if which == "nodes" else NAMES)
    before, after = play(server, nothing, lambda server: setattr(server, which, now))

    assert nodes_of(before) == nodes_of(after) == ({"w-1", "w-2"} if which == "names" else {"n-1", "n-2"})
    assert [] == failures_of(before)
    assert any({"names": "node_uname_info", "nodes": "kube_node_info"}[which] in each for each in failures_of(after))


def test_evidence_that_was_never_read_is_awaited():
    """Otherwise the nodes would have other names later."""
    server = Server(names=AWAY)
    with pytest.raises(Exception, match="the store is away"):
        play(server, nothing)


def test_evidence_that_is_refused_is_a_finding():
    """A server that refuses it for good still has loads."""
    (got,) = play(Server(names=REFUSED), nothing)

    assert {"10.0.0.1", "10.0.0.2"} == nodes_of(got)
    assert any("not permitted" in each and "node_uname_info" in each for each in failures_of(got))


IN_EU = [{**row, "node": f"n-{i}", "region": "eu"} for i, row in enumerate(ROWS, 1)]
"""Series of a metric that other regions may lack."""


def test_clusters_that_were_never_read_are_awaited():
    """Otherwise the nodes of one region would have loads until the others are known."""
    with pytest.raises(Exception, match="the store is away"):
        play(Server(rows=IN_EU, targets=AWAY), nothing)


def test_clusters_that_are_refused_are_a_finding():
    (got,) = play(Server(rows=IN_EU, targets=REFUSED), nothing)

    assert {"n-1", "n-2"} == nodes_of(got)
    assert any("not permitted" in each and "node_uname_info" in each for each in failures_of(got))


def test_the_last_clusters_count_if_they_are_away():
    """Two regions have the nodes; a finding has the query that fails."""
    others = [{**row, "region": region, "nodename": "w"} for region in ("eu", "us") for row in IN_EU]
    server = Server(rows=IN_EU, names=others, targets=[{"region": "eu"}, {"region": "us"}])
    before, after = play(server, nothing, lambda server: setattr(server, "targets", AWAY))

    assert set() == nodes_of(before) == nodes_of(after)
    assert any(each.kind is FindingKind.AMBIGUOUS_NODE for each in after.findings)
    assert any("group" in each and "node_uname_info" in each for each in failures_of(after))


class _Series(dict[str, str]):
    """Labels that record the threads that read them."""

    threads: ClassVar[set[int]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.threads.add(threading.get_ident())
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.threads.add(threading.get_ident())
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.threads.add(threading.get_ident())
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self.threads.add(threading.get_ident())
        return super().__iter__()

    def items(self) -> Any:
        self.threads.add(threading.get_ident())
        return super().items()


def test_labels_are_read_in_a_thread():
    """At the first and at later decisions: the event loop serves requests meanwhile."""
    rows = [_Series({**row, "job": job}) for row in IN_EU for job in ("a", "b")]
    facts = {
        "group": [_Series(region="eu"), _Series(region="us")],
        "count": [_Series({**row, "nodename": "w"}) for row in IN_EU],
        "seconds": [_Series({**row, "cpu": "0", "mode": mode}) for row in IN_EU for mode in ("idle", "time")],
        "kube": [_Series(node=row["node"]) for row in NODES],
    }

    async def ask(query: str, read: Callable[[Iterable[msgspec.Raw]], T]) -> PrometheusResponse[T]:
        found = next((found for word, found in facts.items() if word in query), [])
        return PrometheusResponse(cast(T, [(row, 1.0) for row in found]), "", (), None, 0.0)

    async def decide() -> list[Decision]:
        reader = NodeEvidenceReader([])
        return [await reader.decide([*rows], CPU, ask, number=number, at_most_old=0) for number in (0, 1)]

    _Series.threads.clear()
    decisions = asyncio.run(decide())

    assert all(each.found.nodes == ("n-1", "n-1", "n-2", "n-2") for each in decisions)
    assert _Series.threads
    assert threading.get_ident() not in _Series.threads


def test_new_evidence_is_used():
    """Names of the old evidence do not stay."""
    other = [{**row, "nodename": f"x-{i}"} for i, row in enumerate(ROWS, 1)]
    before, after = play(Server(), nothing, lambda server: setattr(server, "names", other))

    assert [{"w-1", "w-2"}, {"x-1", "x-2"}] == [nodes_of(before), nodes_of(after)]
