"""Creates the agent with its dependencies from the settings: clients, its Node object, pod sources, metrics, policies,
executor."""

from __future__ import annotations

import asyncio
import os
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from agent.audit.database import AuditError
from agent.audit.log import Audit, json_lines
from agent.cgroups.detection import KubeletGroups, top_of
from agent.clocks import Clocks, boot_id
from agent.decision.analysis import NodeEvent
from agent.executor.cluster import ClusterActions
from agent.executor.executor import Executor, Permissions
from agent.executor.other_agents import CgroupLock
from agent.metrics.action_metric import ActionMetric
from agent.metrics.registry import Metrics
from agent.policy.policy_set import KnownMetrics
from agent.policy.source import ClusterPolicies, DirectoryPolicies, PolicySource
from agent.service.custom_metrics import installed_metrics
from agent.service.loop import Agent, NodeIdentity
from agent.service.node_server import CannotRun, read_token
from agent.service.settings import KUBELET, AgentSettings
from agent.service.telemetry import AgentMetrics
from agent.state.api_pods import InformerPods
from agent.state.collector import COLLECTED, Collector, SystemPaths
from agent.state.kubelet import KubeletError, KubeletPods, kubelet_access
from agent.state.own_node import OwnNode
from agent.state.readings import MetricSource, PodFacts, PodSource, PodsUnknown
from watcher.core.config.settings import Settings
from watcher.platform.entry_points import ExtensionError
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.credentials import SERVICE_ACCOUNT, KubeAccess, find_access
from watcher.platform.kube.settings import KubernetesSettings

LOOK_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """An agent with its dependencies."""

    agent: Agent
    audit: Audit
    executor: Executor
    metrics: AgentMetrics
    informed: Callable[[], Awaitable[bool]]
    """Whether all background sources (kubelet, API) have responded once."""


def open_audit(settings: AgentSettings, *, replace_damaged: bool = True) -> Audit:
    """Open the audit file; without `replace_damaged`, a damaged file is not moved aside. Raises CannotRun."""
    tell = json_lines(lambda line: click.echo(line, nl=False)) if settings.audit_to_stdout else lambda _: None
    try:
        return Audit.open(settings.state_file, now=time.time(), tell=tell, replace_damaged=replace_damaged)
    except AuditError as error:
        raise CannotRun.of(error) from None


def kube_client(wanted: bool | None, settings: Settings) -> KubeClient | None:
    """A client of the Kubernetes API from the settings and the environment. `wanted` is agent.kubernetes; None if the
    API is not wanted, or not found."""
    found = settings[KubernetesSettings].path is not None or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    if not (found if wanted is None else wanted):
        return None
    kubeconfig, context = settings[KubernetesSettings].path, settings[KubernetesSettings].context
    return KubeClient(lambda: find_access(kubeconfig=kubeconfig, context=context, environ=os.environ))


def pod_source(settings: AgentSettings, client: KubeClient | None) -> PodSource:
    """The source of the node's pods: kubelet, Kubernetes API, or none. The agent never changes from one to the other
    itself: a fleet whose kubelets refuse would otherwise start thousands of watches. Raises CannotRun."""
    access = access_to_kubelet(settings)
    if access is not None:
        return KubeletPods(access, interval=settings.interval)
    if settings.pods == KUBELET:
        hint = "set agent.kubelet, or the environment variable HOST_IP to the address of the node"
        raise CannotRun(f"agent.pods is kubelet, but the kubelet's address is unknown\n  {hint}")
    return NoPodSource() if client is None else InformerPods(client, settings.node_name())


