"""The decision for one candidate of each series.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from watcher.core.messages import shorten_names
from watcher.core.naming.candidates import (
    HOST_NAME,
    INSTANCE,
    OF_EXPORTER,
    WHOLE_INSTANCE,
    NamedSeries,
    NamingEvidence,
    of_several_machines,
)
from watcher.core.naming.evidence import Evidence, IdentityProblem
from watcher.core.naming.labels import (
    EXPORTED,
    NODE_LABELS,
    SHARED_BY,
    family,
    instance_of,
    own,
    shared_by_hosts,
    unique,
)
from watcher.core.naming.name_resolver import NodeIndex, spelling
from watcher.model import FindingKind


def name_by_known_nodes(
    every: Sequence[NamedSeries], index: NodeIndex, evidence: NamingEvidence
) -> Iterator[IdentityProblem]:
    """Name the series by their candidates that are known nodes, if these agree."""
    shared, several, by_address = _shared(every, evidence), of_several_machines(every), _addresses_agree(every)
    outside: list[str] = []
    for series in every:
        matches = [match for match in series.matches if match[:2] not in shared]
        if instance_of(series.labels) in several:
            matches = [match for match in matches if match[0].removeprefix(EXPORTED) not in OF_EXPORTER]
        if by_address and {by for by, _, _ in matches} == {HOST_NAME} and _is_elsewhere(series, matches[0][2], index):
            matches = []
        nodes = sorted({node for _, _, node in matches})
        if len(nodes) == 1:
            by, text, node = matches[0]
            series.name(node, by, text)
        elif nodes:
            series.candidates = []
            said = ", ".join(f"{by} is {text}" for by, text, _ in matches)
            yield IdentityProblem(
                FindingKind.AMBIGUOUS_NODE,
                nodes[0],
                f"a series names the nodes {' and '.join(nodes)} ({said}): the series is left out, because "
                "its load belongs to one of them; set provider.node_label to the label with the right node",
            )
        elif series.candidates:
            text = series.candidates[0][1]
            outside.append(f"{text} ({series.host})" if index.find(text).node and series.host else text)
        series.matches = matches
    yield from _without_other_domains(every, index)
    if outside:
        names = shorten_names(sorted(set(outside)))
        yield IdentityProblem(
            FindingKind.UNKNOWN_NODE,
            "",
            f"{len(outside)} of {len(every)} series are of machines that are not nodes of the cluster, and are left "
            f"out: {names}; if they are nodes, add a label node when scraping them",
        )


def _without_other_domains(every: Sequence[NamedSeries], index: NodeIndex) -> Iterator[IdentityProblem]:
    """Take the name from series that have it only as a host name without its domain, if others have it by stronger
    evidence or with another domain: node-1.dmz is another machine than node-1.lan."""
    by_short: dict[str, list[NamedSeries]] = defaultdict(list)
    certain: dict[str, set[str]] = defaultdict(set)
    for series in every:
        if series.node is None:
            continue
        texts = [text for _, text, _ in series.matches]
        if all(index.find(text).by is Evidence.SHORT for text in texts):
            by_short[series.node].append(series)
        else:
            certain[series.node].update(spelling(text) for _, text in series.candidates)
    for node, several in by_short.items():
        foreign = [each for each in several if spelling(each.text) not in certain[node]]
        names = sorted({spelling(each.text) for each in foreign})
        if not names or (len(names) == 1 and not certain[node]):
            continue
        for each in foreign:
            each.node = None
        said = shorten_names(names)
        if certain[node]:
            yield IdentityProblem(
                FindingKind.UNKNOWN_NODE, node, f"another machine has the same name, and is left out: {said}"
            )
        else:
            yield IdentityProblem(
                FindingKind.AMBIGUOUS_NODE,
                node,
                f"{len(names)} machines have this name in different domains ({said}), and none of them is served; add a"
                " label node when scraping the nodes",
            )


def _shared(every: Sequence[NamedSeries], evidence: NamingEvidence) -> set[tuple[str, str]]:
    """Candidates that other nodes have as well: the address of a proxy or of a server for all machines; or a label that
    is equal on all nodes of its job, although another candidate shows different nodes. If node_uname_info has the job,
    it says whether these are several machines; otherwise, two others are: a wrong address of one series is not."""
    others: dict[tuple[str, str], set[str]] = defaultdict(set)
    texts: dict[tuple[str, str], set[str]] = defaultdict(set)
    jobs: dict[tuple[str, str], set[str]] = defaultdict(set)
    certain: dict[tuple[str, str], set[str]] = defaultdict(set)
    named: dict[tuple[str, str], set[str]] = defaultdict(set)
    for series in every:
        job = own(series.labels, "job")
        for by, text in series.candidates if series.matches else ():
            texts[job, by].add(text)
            jobs[by, text].add(job)
        for by, text, node in series.matches:
            others[by, text] |= {other for _, _, other in series.matches if other != node}
            named[by, text].add(node)
            certain[by, text] |= {other for each, _, other in series.matches if each != by}

    def is_constant(by: str, text: str) -> bool:
        label = by.removeprefix(EXPORTED)
        if label not in NODE_LABELS or any(len(texts[job, by]) > 1 for job in jobs[by, text]):
            return False
        said = {evidence.is_of_scraper.get((job, label, text)) for job in jobs[by, text]} - {None}
        if said:
            return True in said
        return len(certain[by, text] - named[by, text]) >= SHARED_BY

    return {key for key, nodes in others.items() if len(nodes) >= SHARED_BY or is_constant(*key)}


def _addresses_agree(every: Sequence[NamedSeries]) -> bool:
    """Whether exporters are scraped by the addresses of their nodes: for some series, host name and address agree."""
    return any(
        len({node for by, _, node in series.matches if by in (HOST_NAME, INSTANCE)}) == 1
        and {HOST_NAME, INSTANCE} <= {by for by, _, _ in series.matches}
        and family(series.host) != "name"
        for series in every
    )


def _is_elsewhere(series: NamedSeries, node: str, index: NodeIndex) -> bool:
    """Whether the exporter's address is not among those of the node, although these are known for the family."""
    kind = family(series.host)
    if kind == "name" or ip_address(series.host).is_loopback:
        return False
    return any(family(spelling(text)) == kind for _, text in index.nodes[node].addresses)


