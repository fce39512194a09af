"""Evidence of node names that cannot be read: no node gets another name because a query fails."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from tests.fakes.prometheus import Asked, FakePrometheus, matrix, told, vector
from watcher.model import FindingKind
from watcher.providers.base import Fetch
from watcher.providers.prometheus.provider import PrometheusProvider
from watcher.providers.prometheus.queries import PrometheusConfig
from watcher.providers.prometheus.state import SEARCH_EVERY_FETCHES

NOW = 1_700_000_000.0
CPU = "instance:node_cpu:ratio"
ROWS = [{"instance": f"10.0.0.{i}:9100", "job": "node"} for i in (1, 2)]
NAMES = [{**row, "nodename": f"w-{i}"} for i, row in enumerate(ROWS, 1)]
NODES = [{"node": f"n-{i}", "internal_ip": f"10.0.0.{i}"} for i in (1, 2)]
AWAY = told('{"status": "error", "errorType": "unavailable", "error": "the store is away"}', status=503)
REFUSED = told('{"status": "error", "errorType": "bad_data", "error": "not permitted"}', status=400)


@dataclass
class Server:
    """Answers with `names` and `nodes` as the evidence: rows, or a whole response."""

    names: Sequence[dict[str, str]] | bytes = field(default_factory=lambda: NAMES)
    nodes: Sequence[dict[str, str]] | bytes = ()

    def answer(self, asked: Asked) -> bytes:
        for word, given in (("kube_node_info", self.nodes), ("node_uname_info", self.names)):
            if word in asked.query:
                return given if isinstance(given, bytes) else vector(*given)
        if CPU not in asked.query:
            return vector()
        if asked.query.startswith("count"):
            return vector(*ROWS)
        return matrix(*((row, [(NOW - 15, "0.5"), (NOW, "0.25")]) for row in ROWS))


def play(server: Server, *steps: Callable[[Server], None]) -> list[Fetch]:
    """The fetch after each step; evidence is due again before it."""

    async def inside(address: str) -> list[Fetch]:
        provider = PrometheusProvider(PrometheusConfig(address=address, metrics=("CPU",), timeout=5.0, backoff=()))
        await provider.start()
        got = []
        try:
            for step in steps:
                step(server)
                for _ in range(SEARCH_EVERY_FETCHES + 2):
                    last = await provider.fetch(NOW - 60, NOW)
                got.append(last)
        finally:
            await provider.close()
        return got

    with FakePrometheus(server.answer, state_metrics=True) as fake:
        return asyncio.run(inside(fake.url))


def nodes_of(got: Fetch) -> set[str]:
    return {node for batch in got.batches for node in batch.nodes}


def failures_of(got: Fetch) -> list[str]:
    return [each.reason for each in got.findings if each.kind is FindingKind.QUERY_FAILED]


def nothing(_: Server) -> None:
    """The server as it is."""


@pytest.mark.parametrize("now", [AWAY, REFUSED, ()], ids=["unavailable", "refused", "no result"])
@pytest.mark.parametrize("which", ["names", "nodes"])
def test_a_node_keeps_its_name_if_the_evidence_is_away(which: str, now: Sequence[dict[str, str]] | bytes):
    """A finding has the query."""
    server = Server(nodes=NODES if which == "nodes" else (), names=() if which == "nodes" else NAMES)
    before, after = play(server, nothing, lambda server: setattr(server, which, now))

    assert nodes_of(before) == nodes_of(after) == ({"w-1", "w-2"} if which == "names" else {"n-1", "n-2"})
    assert [] == failures_of(before)
    assert any({"names": "node_uname_info", "nodes": "kube_node_info"}[which] in each for each in failures_of(after))


def test_evidence_that_was_never_read_is_waited_for():
    """Otherwise the nodes would have other names later."""
    server = Server(names=AWAY)
    with pytest.raises(Exception, match="the store is away"):
        play(server, nothing)


def test_evidence_that_is_refused_is_a_finding():
    """A server that refuses it for good still has loads."""
    (got,) = play(Server(names=REFUSED), nothing)

    assert {"10.0.0.1", "10.0.0.2"} == nodes_of(got)
    assert any("not permitted" in each and "node_uname_info" in each for each in failures_of(got))


def test_new_evidence_counts():
    """Names of the old evidence do not stay when the server has others."""
    other = [{**row, "nodename": f"x-{i}"} for i, row in enumerate(ROWS, 1)]
    before, after = play(Server(), nothing, lambda server: setattr(server, "names", other))

    assert [{"w-1", "w-2"}, {"x-1", "x-2"}] == [nodes_of(before), nodes_of(after)]
