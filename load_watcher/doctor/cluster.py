"""Kubernetes: can we ask it, may we ask what we need, and are the source's nodes its nodes?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_watcher.doctor.environment import IN_CLUSTER
from load_watcher.doctor.source import Visit, addresses_among
from watcher.agents.discovery import SERVING_PODS
from watcher.core.koordinator.written_objects import WRITTEN
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.objects import NODE_METRICS, NODES, PODS
from watcher.core.kubernetes.wire import Resource
from watcher.core.naming.node_index import NodeIndex
from watcher.core.naming.node_index import told as in_words
from watcher.core.naming.resolution import STRENGTH
from watcher.koordinator.lease import LEASE, lease_namespace
from watcher.platform.checks.examination import Examination
from watcher.platform.checks.results import NAMED_AT_MOST, Result, count, fail, ok, skipped, some, some_of, warn
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access, own_namespace
from watcher.platform.kube.leases import LEASES
from watcher.platform.kube.refusals import missing_rule
from watcher.platform.settings.tables import Settings
from watcher.providers.metrics_server.pods import PLACED_PODS, POD_METRICS
from watcher.refresh import cluster_nodes

PAGES = "the pages of agents in the dashboard (dashboard.agent_pods, qrm_pods)"
LABEL_CURE = (
    "set provider.node_label to the label that has the node's name, or relabel __meta_kubernetes_pod_node_name to node "
    "at the scrape (docs/prometheus.md)"
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster: how to ask it, and its nodes by all that they are known by, None where we may not list them."""

    client: Callable[[], KubeClient]
    index: NodeIndex | None


