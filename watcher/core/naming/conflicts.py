"""Conflicts: series of two machines with one name.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from watcher.core.messages import shorten_names
from watcher.core.naming.candidates import HOST_NAME, INSTANCE, OF_POD, NamedSeries, NamingEvidence
from watcher.core.naming.evidence import IdentityProblem
from watcher.core.naming.labels import (
    CLUSTER,
    EXPORTED,
    NODE_LABELS,
    differ,
    family,
    is_place,
    may_be_of,
    names_of,
    of_scrapes,
    own,
    pod_of,
    scopes,
)
from watcher.core.naming.name_resolver import NodeIndex, spelling
from watcher.model import FindingKind

OF_ONE_CLUSTER = 'select one cluster with provider.matchers = {{ "{label}" = "{value}" }}'


def separate(
    every: Sequence[NamedSeries], index: NodeIndex | None, evidence: NamingEvidence, cure: str, *, chosen: bool
) -> Iterator[IdentityProblem]:
    """Take the names from series of different machines, and yield the problems. `chosen` series are those of one
    cluster, by the settings."""
    of_node: dict[str, list[NamedSeries]] = defaultdict(list)
    for series in every:
        if series.node is not None:
            of_node[series.node].append(series)
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    labels = _ClusterLabels(of_node, evidence)
    at_addresses = evidence.jobs_at_addresses(each.labels for each in every)
    for node, several in of_node.items():
        clusters = labels.of(node)
        if label := _taken_from_unlabelled(several, clusters) or _taken_from_unknown(node, several, evidence):
            yield IdentityProblem(
                FindingKind.AMBIGUOUS_NODE,
                node,
                f"the source has series of several clusters, and a series with this name has no label {label}: it is "
                "left out, because its cluster is unknown; add the label when scraping it",
            )
            several = [each for each in several if each.node is not None]
        certain = [each for each in several if index is not None and _is_certain(each)]
        of_host = {own(each.labels, "job") for each in certain if any(by == INSTANCE for by, _, _ in each.matches)}
        of_host |= {""} if of_host else set()  # without its label, it may be any job
        away = [each for each in several if each not in certain and _is_away(each, index, at_addresses | of_host)]
        foreign = _conflicting(node, several, certain, clusters, evidence)
        label, values = differing(several, clusters)
        if not foreign and not chosen and (found := _of_other_clusters(node, several, certain, evidence)):
            (label, values), foreign = found, list(several)
        if not (foreign or away):
            continue
        if not foreign or (certain and len(foreign) < len(several)):
            foreign += [each for each in away if each not in foreign]
            yield _without_foreign(node, foreign, label, values)
        else:
            for each in several:
                each.node = None
            if label:
                alike[label, values].append(node)
            else:
                yield _of_several(node, several)
    yield from _of_clusters(alike, cure)


def _without_foreign(node: str, foreign: Sequence[NamedSeries], label: str, values: Sequence[str]) -> IdentityProblem:
    for each in foreign:
        each.node = None
    hosts = shorten_names(sorted({each.host or own(each.labels, label) for each in foreign}))
    return IdentityProblem(
        FindingKind.UNKNOWN_NODE,
        node,
        f"another machine has the same name, and is left out: {hosts}"
        + (f" ({label} is {' or '.join(values)})" if label else ""),
    )


def _of_several(node: str, several: Sequence[NamedSeries]) -> IdentityProblem:
    hosts = shorten_names(sorted({each.host for each in several}))
    return IdentityProblem(
        FindingKind.AMBIGUOUS_NODE,
        node,
        f"{len(several)} machines have this name ({hosts}), and none of them is served; give them different "
        "names, or select the series of one cluster with provider.matchers",
    )


def _of_clusters(alike: Mapping[tuple[str, tuple[str, ...]], Sequence[str]], cure: str) -> Iterator[IdentityProblem]:
    """A problem for each label that names several clusters, with the nodes that they share."""
    for (label, values), nodes in alike.items():
        yield IdentityProblem(
            FindingKind.AMBIGUOUS_NODE,
            nodes[0] if len(nodes) == 1 else "",
            f"the source has series of several clusters: label {label} is {' and '.join(values)} for the nodes "
            f"{shorten_names(sorted(nodes))}, which are not served; {cure.format(label=label, value=values[0])}"
            + ("" if CLUSTER.search(label) else ", also if these are several servers or agents for one cluster"),
        )


class _ClusterLabels:
    """The labels that name clusters with equal names of nodes. A label with `cluster` in its name does, also for nodes
    without evidence. One of a place does unless the evidence shows one machine, which two servers scrape; another label
    if series of one job have different values for one target. Any label does for a node of which the evidence shows
    several machines, and for nodes without evidence if it does so for others."""

    def __init__(self, of_node: Mapping[str, Sequence[NamedSeries]], evidence: NamingEvidence) -> None:
        self._certain: set[str] = set()
        self._doubtful: set[str] = set()
        self._answers: dict[str, dict[str, bool | None]] = defaultdict(dict)
        self._values: dict[str, dict[str, set[str]]] = defaultdict(dict)
        for node, several in of_node.items():
            if len(several) > 1:
                self._compare(node, several, evidence)
        self._shown: dict[str, set[frozenset[str]]] = defaultdict(set)
        for node, answers in self._answers.items():
            for label in (label for label, answer in answers.items() if answer):
                self._shown[label].add(frozenset(self._values[node][label]))
        for answers in self._answers.values():
            for label in (label for label, answer in answers.items() if answer is False):
                self._shown.pop(label, None)

    def of(self, node: str) -> Sequence[str]:
        """The labels for a node, those with `cluster` in their names first, and those of jobs and replicas last."""
        answers = self._answers.get(node, {})
        doubtful = {label for label in self._doubtful if answers.get(label) is not False}
        doubtful |= {label for label, differ in answers.items() if differ is None and self._is_shown(node, label)}
        return sorted({*self._certain, *doubtful, *(label for label, differ in answers.items() if differ)}, key=_rank)

    def _is_shown(self, node: str, label: str) -> bool:
        """Whether these values of the label are of several machines for another node, and of one machine for none."""
        values = self._values[node][label]
        return any(values <= shown for shown in self._shown.get(label, ()))

    def _compare(self, node: str, several: Sequence[NamedSeries], evidence: NamingEvidence) -> None:
        rows = [each.labels for each in several]
        texts: dict[str, set[str]] = defaultdict(set)
        of_job: dict[tuple[str, str], set[str]] = defaultdict(set)
        for row in rows:
            for label in (*scopes(row), *of_scrapes(row)):
                if row[label]:
                    texts[label].add(row[label])
                    of_job[label, own(row, "job")].add(row[label])
        in_one_job = {label for (label, _), values in of_job.items() if len(values) > 1}
        for label, values in texts.items():
            if len(values) < 2:
                continue
            if CLUSTER.search(label):
                self._certain.add(label)
                continue
            self._values[node][label] = values
            differ = self._answers[node][label] = evidence.of_machines.differ(node, rows, label, values)
            if differ is None and (is_place(label) or (label in evidence.cluster_labels and label in in_one_job)):
                self._doubtful.add(label)


def _rank(label: str) -> tuple[bool, bool, bool, str]:
    return not CLUSTER.search(label), not is_place(label), label in of_scrapes({label: ""}), label


def _taken_from_unlabelled(several: Sequence[NamedSeries], clusters: Sequence[str]) -> str:
    """Take the name from series without the label of their cluster, if other series of the name have it, unless only
    the former have the node's address. Return the label, "" if all series are alike."""
    for label in clusters:
        without = [each for each in several if not each.labels.get(label)]
        others = [each for each in several if each.labels.get(label)]
        if not any(map(_is_certain, others)):
            without = [each for each in without if not _is_certain(each)]
        if without and others:
            for each in without:
                each.node = None
            return label
    return ""


