"""Candidates for the name of the node of a series: labels, its address, and what other series say about them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from watcher.core.naming.labels import (
    CLUSTER,
    EXPORTED,
    NO_NAMES,
    NODE_LABELS,
    OF_TARGET,
    Labels,
    family,
    host_of,
    instance_of,
    own,
    scopes,
    several_valued,
    shared_by_hosts,
    unique,
)
from watcher.core.naming.machines import IdleReading, MachineEvidence
from watcher.core.naming.name_resolver import NodeIndex, spelling, without_port

INSTANCE = "instance without its port"
WHOLE_INSTANCE = "instance"
HOST_NAME = "nodename (of node_uname_info, by instance)"
OF_POD = "node (of kube_pod_info, by namespace and pod)"
OF_EXPORTER = (INSTANCE, HOST_NAME, OF_POD)
"""Candidates that name the node of the exporter, which may have series of other machines."""
OF_UNAME = frozenset({"sysname", "release", "version", "domainname"})
"""Labels of the kernel in node_uname_info."""


@dataclass(frozen=True)
class NamingEvidence:
    """Everything that can show the node of a series. `nodes` are the known nodes (None: unknown), `host_names` are the
    series of node_uname_info, `pods` those of kube_pod_info, `machines` those of kube_node_info and of kubelets, with
    boot_id and system_uuid of a node, `idle` the idle times of a CPU of each target."""

    nodes: NodeIndex | None = None
    host_names: Sequence[Labels] = ()
    pods: Sequence[Labels] = ()
    machines: Sequence[Labels] = ()
    idle: Sequence[IdleReading] = ()

    @cached_property
    def node_of_pod(self) -> Mapping[tuple[str, str], str]:
        """Node by namespace and pod; without pods that have several."""
        return unique(
            ((own(row, "namespace"), own(row, "pod")), own(row, "node")) for row in self.pods if own(row, "pod")
        )

    @cached_property
    def node_of_address(self) -> Mapping[str, str]:
        """Node by the address of a pod or of its host."""
        pairs = [
            (spelling(row[label]), own(row, "node"))
            for row in self.pods
            for label in ("pod_ip", "host_ip")
            if row.get(label)
        ]
        return unique(pairs)

    @cached_property
    def shared_labels(self) -> frozenset[tuple[str, str]]:
        """Labels that many hosts share in node_uname_info, with their values: they name the scraping server."""
        return frozenset(
            shared_by_hosts(
                ((label, text), row)
                for row in self.host_names
                for label in NODE_LABELS
                if label != "nodename" and (text := own(row, label))
            )
        )

    @cached_property
    def is_of_scraper(self) -> Mapping[tuple[str, str, str], bool]:
        """By job of node_uname_info, label of the node and its value: whether all targets of the job have this value
        although they are several machines, so that it is the node of the scraping server."""
        texts: dict[tuple[str, str], set[str]] = defaultdict(set)
        hosts: dict[tuple[str, str], set[str]] = defaultdict(set)
        kernels: dict[tuple[str, str], set[str]] = defaultdict(set)
        for row in self.host_names:
            for label in NODE_LABELS:
                if label != "nodename" and (text := own(row, label)):
                    key = own(row, "job"), label
                    texts[key].add(text)
                    hosts[key].add(host_of(row))
                    kernels[key] |= {own(row, "nodename")} - {own(row, "pod")}
        return {
            (*key, text): len(texts[key]) == 1 and len(hosts[key]) > 1 and len(kernels[key]) > 1
            for key in texts
            for text in texts[key]
        }

    @cached_property
    def clusters_of_host(self) -> Mapping[str, Set[str]]:
        """By host, labels with several values for one target of node_uname_info, whose exporter has no labels of
        devices: those of its cluster."""
        return {host: labels - OF_UNAME for host, labels in several_valued(self.host_names).items()}

    @cached_property
    def cluster_labels(self) -> Set[str]:
        """The labels of clusters of all hosts."""
        return set().union(*self.clusters_of_host.values())

    @cached_property
    def of_machines(self) -> MachineEvidence:
        """What shows whether series with one name are of several machines."""
        return MachineEvidence(self.machines, self.host_names, self.idle)

    def jobs_at_addresses(self, rows: Iterable[Labels]) -> Set[str]:
        """The jobs of which most exporters, in these rows or in node_uname_info, have the addresses of their nodes, as
        those in the network of the host."""
        at: dict[str, set[str]] = defaultdict(set)
        away: dict[str, set[str]] = defaultdict(set)
        for row in (*rows, *self.host_names) if self.nodes is not None else ():
            host = host_of(row)
            if self.nodes is None or family(host) == "name":
                continue
            named = {self.nodes.find(own(row, label)).node for label in NODE_LABELS if own(row, label)} - {""}
            for node in named:
                (at if self.nodes.find(host).node == node else away)[own(row, "job")].add(node)
        return {job for job, nodes in at.items() if len(nodes) > max(1, len(away[job] - nodes))}

    @cached_property
    def names_of_target(self) -> Mapping[str, Sequence[Labels]]:
        """Series of node_uname_info by host of their instance."""
        found: dict[str, list[Labels]] = defaultdict(list)
        for row in self.host_names:
            found[host_of(row)].append(row)
        return found

    @cached_property
    def targets_of_name(self) -> Mapping[str, Sequence[Labels]]:
        """Series of node_uname_info by each name that they have."""
        found: dict[str, list[Labels]] = defaultdict(list)
        for row in self.host_names:
            for name in {own(row, label) for label in NODE_LABELS} - {""}:
                found[name].append(row)
        return found


@dataclass(slots=True, eq=False)
class NamedSeries:
    """A series with its candidates, and its name so far. `matches` are the candidates that are known nodes."""

    labels: Labels
    host: str
    candidates: list[tuple[str, str]]
    matches: list[tuple[str, str, str]] = field(default_factory=list)
    node: str | None = None
    by: str = ""
    text: str = ""

    def name(self, node: str, by: str, text: str) -> None:
        self.node, self.by, self.text = node, by, text


def candidates_of(row: Labels, evidence: NamingEvidence, *, pods: bool) -> Iterator[tuple[str, str]]:
    for label in NODE_LABELS:
        if (text := own(row, label)) and text not in NO_NAMES:
            yield (EXPORTED + label if row.get(EXPORTED + label) else label), text
    host = without_port(instance_of(row))
    if pods:
        keys = ((own(row, "namespace"), own(row, "pod")), (row.get("namespace", ""), row.get("pod", "")))
        of_pod = next((evidence.node_of_pod[key] for key in keys if key in evidence.node_of_pod), "")
        if node := of_pod or evidence.node_of_address.get(spelling(host), ""):
            yield OF_POD, node
    if name := host_name_of(row, evidence):
        yield HOST_NAME, name
    if host:
        yield (f"{EXPORTED}{INSTANCE}" if row.get(EXPORTED + "instance") else INSTANCE), host


def host_name_of(row: Labels, evidence: NamingEvidence) -> str:
    """The name of the row's target in node_uname_info: a label of the node, otherwise the kernel's host name. "" if it
    has none or several: the instance then has exporters of several machines behind it."""
    rows = evidence.names_of_target.get(host_of(row), ()) if host_of(row) else ()
    exact = [each for each in rows if instance_of(each) == instance_of(row)]
    rows = exact or rows
    names = {_uname(each, evidence) for each in rows}
    if len(names) > 1:
        alike = [each for each in rows if all(row[key] == each[key] for key in scopes(row) if key in each)]
        names = {_uname(each, evidence) for each in alike}
    name = next(iter(names)) if len(names) == 1 else ""
    return "" if name in NO_NAMES or name == own(row, "pod") else name


def _uname(row: Labels, evidence: NamingEvidence) -> str:
    for label in NODE_LABELS:
        text = own(row, label) if label != "nodename" else ""
        of_scraper = evidence.is_of_scraper.get((own(row, "job"), label, text), False)
        if text and not of_scraper and (label, text) not in evidence.shared_labels:
            return text
    return own(row, "nodename")


def of_several_machines(every: Sequence[NamedSeries]) -> set[str]:
    """Instances of exporters whose series have labels of several machines: the exporter runs on one of them, or on
    none."""
    texts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for series in every:
        if instance := instance_of(series.labels):
            for by, text in series.candidates:
                if by.removeprefix(EXPORTED) in NODE_LABELS:
                    texts[instance, by].add(text)
    return {instance for (instance, _), values in texts.items() if len(values) > 1}


def other_labels(series: NamedSeries, index: NodeIndex) -> list[tuple[str, str, str]]:
    """Labels with other names whose value is exactly the name of a node."""
    return [
        (label, text, text)
        for label, text in sorted(series.labels.items())
        if text in index.nodes and label.removeprefix(EXPORTED) not in OF_TARGET and not CLUSTER.search(label)
    ]
