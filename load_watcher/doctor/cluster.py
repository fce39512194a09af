"""Kubernetes checks: access to the API, permissions, and whether the source's node names are nodes of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_watcher.doctor.environment import IN_CLUSTER
from load_watcher.doctor.source import TickResult, addresses_among
from watcher.agent_clients.discovery import SERVING_PODS
from watcher.agent_clients.settings import AgentsSettings, QrmsSettings
from watcher.core.config.settings import Settings
from watcher.core.koordinator.written_objects import WRITTEN
from watcher.core.kubernetes.errors import KubeError
from watcher.core.kubernetes.objects import NODE_METRICS, NODES, PODS
from watcher.core.messages import shorten_names
from watcher.core.naming.evidence import STRENGTH, Match
from watcher.core.naming.name_resolver import NodeIndex
from watcher.core.naming.name_resolver import describe_match as in_words
from watcher.core.windows.settings import RefreshSettings
from watcher.koordinator.publisher_source import LEASE, THRESHOLDS_LEASE, lease_namespace
from watcher.koordinator.settings import KoordinatorSettings
from watcher.platform.checks.examination import CheckContext
from watcher.platform.checks.permissions import Permission, check_permissions
from watcher.platform.checks.results import (
    CheckResult,
    count,
    fail,
    ok,
    shorten_nodes,
    skipped,
    warn,
)
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import find_access, own_namespace
from watcher.platform.kube.leases import LEASES
from watcher.platform.kube.settings import KubernetesSettings
from watcher.sources.metrics_server.pods import PLACED_PODS, POD_METRICS
from watcher.sources.settings import ProviderSettings
from watcher.tick import cluster_nodes

PAGES = "the pages of agents in the dashboard (agents.pods, qrms.pods)"
NAMED_AT_MOST = 5
LABEL_CURE = (
    "set provider.node_label to the label with the node name, or relabel __meta_kubernetes_pod_node_name to node when "
    "scraping (docs/tasks/prometheus.md)"
)


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """Access to the cluster: a client factory, and an index of the nodes by all their names (None: not permitted)."""

    client: Callable[[], KubeClient]
    index: NodeIndex | None


def required_permissions(found: Settings, environ: Mapping[str, str]) -> Sequence[Permission]:
    """Return the permissions that the service needs with these settings (docs/reference/kubernetes.md)."""
    source = found[ProviderSettings].name == "metrics-server"
    names, must_name = cluster_nodes.wanted(found, environ=environ), found[KubernetesSettings].node_names == "on"
    needed = [*_of_the_extender(found.parts.get("scheduler", {})), *_of_node_metrics(found), *_of_agents(found)]
    if source:
        needed.append(Permission("list", NODE_METRICS, "the load of the nodes"))
    if source or names:
        purpose = "the capacity of the nodes" if source else "the names of the nodes"
        needed.append(Permission("list", NODES, purpose, vital=source or must_name))
        needed.append(
            Permission(
                "watch",
                NODES,
                "changes of the nodes; without this permission, the nodes are listed once a minute",
                vital=False,
            )
        )
    if source and found[RefreshSettings].pods != "off" and not found[AgentsSettings].report_pods:
        must = found[RefreshSettings].pods == "on"
        purpose = "the usage of pods" if must else "the usage of pods, on request (refresh.pods)"
        needed += [
            Permission("list", POD_METRICS, purpose, vital=must),
            Permission("list", PLACED_PODS, purpose, vital=must),
            Permission("watch", PLACED_PODS, purpose, vital=must),
        ]
    return needed


def _of_the_extender(profiles: Mapping[str, Any]) -> Iterator[Permission]:
    """Yield the permissions that the extender needs with these valid tables of [scheduler]."""
    if profiles:
        purpose = "the nodes and pods that the extender ([scheduler]) uses"
        for resource in (NODES, PODS):
            yield Permission("list", resource, purpose)
            yield Permission("watch", resource, purpose, vital=False)
    if any(isinstance(table, dict) and table.get("bind") for table in profiles.values()):
        yield Permission("create", PODS, "binding pods (bind = true in [scheduler])", subresource="binding")
    if any(_reads_node_metrics(table) for table in profiles.values()):
        for verb in ("list", "watch"):
            yield Permission(verb, WRITTEN, 'NodeMetrics of the cluster (nodeMetricSource = "cluster" in [scheduler])')


def _reads_node_metrics(profile: Any) -> bool:
    plugins = profile.get("plugins", []) if isinstance(profile, dict) else []
    return any(each.get("args", {}).get("nodeMetricSource") == "cluster" for each in plugins)


def _of_node_metrics(found: Settings) -> Iterator[Permission]:
    """Yield the permissions that writing NodeMetrics and usage thresholds needs."""
    if found[KoordinatorSettings].thresholds:
        purpose = "writing usage thresholds (koordinator.thresholds)"
        yield Permission("patch", NODES, purpose)
        yield from _of_lease(found, THRESHOLDS_LEASE, purpose)
    if not found[KoordinatorSettings].publish:
        return
    purpose = "writing NodeMetrics (koordinator.publish)"
    for verb in ("list", "watch", "create", "patch"):
        yield Permission(verb, WRITTEN, purpose)
    yield Permission("patch", WRITTEN, purpose, subresource="status")
    yield from _of_lease(found, LEASE, purpose)


def _of_lease(found: Settings, name: str, purpose: str) -> Iterator[Permission]:
    namespace = lease_namespace(found)
    yield Permission("create", LEASES, purpose, namespace=namespace)
    for verb in ("get", "patch"):
        yield Permission(verb, LEASES, purpose, namespace=namespace, name=name)


def _of_agents(found: Settings) -> Iterator[Permission]:
    """Yield the permissions that finding the pods of agents by labels needs."""
    asked = (
        found[AgentsSettings].pods if found[AgentsSettings].pod_usage and found[RefreshSettings].pods != "off" else None
    )
    usage = (asked, "the usage of pods from agents (agents.pods)", found[RefreshSettings].pods == "on")
    selections = usage, (found[AgentsSettings].pods, PAGES, False), (found[QrmsSettings].pods, PAGES, False)
    for selection, purpose, vital in selections:
        if selection is not None:
            for verb in ("list", "watch"):
                namespace = selection.namespace or own_namespace()
                yield Permission(verb, SERVING_PODS, purpose, vital=vital, namespace=namespace)


async def kubernetes(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the Kubernetes API is reachable and accepts the credentials."""
    found = examination.get(Settings)
    if found[KubernetesSettings].path is None and IN_CLUSTER not in examination.environ:
        why = "no Kubernetes API is configured: kubernetes.kubeconfig is not set, and this process runs outside a pod"
        vital = [right.purpose for right in required_permissions(found, examination.environ) if right.vital]
        if vital and found[ProviderSettings].name != "metrics-server":  # the check of the source has reported that
            cure = "set kubernetes.kubeconfig (KUBE_CONFIG), or run in a cluster, where KUBERNETES_SERVICE_HOST is set"
            return [fail(f"{why}; these settings need one for {vital[0]}", cure)]
        return [skipped(why)]

    def connect() -> KubeClient:
        return KubeClient(
            lambda: find_access(
                kubeconfig=found[KubernetesSettings].path,
                context=found[KubernetesSettings].context,
                environ=examination.environ,
            ),
            timeout=found[ProviderSettings].timeout,
        )

    client = connect()
    try:
        index = await cluster_nodes.read_index(found) if await client.is_allowed("list", NODES) else None
    except KubeError as error:
        return [fail(str(error), error.hint or "check that kubectl get nodes works with the same credentials")]
    finally:
        await client.close()
    examination.put(ClusterAccess(connect, index))
    size = "may not list nodes" if index is None else f"{count(len(index.nodes), 'node')}"
    return [ok(f"the Kubernetes API accepts the credentials: {size}")]