def _taken_from_unknown(node: str, several: Sequence[NamedSeries], evidence: NamingEvidence) -> str:
    """Take the name from series without the label of their cluster, if node_uname_info has targets of several clusters
    at their address. Return the label, "" without such series."""
    for label in sorted(evidence.cluster_labels):
        without = [
            each
            for each in several
            if not each.labels.get(label) and label in evidence.clusters_of_host.get(each.host, ())
        ]
        rows = [each.labels for each in without]
        names = names_of(node, rows)
        targets = [row for each in without for row in evidence.names_of_target[each.host] if may_be_of(row, names)]
        values = {text for row in targets if (text := row.get(label, ""))}
        if len(values) > 1 and evidence.of_machines.differ(node, rows, label, values) is not False:
            for each in without:
                each.node = None
            return label
    return ""


def _is_certain(series: NamedSeries) -> bool:
    """Whether the address, or the pod of the exporter, is that of the node."""
    return any(by.removeprefix(EXPORTED) in (INSTANCE, OF_POD) for by, _, node in series.matches if node == series.node)


def _foreign_series(
    several: Sequence[NamedSeries], certain: Sequence[NamedSeries], of_clusters: Sequence[str]
) -> list[NamedSeries]:
    """Series of other machines than the certain ones, or without those, all if they are of several machines."""
    label, values = differing(several, of_clusters)
    clusters = label in of_clusters
    if certain:
        known = {own(each.labels, label) for each in certain} if clusters else set()
        if len(known - {""}) > 1:
            return list(several)
        of_others = [
            each
            for each in several
            if each not in certain and not _is_pod(each) and differ({each.host, *(one.host for one in certain)})
        ]
        if clusters:
            apart = [each for each in several if own(each.labels, label) not in {*known, ""}]
            of_others += [each for each in apart if each not in of_others]
        return [each for each in several if each in of_others]
    if clusters:
        return list(several)
    machines = {each.host for each in several}
    if differ(machines, names=any(each.by == HOST_NAME for each in several)) and (
        values or not all(map(_is_pod, several)) or _has_several_targets(several)
    ):
        return list(several)
    return []


