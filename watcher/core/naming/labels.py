"""Labels of series that name their node, their exporter and their cluster.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from ipaddress import ip_address
from typing import TypeVar

from watcher.core.naming.name_resolver import spelling
from watcher.model import METRICS

Labels = Mapping[str, str]
K = TypeVar("K", bound=Hashable)

NODE_LABELS = (
    "node",
    "kubernetes_node",
    "Hostname",
    "node_name",
    "k8s_node_name",
    "k8s.node.name",
    "kubernetes_io_hostname",
    "nodename",
)
"""Labels that exporters and scrape configurations use for the node, most specific first."""
EXPORTED = "exported_"
"""Prefix of a label of the exporter that the scrape target has as well. Without honor_labels, the label without the
prefix describes the target: the federated server, for example, and not the machine."""
NO_NAMES = frozenset({"localhost", "localhost.localdomain", "(none)"})
OF_TARGET = frozenset(
    {
        *("__name__", "instance", "job", "pod", "pod_name", "pod_ip", "namespace", "container", "container_name"),
        *(
            "endpoint",
            "service",
            "uid",
            "id",
            "image",
            "name",
            "prometheus_replica",
            "replica",
            "host_ip",
        ),
        *("__replica__", "machine", "system_uuid", "controller_revision_hash", "pod_template_generation"),
    }
)
"""Labels that differ between two series of one machine: they describe the exporter, its scrape or its replica."""
OF_DEVICES = frozenset(
    {"cpu", "core", "mode", "state", "direction", "mountpoint", "fstype", "pci_bus_id"}
    | {name for metric in METRICS for names in metric.devices for name in names} - {"zone"}
)
"""Labels of parts of a machine. `zone` may also be that of a cluster."""
SHARED_BY = 2
"""Number of other nodes from which on a value does not name a node: that of a proxy, a server or a cluster."""
CLUSTER = re.compile(r"cluster", re.IGNORECASE)
_PLACE = re.compile(
    r"(?:.*[_.-])?(?:env|environment|stage|landscape|region|site|location|dc|data_?center|tenant|account|project"
    r"|subscription|customer|fleet|farm)(?:[_.-]?(?:id|name))?|prometheus",
    re.IGNORECASE,
)
_POD = re.compile(r"(?:^|[_.])pod(?:_?name)?$")
_OF_SCRAPE = re.compile(r"replica|version|chart|revision|generation|hash|heritage|image|uid$", re.IGNORECASE)
"""Names of labels of a replica of Prometheus, or of the deployment of an exporter, which change when it is updated."""


def own(row: Labels, label: str) -> str:
    """The value of a label of the exporter itself, "" without one."""
    return row.get(EXPORTED + label) or row.get(label, "")


def instance_of(row: Labels) -> str:
    """The instance of the exporter, "" if it is unknown: that of federated series is the federated server."""
    instance = row.get(EXPORTED + "instance", "")
    return instance if instance or row.get(EXPORTED + "job") else row.get("instance", "")


def host_of(row: Labels) -> str:
    """The host of the exporter's instance, in canonical form; "" without an instance."""
    return spelling(instance_of(row))


def names_of(node: str, rows: Iterable[Labels]) -> Set[str]:
    """The names of a node in the labels of its series; empty if its address or its host name alone names it."""
    every = [*rows]
    found = {name for row in every for name in _names_in(row)}
    return found | {node} if found or any(node in row.values() for row in every) else found


def may_be_of(target: Labels, names: Set[str]) -> bool:
    """Whether a target may be that of the node with these names (`names_of`): agents scrape localhost on each node, and
    a proxy has one address for all nodes."""
    if names and (_names_in(target) or is_local(host_of(target))):
        return not names.isdisjoint(target.values())
    return True


def _names_in(row: Labels) -> Set[str]:
    """The values of the labels of the node, without the host name of the kernel."""
    return {own(row, label) for label in NODE_LABELS if label != "nodename"} - {""}


def is_local(host: str) -> bool:
    """Whether each machine has this host: localhost, or an address of the loopback interface."""
    try:
        return host in NO_NAMES or ip_address(host).is_loopback
    except ValueError:
        return False


def pod_of(row: Labels) -> str:
    """The pod of the target, in whichever label the scrape configuration has it; "" without one."""
    return row.get("pod") or next((row[label] for label in sorted(row) if _POD.search(label) and row[label]), "")