def access_to_kubelet(
    settings: AgentSettings, *, environ: Mapping[str, str] = os.environ, service_account: Path = SERVICE_ACCOUNT
) -> KubeAccess | None:
    """Access to the kubelet that lists the pods; None if the API lists them. Over TLS, the token and the certificate
    authority of the pod's service account are used unless the settings name others. Raises CannotRun."""
    address = settings.kubelet_address(environ)
    if address is None:
        return None
    token, authority = settings.kubelet_token_file, settings.kubelet_ca_file
    if address.startswith("https:") and (service_account / "token").exists():
        token, authority = token or service_account / "token", authority or service_account / "ca.crt"
    try:
        return kubelet_access(
            address,
            token_file=token,
            authority=authority,
            insecure=settings.kubelet_insecure,
            name=settings.kubelet_name,
        )
    except KubeletError as error:
        raise CannotRun.of(error) from None


def metrics_of(settings: AgentSettings) -> Metrics:
    """Built-in metrics, user-defined queries, and metrics of other packages. Raises CannotRun."""
    try:
        return installed_metrics(query.metric(name) for name, query in settings.queries.items())
    except ExtensionError as error:
        raise CannotRun.of(error) from None


def metric_sources(settings: AgentSettings) -> list[MetricSource]:
    """The watcher's windows and the user-defined queries, if configured. Raises CannotRun."""
    if settings.watcher is None and not settings.queries:
        return []
    # Imported only if configured: the agent runs on each node, and these modules take half a megabyte.
    from agent.state.remote import (
        OPERATORS,
        WINDOWS,
        PrometheusQueryClient,
        QueryMetrics,
        WatcherWindows,
        prometheus_connection,
    )
    from watcher.client import NodeClient

    sources: list[MetricSource] = []
    node = settings.node_name()
    if settings.watcher is not None:
        token = read_token(settings.watcher_token_file)
        client = NodeClient(settings.watcher, node, windows=WINDOWS, operators=OPERATORS, token=token)
        sources.append(WatcherWindows(client))
    if settings.queries and settings.prometheus is not None:
        config = prometheus_connection(settings.prometheus, settings.prometheus_token_file)
        expressions = {name: query.expression for name, query in settings.queries.items()}
        sources.append(QueryMetrics(PrometheusQueryClient(config), expressions, node=node))
    return sources


def known_metrics(metrics: Metrics) -> KnownMetrics:
    """The metrics that rules may name: metrics with actions, and metrics that are only measured and keep pods away."""
    measured = {name: ActionMetric(name=name) for name in COLLECTED}
    return ChainMap(metrics, measured)  # type: ignore[arg-type]  # it is not written to


def policy_source(settings: AgentSettings, client: KubeClient | None, metrics: KnownMetrics) -> PolicySource:
    """The source of policies: directory or Kubernetes API. Raises CannotRun."""
    if settings.policies is not None:
        return DirectoryPolicies(settings.policies, metrics=metrics)
    if client is None:
        raise CannotRun(
            "policies cannot be read: no Kubernetes API is configured\n"
            "  pass a directory with --policies DIR (samples: deploy/agent/policies), or set kubernetes.kubeconfig"
        )
    return ClusterPolicies(client, metrics=metrics)


@asynccontextmanager
async def build_agent(settings: AgentSettings, everything: Settings) -> AsyncIterator[AgentRuntime]:
    """Build and start the agent with its dependencies, and close them at the end. Raises CannotRun."""
    async with AsyncExitStack() as stack:
        audit = open_audit(settings)
        stack.callback(audit.close)
        client = kube_client(settings.kubernetes, everything)
        if client is not None:
            stack.push_async_callback(client.close)
        node = settings.node_name()
        own = None if client is None else OwnNode(client, node)
        metrics = metrics_of(settings)
        policies = policy_source(settings, client, known_metrics(metrics))
        pods = pod_source(settings, client)
        collector = _collector(settings, pods, own)
        for part in (own, policies, collector):
            if part is not None:
                await part.start()
                stack.push_async_callback(part.close)
        cluster = (
            None if client is None else ClusterActions(client, node=node, control=settings.control, clock=time.time)
        )
        clocks = Clocks(boot=boot_id())
        executor = await _executor(settings, audit, cluster, clocks, stack)
        agent = Agent(
            collector=collector,
            policies=policies,
            executor=executor,
            audit=audit,
            metrics=metrics,
            options=settings,
            surroundings=NodeIdentity(node, own.labels if own else dict, own_pod(os.environ)),
            clocks=clocks,
            interval=settings.interval,
            emit_event=_teller(cluster) if cluster and settings.mode == "enforce" else None,
        )
        message = AgentMetrics(agent)
        agent.seconds_of = message.seconds.observe
        try:
            await agent.load_state()
        except AuditError as error:
            raise CannotRun.of(error) from None
        yield AgentRuntime(agent, audit, executor, message, partial(_informed, pods, policies, own))


