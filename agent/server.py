"""The agent as a process: put together from its settings, its pages, its listeners, its start and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import click
import msgspec
from aiohttp import hdrs, web

from agent import serving
from agent.analyzer import Event
from agent.audit import Audit, AuditError, Filter, Outcome, json_lines
from agent.cgroups import Driver, Layout, Tree, find_layout, open_tree, top_of
from agent.executor import Claim, Cluster, Executor, Groups, KubeletGroups, OnExit, Permissions, PutBack
from agent.loop import Agent, Clocks, Surroundings
from agent.metrics import Metrics
from agent.model import SCHEDULING_TAINT
from agent.plan import StageKind, Verdict
from agent.policy.policies import Abilities, KnownMetrics, TriggerOnly
from agent.policy.source import ClusterPolicies, DirectoryPolicies, PolicySource
from agent.registry import installed_metrics
from agent.serving import CannotRun, answer, listening, read_token, stop_signal
from agent.settings import AgentSettings
from agent.state import COLLECTED, Collector, MetricSource, NoPods, Places, PodFacts, PodSource
from agent.state.collector import PODS
from agent.state.informed import InformedPods
from agent.state.kubelet import KubeletError, KubeletPods, kubelet_access
from agent.state.queries import QueryMetrics
from agent.telemetry import AgentMetrics
from watcher import __version__
from watcher.api.openapi import Answer, Operation, Parameter
from watcher.api.parameters import BadParameter, moment_of, shown
from watcher.api.routing import Access, ApiError, Route
from watcher.extensions import Refused
from watcher.heap import share_one_heap
from watcher.instruments import CONTENT_TYPE, Instruments
from watcher.kube import NODES, Informer, KubeClient, KubeError, Node, Selector, find_access, nano
from watcher.settings import Settings

log = logging.getLogger(__name__)

ALIVE_INTERVALS = 3.0
LOOK_PATIENCE_S = 10.0
LOOK_AGAIN_S = 0.05
MOST_LOOKS = 12  # of --once: two minutes, by the usual interval
"""How long, and how often, a single look waits for kubelet and API; who has not answered by then is missing."""
GARBAGE_AFTER = 20_000
"""Objects. A cycle over 200 pods makes some ten thousand, and they go with the next one."""
EXTENDED_CPU = "gocrane.io/cpu"
LARGEST_LIMIT = 1000


class OwnNode:
    """This node as the cluster knows it: its labels, and how much extended CPU it gives."""

    def __init__(self, client: KubeClient, name: str) -> None:
        self._informer: Informer[Node] = Informer(client, NODES, selector=Selector(fields=f"metadata.name={name}"))
        self._name = name

    async def start(self) -> None:
        """Begin to watch, in the background."""
        await self._informer.start()

    async def close(self) -> None:
        """Stop watching."""
        await self._informer.close()

    def labels(self) -> Mapping[str, str] | None:
        """None while the node is not known."""
        node = self._informer.objects.get(self._name)
        return None if node is None else node.metadata.labels

    def extended_cpu(self) -> float | None:
        """Cores of gocrane.io/cpu that pods may have here; None where that is not known."""
        node = self._informer.objects.get(self._name)
        given = None if node is None else node.status.allocatable.get(EXTENDED_CPU)
        try:
            return None if given is None else nano(given) / 1e9
        except ValueError:
            return None


class NobodyTells:
    """In the place of a kubelet or an API: the node can be looked at, and its pods are not known."""

    async def start(self) -> None:
        """Nothing is to be begun."""

    async def close(self) -> None:
        """Nothing is to be ended."""

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """Raises NoPods."""
        hint = "Set agent.kubelet, or kubernetes.kubeconfig."
        raise NoPods("neither a kubelet nor a Kubernetes API is configured", hint=hint)


class WrittenGroups:
    """The control groups that quotas are written to, found when they are first needed: a kubelet may start after us."""

    def __init__(self, settings: AgentSettings) -> None:
        self._root = str(settings.cgroup)
        self._driver = None if settings.cgroup_driver is None else Driver(settings.cgroup_driver)
        self._nest = settings.cgroup_nest
        self._tree: Tree | None = None
        self.groups: Groups = KubeletGroups(self.layout, self._opened)
        self.claim = Claim(lambda: top_of(self.layout()))

    def layout(self) -> Layout:
        """How they are laid out. Raises NoCgroups."""
        return find_layout(self._root, driver=self._driver, nest=self._nest)

    def _opened(self) -> Tree:
        if self._tree is None:
            self._tree = open_tree(self.layout())
        return self._tree

    def close(self) -> None:
        """Let go of the tree, and of the claim to it."""
        self.claim.release()
        if self._tree is not None:
            self._tree.close()
            self._tree = None


# --- put together ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assembled:
    """An agent with what it stands on."""

    agent: Agent
    audit: Audit
    executor: Executor
    metrics: AgentMetrics
    informed: Callable[[], Awaitable[bool]]
    """Whether everybody who is asked in the background (kubelet, API) has answered once."""


def open_audit(settings: AgentSettings, *, begin_anew: bool = True) -> Audit:
    """The agent's own file; without `begin_anew` one that cannot be used is left where it is. Raises CannotRun."""
    tell = json_lines(lambda line: click.echo(line, nl=False)) if settings.audit_to_stdout else lambda _: None
    try:
        return Audit.open(settings.state_file, now=time.time(), tell=tell, begin_anew=begin_anew)
    except AuditError as error:
        raise CannotRun(f"{error}\n  {error.hint}".rstrip()) from None