def unique(pairs: Iterable[tuple[K, str]]) -> dict[K, str]:
    """The values of the keys that have one value only."""
    found: dict[K, set[str]] = defaultdict(set)
    for key, value in pairs:
        if value:
            found[key].add(value)
    return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}


def family(host: str) -> str:
    """Hosts of different families may be one machine: it has addresses of both families, and a name."""
    try:
        return f"IPv{ip_address(host).version}"
    except ValueError:
        return "name"


def differ(hosts: Iterable[str], *, names: bool = False) -> bool:
    """Whether these hosts are of different machines: two addresses of one family, or with `names` two host names."""
    families: dict[str, set[str]] = defaultdict(set)
    for host in hosts:
        if host:
            kind = family(host)
            families[kind].add(host.partition(".")[0] if kind == "name" else host)
    return any(len(each) > 1 for kind, each in families.items() if names or kind != "name")


def scopes(row: Labels) -> Iterator[str]:
    """Labels that may distinguish clusters."""
    for label in row:
        own_name = label.removeprefix(EXPORTED)
        if own_name not in OF_TARGET and own_name not in NODE_LABELS and not _OF_SCRAPE.search(own_name):
            yield label


def of_scrapes(row: Labels) -> Iterator[str]:
    """Labels of jobs and replicas, which distinguish clusters only if the machines are known to differ."""
    for label in row:
        own_name = label.removeprefix(EXPORTED)
        if own_name == "job" or (_OF_SCRAPE.search(own_name) and own_name not in ("image", *NODE_LABELS)):
            yield label


def several_valued(rows: Iterable[Labels]) -> dict[str, set[str]]:
    """The labels among `scopes` that have several values for one instance of a job, by host of the instance."""
    texts: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for row in rows:
        if instance := instance_of(row):
            for label in scopes(row):
                texts[own(row, "job"), instance, label].add(row[label])
    found: dict[str, set[str]] = defaultdict(set)
    for (_, instance, label), values in texts.items():
        if len(values) > 1:
            found[spelling(instance)].add(label)
    return found


def has_duplicates(rows: Iterable[Labels]) -> bool:
    """Whether an instance of a job has several series of one device."""
    return _has_twice((own(row, "job"), instance, _device(row)) for row in rows if (instance := instance_of(row)))


def has_several(rows: Sequence[Labels], nodes: Sequence[str | None]) -> bool:
    """Whether a node has several series of one device, as of two jobs, or of two machines."""
    return _has_twice((node, _device(row)) for row, node in zip(rows, nodes, strict=True) if node is not None)


def _device(row: Labels) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(pair for pair in row.items() if pair[0] in OF_DEVICES))


def _has_twice(keys: Iterable[Hashable]) -> bool:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            return True
        seen.add(key)
    return False


def is_place(label: str) -> bool:
    """Whether the name of the label is one that operators give to clusters beside `cluster`. An installation may have
    such labels for nodes of one cluster too, so only different values for one node count."""
    return _PLACE.fullmatch(label.removeprefix(EXPORTED)) is not None


def values_of_clusters(rows: Iterable[Labels]) -> dict[str, set[str]]:
    """The values of the labels that name clusters or places."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for label in scopes(row):
            if row[label] and (CLUSTER.search(label) or is_place(label)):
                found[label].add(row[label])
    return found


def shared_by_hosts(keyed: Iterable[tuple[K, Labels]]) -> set[K]:
    """The keys that series of more than SHARED_BY hosts of one cluster have: values that name no machine."""
    hosts: dict[K, dict[Hashable, set[str]]] = {}
    places: dict[K, dict[tuple[str, str], set[str]]] = {}
    members: dict[tuple[str, str], set[str]] = defaultdict(set)
    for key, row in keyed:
        host, cluster = host_of(row), tuple(sorted(pair for pair in row.items() if CLUSTER.search(pair[0])))
        hosts.setdefault(key, {}).setdefault(cluster, set()).add(host)
        for pair in row.items():
            if is_place(pair[0]):
                members[pair].add(host)
                places.setdefault(key, {}).setdefault(pair, set()).add(host)

    def of_places(key: K) -> bool:
        """Whether a label of places has one host with the key in each place, which has other hosts too."""
        labels = {label for label, _ in places.get(key, ())}
        return any(
            all(len(found) == 1 and len(members[pair]) > 1 for pair, found in places[key].items() if pair[0] == label)
            for label in labels
        )

    several = {key for key, clusters in hosts.items() if any(len(each) > SHARED_BY for each in clusters.values())}
    return {key for key in several if not of_places(key)}
