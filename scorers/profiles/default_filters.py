"""Filters of kube-scheduler that need only the nodes, their pods, and the pod to place.

kube-scheduler calls an extender only for nodes that pass these filters, so requests of kube-scheduler do not run them.
The ranking of a manifest does, because its user names any nodes or none. As in k8s.io/kubernetes 1.34 to 1.36,
pkg/scheduler/framework/plugins: NodeResourcesFit, NodeUnschedulable, TaintToleration, and of NodeAffinity the node
selector. Other rules (required affinity, topology spread, ports, volumes, devices of DRA) are not computed; `unchecked`
names the first two if the pod has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from scorers.cluster.pods import PodInfo
from scorers.cluster.table import ClusterTable
from scorers.plugin_api.exemptions import of_daemon_set
from scorers.plugin_api.framework import Verdicts
from scorers.profiles.profiles import PluginSettings
from scorers.profiles.ranking import FilterResult
from watcher.arrays import I64, Bool
from watcher.core.kubernetes.objects import Node, Pod, Taint, Toleration
from watcher.core.kubernetes.pod_resources import CPU, MEMORY

KUBE_SCHEDULER = "kube-scheduler"
PODS = "pods"
KEEPING_OFF = frozenset({"NoSchedule", "NoExecute"})
CORDONED = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
SELECTOR = "the node selector does not match"
DAEMON_TOLERATIONS = tuple(
    Toleration(f"node.kubernetes.io/{name}", "Exists", effect=effect)
    for effect, names in {
        "NoExecute": ("not-ready", "unreachable"),
        "NoSchedule": ("disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"),
    }.items()
    for name in names
)
"""The DaemonSet controller adds these to its pods; a manifest does not contain them."""


def lacking_room(pod: PodInfo, table: ClusterTable, rows: I64) -> dict[str, Bool]:
    """Return, for each resource that the pod requests and for the number of pods, whether the nodes in these rows have
    too little of it left [n]. A node without an allocatable number of pods takes any number."""
    room = table.allocatable.column(PODS)[rows]
    found: dict[str, Bool] = {}
    for resource in sorted(pod.requests, key=lambda name: (name not in (CPU, MEMORY), name)):
        if (wanted := pod.requests[resource]) > 0:
            free = table.allocatable.column(resource)[rows] - table.requested.column(resource)[rows]
            found[resource] = free < wanted
    found[PODS] = (room > 0) & (table.pods[rows] >= room)
    return found


def matches_selector(pod: Pod, node: Node | None) -> bool:
    """Return whether the node has all labels of the pod's node selector."""
    labels = {} if node is None else node.metadata.labels
    return all(labels.get(key) == value for key, value in pod.spec.node_selector.items())


def default_verdicts(pod: PodInfo, table: ClusterTable, rows: I64) -> FilterResult:
    """Return the verdicts of these filters about the nodes in these rows. A pod that is bound already does not take
    room from itself."""
    with table.without_pod(pod.key):
        lacking = lacking_room(pod, table, rows)
    nodes = [table.node(table.names[row]) for row in rows.tolist()]
    special = [(i, each) for i, each in enumerate(nodes) if each and (each.spec.unschedulable or each.spec.taints)]
    selective = nodes if pod.pod.spec.node_selector else []
    reasons: dict[str, Iterable[tuple[int, str]]] = {
        "NodeResourcesFit": _no_room(lacking),
        "NodeUnschedulable": ((i, _cordon(each, pod.pod)) for i, each in special),
        "TaintToleration": ((i, _taint(each, pod.pod)) for i, each in special),
        "NodeAffinity": ((i, SELECTOR) for i, each in enumerate(selective) if not matches_selector(pod.pod, each)),
    }
    return FilterResult(
        tuple((PluginSettings(name, 1, {}, ("filter",)), _verdicts(len(rows), each)) for name, each in reasons.items())
    )


def unchecked(pod: Pod) -> list[str]:
    """Return which of required affinity and topology spread constraints the pod has."""
    rules = {
        "required affinity": pod.spec.affinity,
        "topology spread constraints": pod.spec.topology_spread_constraints,
    }
    return [name for name, rule in rules.items() if rule]


def _no_room(lacking: dict[str, Bool]) -> Iterator[tuple[int, str]]:
    for i in np.flatnonzero(np.logical_or.reduce(list(lacking.values()))).tolist():
        yield i, f"no room: {', '.join(resource for resource, lacks in lacking.items() if lacks[i])}"


def _cordon(node: Node, pod: Pod) -> str:
    return "the node is unschedulable" if node.spec.unschedulable and not _tolerated(CORDONED, pod) else ""


def _taint(node: Node, pod: Pod) -> str:
    for taint in node.spec.taints:
        if node.spec.unschedulable and taint == CORDONED:
            continue  # NodeUnschedulable reports it
        if taint.effect in KEEPING_OFF and not _tolerated(taint, pod):
            value = f"={taint.value}" if taint.value else ""
            return f"taint not tolerated: {taint.key}{value}:{taint.effect}"
    return ""


def _tolerated(taint: Taint, pod: Pod) -> bool:
    tolerations = pod.spec.tolerations + (DAEMON_TOLERATIONS if of_daemon_set(pod) else ())
    return any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """As `Toleration.ToleratesTaint` of Kubernetes; the operators Lt and Gt (alpha in 1.35) tolerate nothing."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def _verdicts(count: int, rejected: Iterable[tuple[int, str]]) -> Verdicts:
    """Return verdicts of `count` nodes from the positions of rejected ones, with one code per different reason; nodes
    with the reason "" pass."""
    codes: dict[str, int] = {"": 0}
    found = np.zeros(count, dtype=np.int64)
    for i, reason in rejected:
        found[i] = codes.setdefault(reason, len(codes))
    return Verdicts(found, tuple(codes))