async def permissions(examination: CheckContext) -> Sequence[CheckResult]:
    """Check the permissions that the settings need, with a SelfSubjectAccessReview for each verb and resource."""
    needed = required_permissions(examination.get(Settings), examination.environ)
    if not needed:
        return [skipped("these settings need no permissions")]
    client = examination.get(ClusterAccess).client()
    try:
        return await check_permissions(client, needed)
    finally:
        await client.close()


async def addresses(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that the source's node names are not IP addresses, unless nodes of the cluster have such names."""
    visit = examination.get(TickResult)
    names = visit.nodes
    if not names:
        return [skipped("without samples, node names are unknown")]
    wrong = [name for name in addresses_among(names) if name not in visit.known]
    if wrong:
        message = f"the source names these nodes by IP address: {shorten_nodes(wrong, names)}"
        cure = (
            "configure the cluster, so that addresses are mapped to nodes "
            f"(docs/reference/node-names.md), or {LABEL_CURE}"
        )
        why = "these are not names of Kubernetes nodes, so schedulers find no load for the nodes"
        return [fail(f"{message}; {why}", LABEL_CURE if visit.named else cure)]
    return [ok(f"node names of the source: {shorten_names(names)}")]


async def nodes(examination: CheckContext) -> Sequence[CheckResult]:
    """Check that every node of the cluster has samples under its name, and that every name of the source is a node."""
    index, visit = examination.get(ClusterAccess).index, examination.get(TickResult)
    if index is None:
        return [skipped("this account may not list the nodes of the cluster (kubectl auth can-i list nodes)")]
    if not visit.names:
        return [skipped("without samples, node names are unknown")]
    known = sorted(name for name in visit.nodes if name in index.nodes)
    strange = list(_strange(visit, index))
    if not known:
        nodes = shorten_names(tuple(index.nodes))
        message = f"names of the source: {shorten_names(visit.names)}; nodes of the cluster: {nodes}"
        return [
            *strange,
            fail(f"no node name of the source is a node of the cluster; {message}", _cure(visit, whole=True)),
        ]
    results = [ok(f"{_evidence(visit, index)}: {shorten_nodes(known, tuple(index.nodes))}"), *strange]
    missing = index.without_series(visit.nodes)
    if missing and examination.get(Settings)[ProviderSettings].name != "host":
        cure = "check that the exporters of these nodes run and are scraped; the Go plug-ins score them 0"
        results.append(warn(f"no samples of these nodes: {shorten_nodes(missing, tuple(index.nodes))}", cure))
    return results


def _evidence(visit: TickResult, index: NodeIndex) -> str:
    """Describe how the source's names were matched with nodes of the cluster."""
    if not visit.named:
        return "nodes of the cluster, matched by name"
    by = {match.by for match in index.resolve(visit.names).matches.values() if match.node and match.by}
    strongest_first = sorted(by, key=STRENGTH.__getitem__)
    return f"nodes of the cluster, matched by {', '.join(strongest_first)}"


def _strange(visit: TickResult, index: NodeIndex) -> Iterator[CheckResult]:
    """Yield a warning for each name of the source that is not a node of the cluster, with a fix; a failure for names
    that may be those of two machines. The names of one metric occur together: other metrics may have other names."""
    matches: dict[str, Match] = {}
    for batch in visit.fetch.batches:
        resolved = index.resolve(tuple(sorted(set(batch.nodes)))).matches
        matches |= {name: match for name, match in resolved.items() if not match.node or name not in matches}
    if visit.named:
        unmapped = sorted(name for name, match in matches.items() if not match.node)
    else:
        unmapped = [name for name in visit.nodes if name not in index.nodes]
    for name in unmapped[:NAMED_AT_MOST]:
        match = matches.get(name)
        text = f"{name} {in_words(match, index) if match is not None else 'is not a node'}"
        yield (fail if visit.named and match is not None and match.claimed else warn)(text, _cure(visit))
    if len(unmapped) > NAMED_AT_MOST:
        yield warn(f"{len(unmapped) - NAMED_AT_MOST} more names of the source are not nodes", _cure(visit))


def _cure(visit: TickResult, *, whole: bool = False) -> str:
    """Return the fix for one name that is not a node, or (`whole`) for a source without any known node name."""
    if visit.named and whole:
        return f"check that the source and the kubeconfig belong to the same cluster; if so, {LABEL_CURE}"
    if visit.named:
        return f"ignore this if it is a machine outside the cluster; otherwise {LABEL_CURE}"
    if visit.refresher.provider.source == "Host":
        return "set NODE_NAME to the name of this node, in a pod with fieldRef spec.nodeName (the downward API)"
    return f"set kubernetes.node_names to auto or on (docs/reference/node-names.md), or {LABEL_CURE}"