def kube_client(wanted: bool | None, settings: Settings) -> KubeClient | None:
    """The Kubernetes API, as the settings and this process's surroundings have it; None where there is none, or it is
    not `wanted`."""
    found = settings.kubeconfig is not None or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    if not (found if wanted is None else wanted):
        return None
    kubeconfig, context = settings.kubeconfig, settings.kubernetes.context
    return KubeClient(lambda: find_access(kubeconfig=kubeconfig, context=context, environ=os.environ))


def pod_source(settings: AgentSettings, client: KubeClient | None) -> PodSource:
    """Who tells which pods there are. Raises CannotRun."""
    if settings.kubelet is None:
        return NobodyTells() if client is None else InformedPods(client, settings.node_name())
    try:
        access = kubelet_access(
            settings.kubelet,
            token_file=settings.kubelet_token_file,
            authority=settings.kubelet_ca_file,
            insecure=settings.kubelet_insecure,
        )
    except KubeletError as error:
        raise CannotRun(f"{error}\n  {error.hint}".rstrip()) from None
    return KubeletPods(access, interval=settings.interval)


def metrics_of(settings: AgentSettings) -> Metrics:
    """Ours, and those of other packages. Raises CannotRun."""
    try:
        order = settings.options().order
        return installed_metrics(order, [query.metric(name, order) for name, query in settings.queries.items()])
    except Refused as error:
        raise CannotRun(f"{error}\n  {error.hint}") from None


def metric_sources(settings: AgentSettings) -> list[MetricSource]:
    """The watcher's windows, and the user's own queries, where they are asked for. Raises CannotRun."""
    sources: list[MetricSource] = []
    # Imported where they are wanted: with what they stand on they are a tenth of the agent's memory.
    if settings.watcher is not None:
        from agent.state.windows import OPERATORS, WINDOWS, WindowMetrics
        from watcher.client import NodeClient

        token = read_token(settings.watcher_token_file)
        client = NodeClient(settings.watcher, settings.node_name(), windows=WINDOWS, operators=OPERATORS, token=token)
        sources.append(WindowMetrics(client))
    if settings.queries and settings.prometheus is not None:
        from agent.state.prometheus import PrometheusQuestions, prometheus_config

        config = prometheus_config(settings.prometheus, settings.prometheus_token_file)
        expressions = {name: query.expression for name, query in settings.queries.items()}
        sources.append(QueryMetrics(PrometheusQuestions(config), expressions, node=settings.node_name()))
    return sources


def known(metrics: Metrics) -> KnownMetrics:
    """What rules may name: what the agent can act on, and what is merely measured, for which it keeps new pods away."""
    return ChainMap[str, Abilities](metrics, dict.fromkeys(COLLECTED, TriggerOnly()))  # type: ignore[arg-type]


def policy_source(settings: AgentSettings, client: KubeClient | None, metrics: KnownMetrics) -> PolicySource:
    """Where policies come from. Raises CannotRun."""
    if settings.policies is not None:
        return DirectoryPolicies(settings.policies, metrics=metrics)
    if client is None:
        raise CannotRun(
            "there is no Kubernetes API to read policies from\n"
            "  name a directory by --policies DIR (deploy/agent/policies has samples), or set kubernetes.kubeconfig"
        )
    return ClusterPolicies(client, metrics=metrics)


