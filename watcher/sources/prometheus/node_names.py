"""The nodes of series: reads their evidence from the server, and decides again when it changes.

core.naming.identity decides. Its evidence costs queries, so the reader asks for more only while series have no node:
first the nodes that kube-state-metrics knows, unless those of the Kubernetes API are known, then the host names of
node_uname_info, then the pods of the exporters, then the identifiers of machines that may be of several clusters.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from watcher.core.naming.candidates import NamingEvidence
from watcher.core.naming.evidence import Evidence, KnownNode
from watcher.core.naming.identity import Identities, identify
from watcher.core.naming.labels import NODE_LABELS, Labels, has_duplicates, has_several, own, values_of_clusters
from watcher.core.naming.machines import idle_readings
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.queries.matchers import Matcher
from watcher.model import FindingKind, Remedy
from watcher.sources.errors import ProviderError, ProviderRefused
from watcher.sources.prometheus.evidence_queries import (
    exporter_pods_query,
    host_names_query,
    known_nodes_query,
    machines_query,
    targets_query,
)
from watcher.sources.prometheus.responses import read_facts
from watcher.sources.prometheus_api import PrometheusResponse

log = logging.getLogger(__name__)

T = TypeVar("T")
REMEDIES = {
    FindingKind.AMBIGUOUS_NODE: Remedy.LEFT_OUT,
    FindingKind.UNKNOWN_NODE: Remedy.DROPPED,
}


class Ask(Protocol):
    """A function that sends an instant query at the time of the fetch."""

    def __call__(self, query: str, read: Callable[[Iterable[msgspec.Raw]], T]) -> Awaitable[PrometheusResponse[T]]:
        """The response, with its content as read. Raises ProviderError."""
        ...


@dataclass(slots=True, eq=False)
class _Facts:
    """Series of one query as last read completely, in fetch `number`. `missing` is the server's message that they are
    incomplete. `failed` states why the query of fetch `tried` changed nothing, `error` is its error. Compared by
    identity: the evidence of the same facts is the same."""

    rows: Sequence[tuple[Labels, float]] = ()
    number: int = -1
    tried: int = -1
    missing: str = ""
    failed: str = ""
    error: ProviderError | None = None

    @property
    def unknown(self) -> ProviderError | None:
        """The error without which names would be different: the facts may be known later."""
        never = self.number < 0 and self.error is not None and not isinstance(self.error, ProviderRefused)
        return self.error if never else None


_NONE = _Facts(number=0)
_Known = tuple[NodeIndex | None, *tuple[_Facts, ...]]
"""The index of the nodes, and the facts about host names, pods and machines as far as they were read."""


@dataclass(frozen=True, slots=True)
class _Options:
    """How the nodes of the series of `asked` are decided, as in `identify`."""

    asked: str
    configured: str | None
    pods: bool
    chosen: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """The nodes of `rows` by the index and the facts in `known`. `clusters` are the values of the labels that name
    clusters, only without facts and unless the settings chose one. The others state whether more evidence would change
    nothing, and which would."""

    known: _Known
    rows: Sequence[Labels]
    nodes: Identities
    clusters: Mapping[str, Set[str]]
    is_settled: bool
    needs_pods: bool
    needs_machines: bool


@dataclass(frozen=True, slots=True)
class Decision:
    """The nodes of series. `missing` is the server's message that the evidence is incomplete, `failures` state which
    evidence could not be read."""

    found: Identities
    missing: str = ""
    failures: Sequence[str] = ()


class NodeEvidenceReader:
    """Reads the evidence from one server. All methods raise ProviderError."""

    def __init__(self, matchers: Sequence[Matcher]) -> None:
        self.cluster: NodeIndex | None = None  # nodes from the Kubernetes API
        self._matchers = matchers
        self._of_nodes = known_nodes_query(matchers=matchers)
        self._of_targets = targets_query(matchers=matchers)
        self._of_host_names = host_names_query(matchers=matchers)
        self._of_machines = machines_query(matchers=matchers)
        self._facts: dict[str, _Facts] = {}
        self._indexes: tuple[_Facts, NodeIndex] | None = None
        self._evidence: dict[str, tuple[_Known, NamingEvidence]] = {}
        self._found: dict[tuple[object, ...], _Found] = {}
        self._lock = asyncio.Lock()
        self._sharing = threading.Lock()  # metrics that are decided at the same time have one index and one evidence

    @property
    def translates(self) -> bool:
        """Whether names are translated to nodes later: with the nodes of the Kubernetes API, changes of addresses are
        followed in the history."""
        return self.cluster is not None

    @property
    def known(self) -> Collection[str]:
        """The names of the known nodes."""
        index = self.cluster if self.cluster is not None or self._indexes is None else self._indexes[1]
        return () if index is None else index.nodes.keys()

    async def decide(
        self,
        rows: Sequence[Labels],
        asked: str,
        ask: Ask,
        *,
        number: int,
        at_most_old: int,
        configured: str | None = None,
        pods: bool = True,
        chosen: bool = False,
    ) -> Decision:
        """Decide the nodes of the series of `asked`. The evidence is from the fetch `number`, or at most `at_most_old`
        fetches before it, or older if it cannot be read. Raises the error of evidence that is necessary and was never
        read: the names without it would change later. A query of the settings has `chosen` the series of one
        cluster."""

        async def read(query: str) -> _Facts:
            return await self._read(query, ask, number, at_most_old)

        async def identified(name: str, index: NodeIndex | None, *facts: _Facts) -> _Found:
            # In a thread: it takes most of a second for 10,000 series.
            options = _Options(asked, configured, pods, chosen)
            return await asyncio.to_thread(self._identified, name, rows, options, (index, *facts))

        index, of_nodes = self.cluster, _NONE
        if index is None or not index.nodes:
            of_nodes = await read(self._of_nodes)
            index = await asyncio.to_thread(self._index_of, of_nodes)
        found = await identified("nodes", index)
        of_targets = await read(self._of_targets) if found.clusters else _NONE
        if of_targets.unknown is not None:
            raise of_targets.unknown
        is_part = bool(of_targets.rows) and await asyncio.to_thread(_has_more, found.clusters, of_targets)
        if found.is_settled and not is_part:
            needed = [of_nodes, of_targets] if of_nodes.rows else [of_targets]
            failed = [facts.failed for facts in needed if facts.failed]
            return Decision(found.nodes, of_nodes.missing or of_targets.missing, failed)
        host_names = await read(self._of_host_names)
        found = await identified("host names", index, host_names)
        used = [of_nodes, of_targets, host_names]
        of_pods = _NONE
        if found.needs_pods:
            of_pods = await read(exporter_pods_query(asked, matchers=self._matchers))
            found = await identified(asked, index, host_names, of_pods)
            used.append(of_pods)
        if is_part or found.needs_machines:
            machines = await read(self._of_machines)
            found = await identified(f"machines {asked}", index, host_names, of_pods, machines)
            used.append(machines)
        for facts in used:
            if facts.unknown is not None:
                raise facts.unknown
        missing = next((facts.missing for facts in used if facts.missing), "")
        return Decision(found.nodes, missing, [facts.failed for facts in used if facts.failed])

    def _identified(self, name: str, rows: Sequence[Labels], options: _Options, known: _Known) -> _Found:
        """The nodes by these facts: host names, pods and machines. Runs in a thread; the last result is kept."""
        last = self._found.get((name, options))
        if last is not None and last.known == known and last.rows == rows:
            return last
        found = identify(
            rows,
            self._shared(name, known),
            configured=options.configured,
            pods=options.pods,
            chosen=options.chosen,
        )
        several = has_several(rows, found.nodes)
        is_named = options.configured not in (None, "nodename") or _is_complete(found)
        self._found[name, options] = last = _Found(
            known,
            rows,
            found,
            {} if options.chosen or len(known) > 1 else values_of_clusters(rows),
            is_named and not found.is_uncertain and not several,
            options.configured is None and options.pods and _needs_pods(rows, found, known[0]),
            several or _needs_machines(rows, found),
        )
        return last

    def _shared(self, name: str, known: _Known) -> NamingEvidence:
        """The evidence of these facts, for all metrics."""
        with self._sharing:
            last = self._evidence.get(name)
            if last is None or last[0] != known:
                last = self._evidence[name] = (known, _evidence_of(*known))
            return last[1]

    async def _read(self, query: str, ask: Ask, number: int, at_most_old: int) -> _Facts:
        async with self._lock:
            known = self._facts.setdefault(query, _Facts())
            settled = known.number >= 0 and not known.missing and not known.failed
            if known.tried == number or (settled and number - known.number <= at_most_old):
                return known
            known.tried = number
            try:
                reply = await ask(query, read_facts)
            except ProviderError as error:
                then = "the last result is used" if known.number >= 0 else "node names do not depend on it"
                known.failed, known.error = f"a query for node names failed, and {then}: {error} ({query})", error
                return known
            rows: list[tuple[Labels, float]] = [*reply.content]
            if known.rows and not rows:  # without its exporter, the last names stay
                known.failed, known.error = f"a query for node names has no result, and the last is used: {query}", None
                return known
            if reply.missing:
                there = {own(row, "instance") for row, _ in rows}
                rows = [*rows, *((row, value) for row, value in known.rows if own(row, "instance") not in there)]
            self._facts[query] = _Facts(rows, number, number, reply.missing)
            return self._facts[query]

    def _index_of(self, facts: _Facts) -> NodeIndex | None:
        with self._sharing:
            if self._indexes is None or self._indexes[0] is not facts:
                self._indexes = (facts, NodeIndex(known_nodes(facts.rows)))
            index = self._indexes[1]
        return index if index.nodes else None


def _evidence_of(
    index: NodeIndex | None, host_names: _Facts = _NONE, pods: _Facts = _NONE, machines: _Facts = _NONE
) -> NamingEvidence:
    return NamingEvidence(
        index,
        [row for row, _ in host_names.rows],
        [row for row, _ in pods.rows],
        [row for row, _ in machines.rows if "mode" not in row],
        idle_readings((row, value) for row, value in machines.rows if "mode" in row),
    )


def _is_complete(found: Identities) -> bool:
    """Whether all series have a node by a label of their own, or are known nodes."""
    if None in found.nodes or found.problems:
        return False
    return all(each.mapped == each.series for each in found.counts) or found.by in NODE_LABELS


def _has_more(clusters: Mapping[str, Set[str]], of_targets: _Facts) -> bool:
    """Whether the server has machines of these clusters, and of others."""
    every = values_of_clusters(row for row, _ in of_targets.rows)
    return any(every.get(label, set()) - values and every[label] & values for label, values in clusters.items())


def _needs_machines(rows: Sequence[Labels], found: Identities) -> bool:
    """Whether series of several clusters may be those of one machine."""
    return any(each.kind is FindingKind.AMBIGUOUS_NODE for each in found.problems) and has_duplicates(rows)


def _needs_pods(rows: Sequence[Labels], found: Identities, index: NodeIndex | None) -> bool:
    if index is not None:
        return None in found.nodes or not any(each.mapped for each in found.counts)
    return found.by not in NODE_LABELS and any(own(row, "pod") for row in rows)


def known_nodes(facts: Iterable[tuple[Labels, float]]) -> list[KnownNode]:
    """The nodes that kube-state-metrics has series of, sorted by name."""
    addresses: dict[str, set[tuple[str, str]]] = {}
    ready: set[str] = set()
    created: dict[str, float] = {}
    for row, value in facts:
        if not (node := own(row, "node")):
            continue
        if own(row, "condition"):
            ready |= {node} if value == 1 else set()
        elif (kind := own(row, "type")) and (text := own(row, "address")):
            addresses.setdefault(node, set()).add((kind, text))
        elif "kubelet_version" in row or "internal_ip" in row or "kernel_version" in row:
            found = addresses.setdefault(node, set())
            if address := row.get("internal_ip"):
                found.add((Evidence.INTERNAL_IP.value, address))
        elif value > 1:
            created[node] = max(value, created.get(node, value))
        else:
            addresses.setdefault(node, set())
    return [
        KnownNode(node, tuple(sorted(found)), "", created.get(node, float("-inf")), node in ready)
        for node, found in sorted(addresses.items())
    ]