def _collector(settings: AgentSettings, pods: PodSource, own: OwnNode | None) -> Collector:
    """The collector of the node's state. Raises CannotRun."""
    return Collector(
        pods,
        places=SystemPaths(proc=str(settings.proc), cgroup=str(settings.cgroup)),
        interval=settings.interval,
        interfaces=settings.interfaces,
        driver=settings.cgroup_driver,
        sources=metric_sources(settings),
        nest=settings.cgroup_nest,
        extended_cpu_allocatable=own.extended_cpu if own else lambda: None,
        run_queues=settings.run_queues,
    )


async def _executor(
    settings: AgentSettings, audit: Audit, cluster: ClusterActions | None, clocks: Clocks, stack: AsyncExitStack
) -> Executor:
    """The executor, with the lock on the control groups if it may write to them."""
    groups, claim = KubeletGroups(settings.find_layout), None
    stack.callback(groups.close)
    enforce = settings.mode == "enforce"
    if enforce:
        claim = cgroup_lock(settings)
        stack.callback(claim.release)
        await asyncio.to_thread(claim.acquire)  # logs another holder of the lock at the start already
    permissions = Permissions(
        enforce=enforce,
        limits=settings,
        beside_others=settings.beside_others,
        claim=claim,
        proc=settings.proc,
    )
    return Executor(audit, groups, cluster=cluster, permissions=permissions, clocks=clocks)


def cgroup_lock(settings: AgentSettings) -> CgroupLock:
    """The lock of an enforcing agent on the kubelet's control groups."""
    return CgroupLock(lambda: top_of(settings.find_layout()))


async def _informed(pods: PodSource, policies: PolicySource, own: OwnNode | None) -> bool:
    known = isinstance(policies, DirectoryPolicies) or (await policies.refresh()).policies is not None
    if not known or (own is not None and own.labels() is None):
        return False
    try:
        pods.listing(monotonic=time.monotonic(), max_age=LOOK_PATIENCE_S)
    except PodsUnknown:
        return isinstance(pods, NoPodSource)
    return True


def _teller(cluster: ClusterActions) -> Any:
    async def tell(event: NodeEvent) -> None:
        await cluster.emit_event(None, reason=event.reason, message=event.note, warning=event.type == "Warning")

    return tell


class NoPodSource:
    """Pod source without kubelet and API: node metrics are available, the pods are unknown."""

    async def start(self) -> None:
        """Do nothing, because there is no source."""

    async def close(self) -> None:
        """Do nothing, because there is no source."""

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """Always raises PodsUnknown, with a hint."""
        hint = "Set agent.kubelet, or kubernetes.kubeconfig."
        raise PodsUnknown("neither a kubelet nor a Kubernetes API is configured", hint=hint)


def own_pod(environ: Mapping[str, str]) -> frozenset[str]:
    """Uid of the agent's own pod from the DaemonSet's environment, or namespace/name without it; it is never acted
    on."""
    uid, name, namespace = (environ.get(f"POD_{field}", "") for field in ("UID", "NAME", "NAMESPACE"))
    return frozenset({uid or (f"{namespace}/{name}" if name and namespace else "")} - {""})
