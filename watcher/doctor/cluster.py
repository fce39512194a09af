"""Kubernetes: can we ask it, may we ask what we need, and are the source's nodes its nodes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from watcher.doctor.examination import Examination
from watcher.doctor.results import Result, count, fail, ok, skipped, some, some_of, warn
from watcher.doctor.source import Visit, addresses_among
from watcher.kube import NODES, KubeClient, KubeError, find_access, key_of
from watcher.settings import Settings

LABEL_CURE = (
    "set provider.node_label to the label that has the node's name, or relabel __meta_kubernetes_pod_node_name to node "
    "at the scrape (docs/prometheus.md)"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the Kubernetes API tells of itself: the names of its nodes."""

    nodes: tuple[str, ...]


def kubeconfig_of(found: Settings) -> Path | None:
    """The kubeconfig that the settings name."""
    return found.provider.kubeconfig


def at_hand(found: Settings, environ: Mapping[str, str]) -> bool:
    """Whether there is a Kubernetes API to ask: a kubeconfig is named, or we are in a pod."""
    return kubeconfig_of(found) is not None or "KUBERNETES_SERVICE_HOST" in environ


async def kubernetes(examination: Examination) -> Sequence[Result]:
    """Whether the Kubernetes API answers, and knows us."""
    found = examination.the(Settings)
    if not at_hand(found, examination.environ):
        why = "no Kubernetes API is at hand: no kubeconfig is named, and this is no pod"
        return [skipped(why, "to compare names of nodes with the cluster's, set provider.kubeconfig (KUBE_CONFIG)")]
    client = KubeClient(
        lambda: find_access(kubeconfig=kubeconfig_of(found), environ=examination.environ),
        timeout=found.provider.timeout,
    )
    try:
        listing = await client.list(NODES)
    except KubeError as error:
        return [fail(str(error), error.hint or "does kubectl get nodes work with the same credentials?")]
    finally:
        await client.close()
    examination.leave(Cluster(tuple(sorted(key_of(node) for node in listing.items))))
    return [ok(f"the Kubernetes API answers: {count(len(listing.items), 'node')}")]


async def addresses(examination: Examination) -> Sequence[Result]:
    """Whether the source calls its nodes by IP addresses, which says without any cluster that they are not mapped."""
    names = examination.the(Visit).nodes
    if not names:
        return [skipped("there are no samples, so there are no names")]
    wrong = addresses_among(names)
    if wrong:
        told = f"the source calls these by their address: {some_of(wrong, names)}"
        return [fail(f"{told}; Kubernetes calls no node so, and schedulers find no load for it", LABEL_CURE)]
    return [ok(f"the source calls its nodes {some(names)}")]


async def nodes(examination: Examination) -> Sequence[Result]:
    """Whether every node of the cluster has samples under its own name, and every sample a node."""
    cluster, visit = examination.the(Cluster), examination.the(Visit)
    ours, theirs = set(visit.nodes), set(cluster.nodes)
    if not ours:
        return [skipped("there are no samples, so there are no names")]
    strange, missing = sorted(ours - theirs), sorted(theirs - ours)
    results = []
    if strange and not ours & theirs:
        told = f"none of the source's nodes is one of the cluster: it says {some(strange)}, the cluster {some(missing)}"
        return [fail(told, LABEL_CURE)]
    if strange:
        told = f"the cluster does not have these nodes of the source: {some_of(strange, visit.nodes)}"
        results.append(warn(told, LABEL_CURE))
    if missing:
        cure = "is the exporter of each running and scraped? A node without load scores 0 in the Go plug-ins"
        results.append(warn(f"there are no samples of these nodes: {some_of(missing, cluster.nodes)}", cure))
    return results or [ok(f"all {count(len(theirs), 'node')} of the cluster have samples under their own names")]