def _conflicting(
    node: str,
    several: Sequence[NamedSeries],
    certain: Sequence[NamedSeries],
    clusters: Sequence[str],
    evidence: NamingEvidence,
) -> list[NamedSeries]:
    """Series of other machines, or all if it is unknown which are of the node."""
    if len(several) < 2:
        return []
    foreign = _foreign_series(several, certain, clusters)
    if not foreign and evidence.of_machines.are_several(node, [each.labels for each in several]):
        return list(several)
    return foreign


def _of_other_clusters(
    node: str, several: Sequence[NamedSeries], certain: Sequence[NamedSeries], evidence: NamingEvidence
) -> tuple[str, tuple[str, ...]] | None:
    """The label by which node_uname_info has targets of other clusters with the name or address of these series, with
    its values: a metric that only one of the clusters has does not show which of them is the cluster."""
    labels = [each.labels for each in several]
    names = names_of(node, labels)
    for each in several:
        rows = [row for row in evidence.names_of_target.get(each.host, ()) if each.host and may_be_of(row, names)]
        if each not in certain:
            rows += evidence.targets_of_name.get(node, ())
        for label in scopes(each.labels):
            values = {row[label] for row in rows if row.get(label)}
            if len(values) < 2 or each.labels[label] not in values or not (CLUSTER.search(label) or is_place(label)):
                continue
            if CLUSTER.search(label) or evidence.of_machines.differ(node, labels, label, values) is not False:
                return label, tuple(sorted(values))
    return None


def _has_several_targets(several: Sequence[NamedSeries]) -> bool:
    """Whether one pod has series of several machines, as a proxy of exporters has: these are not on its node."""
    hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for each in several:
        hosts[each.labels.get("namespace", ""), pod_of(each.labels)].add(each.host)
    return any(map(differ, hosts.values()))


def _is_away(series: NamedSeries, index: NodeIndex | None, at_addresses: Set[str]) -> bool:
    """Whether the exporter runs on an earlier machine with the name of its node: its job is among those with exporters
    at the addresses of their nodes, and its address is not one of this node."""
    node = series.node or ""
    known = index.nodes[node].addresses if index is not None and node in index.nodes else ()
    if not _is_pod(series) or own(series.labels, "job") not in at_addresses:
        return False
    kind = family(series.host)
    return kind != "name" and any(family(spelling(text)) == kind for _, text in known)


def _is_pod(series: NamedSeries) -> bool:
    """Whether the exporter is a pod whose node was added when it was scraped: its address changes with each rollout."""
    return bool(pod_of(series.labels)) and series.by in NODE_LABELS


def differing(several: Sequence[NamedSeries], clusters: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The label that distinguishes these series as those of different clusters, with its values; ("", ()) without one.
    A label that some series lack has no different value there. `clusters`, the labels that name them, come first."""
    found: list[tuple[int, str, tuple[str, ...]]] = []
    labels = sorted({*(label for each in several for label in scopes(each.labels)), *clusters})
    apart = differ({each.host for each in several})
    for label in labels:
        values = tuple(sorted({text for each in several if (text := each.labels.get(label, ""))}))
        rank = clusters.index(label) if label in clusters else len(clusters)
        if len(values) > 1 and (label in clusters or (apart and _follows_hosts(several, label))):
            found.append((rank, label, values))
    return min(found)[1:] if found else ("", ())


def _follows_hosts(several: Sequence[NamedSeries], label: str) -> bool:
    """Whether each host has one value of the label."""
    values: dict[str, set[str]] = defaultdict(set)
    for each in several:
        values[each.host].add(each.labels.get(label, ""))
    return all(len(each) == 1 for each in values.values())