@dataclass(frozen=True, slots=True)
class Right:
    """Something that we do to a resource. `vital`: without it nothing works, else it works less well."""

    verb: str
    resource: Resource[Any]
    purpose: str
    vital: bool = True
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def what(self) -> str:
        """The resource, or the part of it, as a role has it."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def shown(self) -> str:
        """As kubectl auth can-i takes it."""
        return f"{self.verb} {self.what}" + (f".{self.resource.group}" if self.resource.group else "")


def rights(found: Settings, environ: Mapping[str, str]) -> Sequence[Right]:
    """What these settings have us do with the Kubernetes API (docs/kubernetes.md)."""
    source = found.provider.name == "metrics-server"
    names, must_name = cluster_nodes.wanted(found, environ=environ), found.kubernetes.node_names == "on"
    needed = [*_of_the_extender(found.parts.get("scheduler", {})), *_of_node_metrics(found), *_of_agents(found)]
    if source:
        needed.append(Right("list", NODE_METRICS, "the load of the nodes"))
    if source or names:
        purpose = "the capacity of the nodes" if source else "the names of the nodes"
        needed.append(Right("list", NODES, purpose, vital=source or must_name))
        needed.append(
            Right("watch", NODES, "changes of the nodes; without it they are listed once a minute", vital=False)
        )
    if source and found.refresh.pods != "off" and not found.agents.named:
        must = found.refresh.pods == "on"
        purpose = "what pods use" if must else "what pods use, if anybody asks (refresh.pods)"
        needed += [
            Right("list", POD_METRICS, purpose, vital=must),
            Right("list", PLACED_PODS, purpose, vital=must),
            Right("watch", PLACED_PODS, purpose, vital=must),
        ]
    return needed


def _of_the_extender(profiles: Mapping[str, Any]) -> Iterator[Right]:
    """What the extender needs with these tables of [scheduler]; they are valid."""
    if profiles:
        purpose = "what the extender of [scheduler] knows of nodes and pods"
        for resource in (NODES, PODS):
            yield Right("list", resource, purpose)
            yield Right("watch", resource, purpose, vital=False)
    if any(isinstance(table, dict) and table.get("bind") for table in profiles.values()):
        yield Right("create", PODS, "binding pods (bind = true in [scheduler])", subresource="binding")
    if any(_reads_node_metrics(table) for table in profiles.values()):
        for verb in ("list", "watch"):
            yield Right(verb, WRITTEN, 'NodeMetrics of the cluster (nodeMetricSource = "cluster" in [scheduler])')


def _reads_node_metrics(profile: Any) -> bool:
    plugins = profile.get("plugins", []) if isinstance(profile, dict) else []
    return any(each.get("args", {}).get("nodeMetricSource") == "cluster" for each in plugins)


def _of_node_metrics(found: Settings) -> Iterator[Right]:
    """What it takes to write NodeMetrics to the cluster."""
    if not found.koordinator.publish:
        return
    purpose = "writing NodeMetrics (koordinator.publish)"
    for verb in ("list", "watch", "create", "patch"):
        yield Right(verb, WRITTEN, purpose)
    yield Right("patch", WRITTEN, purpose, subresource="status")
    namespace = lease_namespace(found)
    yield Right("create", LEASES, purpose, namespace=namespace)
    for verb in ("get", "patch"):
        yield Right(verb, LEASES, purpose, namespace=namespace, name=LEASE)


def _of_agents(found: Settings) -> Iterator[Right]:
    """What it takes to find the pods of agents by their labels."""
    must = found.refresh.pods == "on"
    asked = found.agents.pods if found.refresh.pods != "off" else None
    shown = found.dashboard.agent_pods, found.dashboard.qrm_pods
    selections = (asked, "agents that tell of pods (agents.pods)", must), *((each, PAGES, False) for each in shown)
    for selection, purpose, vital in selections:
        if selection is not None:
            for verb in ("list", "watch"):
                namespace = selection.namespace or own_namespace()
                yield Right(verb, SERVING_PODS, purpose, vital=vital, namespace=namespace)


async def kubernetes(examination: Examination) -> Sequence[Result]:
    """Whether the Kubernetes API answers, and knows us."""
    found = examination.the(Settings)
    if found.kubeconfig is None and IN_CLUSTER not in examination.environ:
        why = "no Kubernetes API is at hand: no kubeconfig is named, and this is no pod"
        vital = [right.purpose for right in rights(found, examination.environ) if right.vital]
        if vital and found.provider.name != "metrics-server":  # of which the source has said it
            cure = "set kubernetes.kubeconfig (KUBE_CONFIG), or run in a cluster, where KUBERNETES_SERVICE_HOST is set"
            return [fail(f"{why}; these settings need one for {vital[0]}", cure)]
        return [skipped(why, "to hold names of nodes against the cluster's, set kubernetes.kubeconfig (KUBE_CONFIG)")]

    def connect() -> KubeClient:
        return KubeClient(
            lambda: find_access(
                kubeconfig=found.kubeconfig, context=found.kubernetes.context, environ=examination.environ
            ),
            timeout=found.provider.timeout,
        )

    client = connect()
    try:
        index = await cluster_nodes.read_index(found) if await client.may("list", NODES) else None
    except KubeError as error:
        return [fail(str(error), error.hint or "does kubectl get nodes work with the same credentials?")]
    finally:
        await client.close()
    examination.leave(Cluster(connect, index))
    size = "and will not list its nodes" if index is None else f"and has {count(len(index.nodes), 'node')}"
    return [ok(f"the Kubernetes API answers, knows us {size}")]


async def _may(client: KubeClient, right: Right) -> bool:
    of = {"subresource": right.subresource, "namespace": right.namespace, "name": right.name}
    return await client.may(right.verb, right.resource, **of)


async def permissions(examination: Examination) -> Sequence[Result]:
    """Whether we may do all that these settings have us do: a SelfSubjectAccessReview for each verb and resource."""
    needed = rights(examination.the(Settings), examination.environ)
    if not needed:
        return [skipped("these settings have us do nothing that takes a right")]
    client = examination.the(Cluster).client()
    try:
        granted = [await _may(client, right) for right in needed]
    except KubeError as error:
        return [warn(f"the rights of this account cannot be told: {error}", error.hint or "try kubectl auth can-i")]
    finally:
        await client.close()
    refused: dict[str, list[Right]] = {}
    for right, may in zip(needed, granted, strict=True):
        if not may:
            refused.setdefault(right.purpose, []).append(right)
    results = [_missing(purpose, missing) for purpose, missing in refused.items()]
    return results or [ok(f"this account may {', '.join(dict.fromkeys(right.shown for right in needed))}")]


def _missing(purpose: str, missing: Sequence[Right]) -> Result:
    """One line for all rights that serve the same."""
    told = f"this account may not {', '.join(right.shown for right in missing)}, which is for {purpose}"
    rules = (
        missing_rule(right.verb, right.what, group=right.resource.group, namespace=right.namespace) for right in missing
    )
    return (fail if any(right.vital for right in missing) else warn)(told, " ".join(rules))


async def addresses(examination: Examination) -> Sequence[Result]:
    """Whether the source calls its nodes by IP addresses, which says without any cluster that they are not mapped."""
    visit = examination.the(Visit)
    names = visit.nodes
    if not names:
        return [skipped("there are no samples, so there are no names")]
    wrong = addresses_among(names)
    if wrong:
        told = f"the source calls these by their address: {some_of(wrong, names)}"
        cure = f"have them taken for nodes by naming the cluster (docs/node-names.md), or {LABEL_CURE}"
        why = "Kubernetes calls no node so, and schedulers find no load for it"
        return [fail(f"{told}; {why}", LABEL_CURE if visit.named else cure)]
    return [ok(f"the source calls its nodes {some(names)}")]


async def nodes(examination: Examination) -> Sequence[Result]:
    """Whether every node of the cluster has samples under its own name, and every name of the source means a node."""
    index, visit = examination.the(Cluster).index, examination.the(Visit)
    if index is None:
        return [skipped("we may not list the nodes of the cluster", "kubectl auth can-i list nodes")]
    if not visit.names:
        return [skipped("there are no samples, so there are no names")]
    known = sorted(name for name in visit.nodes if name in index.nodes)
    strange = list(_strange(visit, index))
    if not known:
        told = f"the source's {some(visit.names)}, the cluster's {some(tuple(index.nodes))}"
        return [*strange, fail(f"no name of the source is a node of the cluster: {told}", _cure(visit, whole=True))]
    results = [ok(f"{_evidence(visit, index)}: {some_of(known, tuple(index.nodes))}"), *strange]
    missing = index.without_series(visit.nodes)
    if missing and examination.the(Settings).provider.name != "host":
        cure = "is the exporter of each running and scraped? A node without load scores 0 in the Go plug-ins"
        results.append(warn(f"there are no samples of these nodes: {some_of(missing, tuple(index.nodes))}", cure))
    return results


def _evidence(visit: Visit, index: NodeIndex) -> str:
    """By what the names of the source are known to be nodes of the cluster."""
    if not visit.named:
        return "nodes of the cluster by their names"
    by = {match.by for match in index.resolve(visit.names).matches.values() if match.node and match.by}
    strongest_first = sorted(by, key=STRENGTH.__getitem__)
    return f"nodes of the cluster, known by {', '.join(strongest_first)}"


def _strange(visit: Visit, index: NodeIndex) -> Iterator[Result]:
    """The names of the source that are no node's, each with what would make it one."""
    matches = index.resolve(visit.names).matches
    if visit.named:
        unmapped = [f"{name} {in_words(match, index)}" for name, match in matches.items() if not match.node]
    else:
        names = [name for name in visit.nodes if name not in index.nodes]
        unmapped = [f"{name} {in_words(matches[name], index) if name in matches else 'is no node'}" for name in names]
    for text in unmapped[:NAMED_AT_MOST]:
        yield warn(text, _cure(visit))
    if len(unmapped) > NAMED_AT_MOST:
        yield warn(f"{len(unmapped) - NAMED_AT_MOST} more names of the source are no node's", _cure(visit))


def _cure(visit: Visit, *, whole: bool = False) -> str:
    """Of a name that is no node's, or of the whole source where none is."""
    if visit.named and whole:
        return f"are the source and the kubeconfig those of the same cluster? If so: {LABEL_CURE}"
    if visit.named:
        return f"is it a machine outside of the cluster? Then nothing is wrong. Else: {LABEL_CURE}"
    if visit.refresher.provider.source == "Host":
        return "set NODE_NAME to the name of this node, in a pod from fieldRef spec.nodeName (the downward API)"
    return f"set kubernetes.node_names to auto or on (docs/node-names.md), or {LABEL_CURE}"
