"""Identity of the node of each series, from the labels of all series of a metric and from the known nodes.

A series has several candidates for the name of its node: labels, the host name in node_uname_info, its address, and the
pod of its exporter. The decision is made for each series. Series of other machines do not change it, except that two
machines never share a name: then neither is named, and an IdentityProblem has the cause and the cure.

If nodes are known, the candidate that is a known node is the name. Otherwise the first candidate is.

Pure: no I/O, no clock. docs/reference/node-names.md has the rules for operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from watcher.core.naming.candidates import HOST_NAME, INSTANCE, NamedSeries, NamingEvidence, candidates_of, other_labels
from watcher.core.naming.conflicts import OF_ONE_CLUSTER, separate
from watcher.core.naming.decision import name_by_known_nodes, name_by_order
from watcher.core.naming.evidence import IdentityProblem
from watcher.core.naming.labels import EXPORTED, NODE_LABELS, Labels, family, has_duplicates, host_of, own
from watcher.core.naming.name_resolver import NodeIndex, spelling


@dataclass(frozen=True, slots=True)
class CandidateCount:
    """How many series have a candidate, and to how many known nodes it maps how many of them."""

    candidate: str
    series: int
    mapped: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Identities:
    """The node of each series, None without one. `names` are the source's names, which `NodeIndex.resolve` maps to the
    same nodes: an address stays an address, so that its change to another node can be detected. `origins` are the
    candidates that name the series, `by` is that of most series."""

    names: tuple[str | None, ...]
    nodes: tuple[str | None, ...]
    origins: tuple[str, ...]
    by: str
    problems: tuple[IdentityProblem, ...] = ()
    counts: tuple[CandidateCount, ...] = ()
    is_uncertain: bool = False
    """Whether an exporter has several series of one device: node_uname_info shows whether it is in several clusters."""

    @property
    def evidence(self) -> str:
        """What each candidate maps, for operators."""
        known = any(each.mapped for each in self.counts)
        if not known:
            return "; ".join(f"{each.candidate}: {each.series} series" for each in self.counts) + "; no known nodes"
        return "; ".join(
            f"{each.candidate}: {each.mapped} of {each.series} series are {each.nodes} known nodes"
            for each in self.counts
        )


def identify(
    rows: Sequence[Labels],
    evidence: NamingEvidence,
    *,
    configured: str | None = None,
    pods: bool = True,
    cure: str = OF_ONE_CLUSTER,
    chosen: bool = False,
) -> Identities:
    """Decide the node of each series. `configured` is the label that the settings name: nothing else is used then,
    except that `nodename` may come from node_uname_info. Without `pods`, the labels namespace and pod are those of
    what is measured and not of the exporter, as in cAdvisor's series. `cure` is the hint for several clusters; a query
    of the settings has `chosen` the series of one of them."""
    every = [NamedSeries(row, _host(row), list(candidates_of(row, evidence, pods=pods))) for row in rows]
    if configured is not None:
        for each in every:
            each.candidates = _of_label(each, configured)
    index = evidence.nodes if evidence.nodes is not None and evidence.nodes.nodes else None
    counts = list(_matched(every, index))
    if index is not None and configured is None:
        for each in every:
            each.matches = each.matches or other_labels(each, index)
    problems: list[IdentityProblem] = []
    if index is not None and any(each.matches for each in every):
        problems += name_by_known_nodes(every, index, evidence)
    elif configured is not None:
        for each in every:
            for by, text in each.candidates[:1]:
                each.name(text, by, text)
    else:
        name_by_order(every)
    problems += separate(every, index, evidence, cure, chosen=chosen)
    origins = tuple(each.by for each in every)
    is_uncertain = not evidence.host_names and has_duplicates(rows)
    return Identities(*_named(every), origins, _most(every), tuple(problems), tuple(counts), is_uncertain)


def _host(row: Labels) -> str:
    """The host of the exporter, or without an instance an address in a label of the node."""
    if host := host_of(row):
        return host
    texts = (spelling(own(row, label)) for label in NODE_LABELS if own(row, label))
    return next((text for text in texts if family(text) != "name"), "")


def _of_label(series: NamedSeries, label: str) -> list[tuple[str, str]]:
    if label == "instance":
        return [pair for pair in series.candidates if pair[0].removeprefix(EXPORTED) == INSTANCE]
    if text := series.labels.get(label, ""):
        return [(label, text)]
    return [pair for pair in series.candidates if label == "nodename" and pair[0] == HOST_NAME]


def _matched(every: Sequence[NamedSeries], index: NodeIndex | None) -> Iterator[CandidateCount]:
    """Set the matches of all series, and yield what each candidate maps."""
    found: dict[str, list[str]] = {}
    for series in every:
        for by, text in series.candidates:
            node = index.find(text).node if index is not None else ""
            found.setdefault(by, []).append(node)
            if node:
                series.matches.append((by, text, node))
    for by, nodes in found.items():
        named = [node for node in nodes if node]
        yield CandidateCount(by, len(nodes), len(named), len(set(named)))


def _named(every: Sequence[NamedSeries]) -> tuple[tuple[str | None, ...], tuple[str | None, ...]]:
    texts: dict[str, set[str]] = defaultdict(set)
    for series in every:
        if series.node is not None:
            texts[series.node].add(series.text)
    names = tuple(
        None if each.node is None else (each.text if len(texts[each.node]) == 1 else each.node) for each in every
    )
    return names, tuple(each.node for each in every)


def _most(every: Sequence[NamedSeries]) -> str:
    """The candidate that names most series, the first of several."""
    counts: dict[str, int] = {}
    for series in every:
        if series.by:
            counts[series.by] = counts.get(series.by, 0) + 1
    return max(counts, key=lambda by: counts[by]) if counts else ""