def name_by_order(every: Sequence[NamedSeries]) -> None:
    """Name the series by their first candidate that names a machine: not by a label or host name that the series of
    many hosts of one job share, as those of a scraping server or of cloned machines."""
    jobs: dict[str, list[NamedSeries]] = defaultdict(list)
    for series in every:
        jobs[own(series.labels, "job")].append(series)
    for of_job in jobs.values():
        _by_order_of_job(of_job)
    by_host = unique((series.host, series.node or "") for series in every if series.by in NODE_LABELS)
    for series in every:
        if series.by in (INSTANCE, EXPORTED + INSTANCE) and series.host in by_host:
            series.name(by_host[series.host], series.by, by_host[series.host])


def _by_order_of_job(of_job: Sequence[NamedSeries]) -> None:
    ports: dict[str, set[str]] = defaultdict(set)
    for series in of_job:
        ports[series.host].add(instance_of(series.labels))
    several = of_several_machines(of_job)
    shared = shared_by_hosts((candidate, series.labels) for series in of_job for candidate in series.candidates)
    for series in of_job:
        for by, text in series.candidates:
            kind = by.removeprefix(EXPORTED)
            if kind in (*NODE_LABELS, HOST_NAME) and (by, text) in shared:
                continue
            if kind in OF_EXPORTER and instance_of(series.labels) in several:
                continue
            if kind == INSTANCE and len(ports[series.host]) > SHARED_BY:  # simulated machines may be ports of one host
                by, text = WHOLE_INSTANCE, instance_of(series.labels)
            series.name(text, by, text)
            break