@asynccontextmanager
async def assembled(settings: AgentSettings, everything: Settings) -> AsyncIterator[Assembled]:
    """The agent, ready to run, and everything it stands on from its start to its end. Raises CannotRun."""
    async with AsyncExitStack() as stack:
        audit = open_audit(settings)
        stack.callback(audit.close)
        client = kube_client(settings.kubernetes, everything)
        if client is not None:
            stack.push_async_callback(client.close)
        own = None if client is None else OwnNode(client, settings.node_name())
        options, node = settings.options(), settings.node_name()
        metrics = metrics_of(settings)
        policies = policy_source(settings, client, known(metrics))
        places = Places(proc=str(settings.proc), cgroup=str(settings.cgroup))
        pods = pod_source(settings, client)
        collector = Collector(
            pods,
            places=places,
            interval=settings.interval,
            interfaces=settings.interfaces,
            driver=None if settings.cgroup_driver is None else Driver(settings.cgroup_driver),
            sources=metric_sources(settings),
            nest=settings.cgroup_nest,
            extended_cpu_allocatable=own.extended_cpu if own else lambda: None,
            run_queues=settings.run_queues,
        )
        for part in (own, policies, collector):
            if part is not None:
                await part.start()
                stack.push_async_callback(part.close)
        cluster = None if client is None else Cluster(client, node=node, control=settings.control, clock=time.time)
        groups = WrittenGroups(settings)
        stack.callback(groups.close)
        enforce = settings.mode == "enforce"
        if enforce:
            await asyncio.to_thread(groups.claim.others)  # who has it, if anybody, is in the log from the start
        permissions = Permissions(
            enforce=enforce,
            limits=settings.limits(),
            beside_others=settings.beside_others,
            claim=groups.claim if enforce else None,
            proc=settings.proc,
        )
        executor = Executor(audit, groups.groups, cluster=cluster, permissions=permissions)
        agent = Agent(
            collector=collector,
            policies=policies,
            executor=executor,
            audit=audit,
            metrics=metrics,
            options=options,
            surroundings=Surroundings(node, own.labels if own else dict, own_pod(os.environ)),
            clocks=Clocks(time.time, time.monotonic),
            interval=settings.interval,
            tell=_teller(cluster) if cluster and enforce else None,
        )
        told = AgentMetrics(agent)
        agent.seconds_of = told.seconds.observe
        try:
            await agent.recall()
        except AuditError as error:
            raise CannotRun(f"{error}\n  {error.hint}".rstrip()) from None
        yield Assembled(agent, audit, executor, told, partial(_informed, pods, policies, own))


async def _informed(pods: PodSource, policies: PolicySource, own: OwnNode | None) -> bool:
    known = isinstance(policies, DirectoryPolicies) or (await policies.refresh()).policies is not None
    if not known or (own is not None and own.labels() is None):
        return False
    try:
        pods.listing(monotonic=time.monotonic(), max_age=LOOK_PATIENCE_S)
    except NoPods:
        return isinstance(pods, NobodyTells)
    return True


def own_pod(environ: Mapping[str, str]) -> frozenset[str]:
    """Who the agent itself is, as the DaemonSet's manifest tells it: its pod is never acted upon."""
    name, namespace = environ.get("POD_NAME", ""), environ.get("POD_NAMESPACE", "")
    keys = {environ.get("POD_UID", ""), f"{namespace}/{name}" if name and namespace else ""}
    return frozenset(keys - {""})


def _teller(cluster: Cluster) -> Any:
    async def tell(event: Event) -> None:
        await cluster.tell(None, reason=event.reason, message=event.note, warning=event.type == "Warning")

    return tell


# --- pages -------------------------------------------------------------------------------------------------------

_LIMIT = Parameter("limit", f"at most so many, 100 by default, {LARGEST_LIMIT} at most", {"type": "integer"})
_KINDS = (*get_args(StageKind), "scheduling")
_FILTERS = (
    Parameter("since", "unix seconds, an RFC 3339 date, or how long ago (-10m)"),
    Parameter("until", "the same"),
    Parameter("kind", f"one of {', '.join(_KINDS)}"),
    Parameter("outcome", f"one of {', '.join(Outcome)}"),
    Parameter("namespace", "of the pod"),
    Parameter("pod", "NAMESPACE/NAME"),
    Parameter("before_id", "only older ones than this, for the next page", {"type": "integer"}),
    _LIMIT,
)


