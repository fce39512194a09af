"""Kubernetes: can we ask it, may we ask what we need, and are the source's nodes its nodes?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from watcher.doctor.examination import Examination
from watcher.doctor.results import Result, count, fail, ok, skipped, some, some_of, warn
from watcher.doctor.source import Visit, addresses_among
from watcher.kube import NODE_METRICS, NODES, KubeClient, KubeError, Resource, find_access, key_of, missing_rule
from watcher.providers.metrics_server_pods import PLACED_PODS, POD_METRICS
from watcher.settings import Settings

LABEL_CURE = (
    "set provider.node_label to the label that has the node's name, or relabel __meta_kubernetes_pod_node_name to node "
    "at the scrape (docs/prometheus.md)"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster: how to ask it, and the names of its nodes, None where we may not list them."""

    client: Callable[[], KubeClient]
    nodes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Right:
    """Something that we do to a resource. `vital`: without it nothing works, else it works less well."""

    verb: str
    resource: Resource[Any]
    purpose: str
    vital: bool = True

    @property
    def shown(self) -> str:
        """As kubectl auth can-i takes it."""
        return f"{self.verb} {self.resource.full_name}"


def at_hand(found: Settings, environ: Mapping[str, str]) -> bool:
    """Whether there is a Kubernetes API to ask: a kubeconfig is named, or we are in a pod."""
    return found.kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in environ


def rights(found: Settings) -> Sequence[Right]:
    """What these settings have us do with the Kubernetes API (docs/kubernetes.md)."""
    if found.provider.name != "metrics-server":
        return []
    always = [
        Right("list", NODE_METRICS, "the load of the nodes"),
        Right("list", NODES, "the capacity of the nodes"),
        Right("watch", NODES, "changes of the nodes; without it they are listed once a minute", vital=False),
    ]
    wanted = found.refresh.pods
    of_pods: list[tuple[Resource[Any], str]] = []
    if wanted != "off":
        of_pods = [(POD_METRICS, "list"), (PLACED_PODS, "list"), (PLACED_PODS, "watch")]
    purpose = "what pods use" + (", if anybody asks (refresh.pods)" if wanted == "auto" else "")
    return [*always, *(Right(verb, resource, purpose, vital=wanted == "on") for resource, verb in of_pods)]


async def kubernetes(examination: Examination) -> Sequence[Result]:
    """Whether the Kubernetes API answers, and knows us."""
    found = examination.the(Settings)
    if not at_hand(found, examination.environ):
        why = "no Kubernetes API is at hand: no kubeconfig is named, and this is no pod"
        return [skipped(why, "to compare names of nodes with the cluster's, set provider.kubeconfig (KUBE_CONFIG)")]

    def connect() -> KubeClient:
        return KubeClient(
            lambda: find_access(
                kubeconfig=found.kubeconfig, context=found.kubernetes.context, environ=examination.environ
            ),
            timeout=found.provider.timeout,
        )

    client = connect()
    try:
        may_list = await client.may("list", NODES)
        names = tuple(sorted(map(key_of, (await client.list(NODES)).items))) if may_list else None
    except KubeError as error:
        return [fail(str(error), error.hint or "does kubectl get nodes work with the same credentials?")]
    finally:
        await client.close()
    examination.leave(Cluster(connect, names))
    size = "and will not list its nodes" if names is None else f"and has {count(len(names), 'node')}"
    return [ok(f"the Kubernetes API answers, knows us {size}")]


async def permissions(examination: Examination) -> Sequence[Result]:
    """Whether we may do all that these settings have us do: a SelfSubjectAccessReview for each verb and resource."""
    needed = rights(examination.the(Settings))
    if not needed:
        return [skipped("these settings have us do nothing that takes a right")]
    client = examination.the(Cluster).client()
    try:
        granted = [await client.may(right.verb, right.resource) for right in needed]
    except KubeError as error:
        return [warn(f"the rights of this account cannot be told: {error}", error.hint or "try kubectl auth can-i")]
    finally:
        await client.close()
    results = [
        (fail if right.vital else warn)(
            f"this account may not {right.shown}, which is for {right.purpose}",
            missing_rule(right.verb, right.resource.plural, group=right.resource.group),
        )
        for right, may in zip(needed, granted, strict=True)
        if not may
    ]
    return results or [ok(f"this account may {', '.join(right.shown for right in needed)}")]


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
    if cluster.nodes is None:
        return [skipped("we may not list the nodes of the cluster", "kubectl auth can-i list nodes")]
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