class Pages:
    """What the agent answers."""

    def __init__(self, made: Assembled, telemetry: Instruments) -> None:
        self._made = made
        self._telemetry = telemetry

    def public(self) -> list[Route]:
        """For anyone: probes and Prometheus."""
        ok = Operation("whether the agent's cycles go on", {200: Answer("they do", dict[str, Any])})
        metrics = Operation("metrics of the agent", {200: Answer("exposition", str)})
        return [
            Route("/healthz", "healthz", self.health, ok, access=Access.OPEN),
            Route("/metrics", "metrics", self.metrics, metrics, access=Access.OPEN),
        ]

    def all(self) -> list[Route]:
        """With what tells of pods."""
        explain = Operation("the last cycle, and why", {200: Answer("the plan", dict[str, Any])})
        pods = Operation("what each pod of the node uses", {200: Answer("the pods of the last cycle", dict[str, Any])})
        audit = Operation("what was done, newest first", {200: Answer("deeds", dict[str, Any])}, _FILTERS)
        return [
            *self.public(),
            Route("/explain", "explain", self.explain, explain, access=Access.DETAIL),
            Route("/audit", "audit", self.audit, audit, access=Access.DETAIL),
            Route("/pods", "pods", self.pods, pods, access=Access.DETAIL),
        ]

    async def health(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """200 while cycles end well."""
        agent = self._made.agent
        if agent.age > ALIVE_INTERVALS * agent.interval:
            raise ApiError(503, "stuck", f"no cycle ended well for {agent.age:.0f} s", "the agent's log says why")
        return answer({"status": "ok", "cycle": agent.last.number, "age_s": round(agent.age, 3)})

    async def metrics(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The exposition."""
        audit = self._made.audit
        try:
            self._made.metrics.totals = await asyncio.to_thread(audit.totals)
            self._made.metrics.held = len(await asyncio.to_thread(audit.remembered))
        except AuditError as error:
            log.debug("the totals of the audit cannot be read: %s", error)
        body = await asyncio.to_thread(self._telemetry.exposition)
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: CONTENT_TYPE, hdrs.CACHE_CONTROL: "no-store"})

    async def explain(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The last cycle."""
        return answer(self._made.agent.explanation())

    async def pods(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        """The pods of the last cycle, for a load-watcher that has no other source of what they use (docs/pods.md)."""
        agent = self._made.agent
        state = agent.last.state
        if (missing := state.missing.get(PODS)) is not None or not agent.last.number:
            raise ApiError(503, "no_pods", missing or "there was no cycle yet", "the agent's log says more")
        used = [
            {"namespace": pod.namespace, "name": pod.name, "cores": pod.cpu, "bytes": pod.memory}
            for pod in sorted(state.pods, key=lambda pod: pod.key)
        ]
        node = agent.surroundings.node
        return answer({"node": node, "time": state.time, "span_s": agent.interval, "pods": used})

    async def audit(self, request: web.Request, _captured: Sequence[str]) -> web.Response:
        """Deeds, newest first."""
        wanted = _filter(request.query, now=time.time())
        try:
            deeds = await asyncio.to_thread(self._made.audit.deeds, wanted)
        except AuditError as error:
            raise ApiError(503, "no_audit", str(error), error.hint) from None
        return answer({"deeds": [deed.as_json() for deed in deeds]})


def _filter(query: Mapping[str, str], *, now: float) -> Filter:
    """Raises BadParameter for what is no filter."""
    known = {parameter.name for parameter in _FILTERS}
    if unknown := sorted(set(query) - known):
        hint = f"there are: {', '.join(sorted(known))}"
        raise BadParameter(f"there is no parameter {shown(unknown[0])!r}", hint)
    for name, values in (("kind", _KINDS), ("outcome", tuple(Outcome))):
        if name in query and query[name] not in values:
            raise BadParameter(f"there is no {name} {shown(query[name])!r}", f"there are: {', '.join(values)}")
    if "pod" in query and query["pod"].count("/") != 1:
        raise BadParameter(f"{shown(query['pod'])!r} is no pod", "?pod=NAMESPACE/NAME")
    times = {name: moment_of({name: [query[name]]}, name, now=now) for name in ("since", "until") if name in query}
    try:
        return msgspec.convert({**query, **times}, Filter, strict=False)
    except msgspec.ValidationError as error:
        raise BadParameter(f"these are no filters: {error}", "limit and before_id are whole numbers") from None


# --- run ---------------------------------------------------------------------------------------------------------


def run(settings: AgentSettings, everything: Settings) -> int:
    """Until told to stop; the exit code."""
    return serving.run(serve(settings, everything), name="agent")


async def serve(settings: AgentSettings, everything: Settings) -> int:
    """Start, run until a signal, restore if that was asked for, end."""
    share_one_heap()  # each cycle is in another thread
    stop = stop_signal(renewing="policies are followed; other settings need a restart")
    async with assembled(settings, everything) as made:
        _say(settings)
        telemetry = Instruments(version=__version__, cluster=everything.cluster.name or "")
        telemetry.add(made.metrics)
        pages = Pages(made, telemetry)
        async with listening(settings, pages, telemetry) as address:
            print(f"load-watcher agent listens on {address}", flush=True)
            gc.freeze()  # what is there now stays: no need to look through it for garbage in every cycle,
            gc.set_threshold(GARBAGE_AFTER)  # nor ten times a cycle through what it makes
            running = asyncio.create_task(made.agent.run(), name="agent")
            await stop.wait()
            log.info("stopping")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return await _leave(made, settings)


def _say(settings: AgentSettings) -> None:
    """In one line, what this process may do."""
    enforce = settings.mode == "enforce"
    says = "acts on what it decides" if enforce else "decides and reports, and changes nothing (--enforce acts)"
    log.info("the agent on node %s %s; its file is %s", settings.node_name(), says, settings.state_file)


async def _leave(made: Assembled, settings: AgentSettings) -> int:
    on_exit = OnExit(settings.on_exit)
    try:
        put_back = await made.executor.leave(on_exit)
        tainted = on_exit is OnExit.RESTORE and await made.executor.tainted()
    except AuditError as error:
        log.error("quotas could not be put back: %s. %s", error, error.hint)
        return 1
    for each in put_back:
        log.info("%s", in_words(each))
    if tainted:
        log.warning("%s", _still_tainted(settings))
    return 0


# --- once, and restore -------------------------------------------------------------------------------------------


async def look_once(settings: AgentSettings, everything: Settings, *, pause: float) -> dict[str, Any]:
    """The explanation of the cycle in which no rule counts samples in a row any more, so that each has decided, or of
    the last of MOST_LOOKS; the first one is without rates. Raises CannotRun."""
    async with assembled(settings, everything) as made:
        for _ in range(round(LOOK_PATIENCE_S / LOOK_AGAIN_S)):
            if await made.informed():
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        await made.agent.cycle()
        for _ in range(MOST_LOOKS):
            await asyncio.sleep(pause)
            plan = (await made.agent.cycle()).plan
            counting = [rule.text for rule in (plan.rules if plan else ()) if rule.verdict is Verdict.COUNTING]
            if not counting:
                break
            log.info("looking again in %g s: %s", pause, "; ".join(counting))
        return made.agent.explanation()


@dataclass(frozen=True, slots=True)
class Restored:
    """What `restore` did: of each value that was remembered, and what is left of the taint, "" for nothing."""

    quotas: tuple[PutBack, ...]
    tainted: str = ""


async def restore(settings: AgentSettings, everything: Settings) -> Restored:
    """Every quota back to what it was before the agent, and new pods welcome: for after a crash, or an uninstall.
    Raises CannotRun."""
    async with AsyncExitStack() as stack:
        if not settings.state_file.exists():
            raise CannotRun(f"there is no file {settings.state_file}: nothing is known to restore")
        audit = open_audit(settings, begin_anew=False)
        stack.callback(audit.close)
        cluster = None
        client = kube_client(settings.kubernetes, everything)
        if client is not None:
            stack.push_async_callback(client.close)
            cluster = Cluster(client, node=settings.node_name(), control=settings.control, clock=time.time)
        groups = WrittenGroups(settings)
        stack.callback(groups.close)
        try:
            executor = Executor(audit, groups.groups, cluster=cluster)
            quotas = await executor.restore_all(reason="load-watcher agent restore")
            return Restored(quotas, _still_tainted(settings) if await executor.tainted() else "")
        except (AuditError, KubeError) as error:
            raise CannotRun(f"{error}\n  {error.hint}".rstrip()) from None


def _still_tainted(settings: AgentSettings) -> str:
    """What is to be told of a taint that could not be taken off."""
    node = settings.node_name()
    return (
        f"node {node} may still keep new pods away (taint {SCHEDULING_TAINT}): the Kubernetes API did not take it off\n"
        f"  run this again where kubernetes.kubeconfig is set, or: kubectl taint node {node} {SCHEDULING_TAINT}-"
    )


def in_words(each: PutBack) -> str:
    """What became of what was remembered of one container or pod."""
    container = f", container {each.remembered.container}" if each.remembered.container else ""
    return f"{each.remembered.pod}{container}: {each.text}"
