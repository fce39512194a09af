"""Collects the requests of pods as kube-scheduler counts them (watcher.core.kubernetes.pod_resources).

kube_pod_resource_request of kube-scheduler (/metrics/resources) is the effective request of a pod. For pods without it,
the series of kube-state-metrics are combined: containers, native sidecars (init containers whose restart_policy is
Always), init containers, and overhead. They have neither pod-level requests nor the order of init containers, so that
an init container counts with all sidecars of its pod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lab.report.collected import MissingData, NodeRequests
from lab.report.data.context import CollectContext
from lab.report.data.nodes import by_node
from watcher.core.queries.matchers import Matcher

POD = "namespace, pod, node, resource"
CONTAINER = "namespace, pod, container"
WITHOUT_POLICY = MissingData(
    "kube_pod_init_container_info of kube-state-metrics with the label restart_policy",
    "requests of native sidecars, which count as init containers that end",
    "update kube-state-metrics, and do not drop kube_pod_init_container_info",
)
NO_INIT_CONTAINERS = (
    "no init container is known: if pods have native sidecars, let kube-state-metrics expose "
    "kube_pod_init_container_resource_requests and kube_pod_init_container_info, whose requests are missing here"
)
NO_POD_LEVEL = (
    "kube-state-metrics has no pod-level requests (spec.resources): to count them, scrape /metrics/resources of "
    "kube-scheduler (kube_pod_resource_request) with honor_labels: true"
)


@dataclass(frozen=True, slots=True)
class RequestQueries:
    """Queries for the parts of the requests of pods, with labels POD (`overhead`: namespace, pod). `over` is applied to
    each selector; `narrowed` adds matchers to one."""

    context: CollectContext
    matchers: tuple[Matcher, ...] = ()
    over: Callable[[str], str] = str

    @property
    def selectors(self) -> tuple[str, str, str, str]:
        """Requests of containers and of init containers, information about sidecars, and requests of whole pods."""
        which = 'resource=~"cpu|memory",node!=""'
        # Without honor_labels, `pod` is that of kube-scheduler.
        names = ("kube_pod_container_resource_requests", "kube_pod_init_container_resource_requests")
        containers, inits = (self.context.narrowed(f"{name}{{{which}}}", *self.matchers) for name in names)
        sidecars = self.context.narrowed('kube_pod_init_container_info{restart_policy="Always"}')
        whole = self.context.narrowed(f'kube_pod_resource_request{{{which},exported_pod=""}}', *self.matchers)
        return containers, inits, sidecars, whole

    @property
    def whole(self) -> str:
        """What kube-scheduler exposes about whole pods."""
        return f"max by ({POD}) ({self._of(self.selectors[3])})"

    @property
    def containers(self) -> str:
        """Requests of containers that are not init containers, one series for each."""
        return f"max by ({CONTAINER}, node, resource) ({self._of(self.selectors[0])})"

    @property
    def sidecars(self) -> str:
        """Requests of native sidecars, one series for each."""
        return f"{self._inits} * on ({CONTAINER}) group_left () {self._always}"

    @property
    def inits(self) -> str:
        """The highest request of the init containers that end."""
        return f"max by ({POD}) ({self._inits} unless on ({CONTAINER}) {self._always})"

    def overhead(self, resource: str) -> str:
        """Overhead in cores or bytes."""
        name = {"cpu": "kube_pod_overhead_cpu_cores", "memory": "kube_pod_overhead_memory_bytes"}[resource]
        return f"max by (namespace, pod) ({self._of(self.context.narrowed(name))})"

    @property
    def total(self) -> str:
        """The requests of each pod. Each operand of an `or` has a label of its own, because `or` keeps only one of two
        series with equal labels."""
        kept = f"sum by ({POD}) ({self.sidecars})"
        running = f"sum by ({POD}) ({self.containers} or {self.sidecars})"
        starting = _marked(f"({self.inits} + {kept} or {self.inits})", "part", "init")
        parts = [f"max by ({POD}) ({running} or {starting})"]
        info = f"max by (namespace, pod, node) ({self._of(self.context.narrowed('kube_pod_info', *self.matchers))})"
        for resource in ("cpu", "memory"):
            of_pod = f"{info} * on (namespace, pod) group_left () {self.overhead(resource)}"
            parts.append(_marked(_marked(of_pod, "resource", resource), "part", "overhead"))
        return f"({self.whole} or sum by ({POD}) ({' or '.join(parts)}))"

    def _of(self, selector: str) -> str:
        return self.context.of_objects(self.over(selector))

    @property
    def _inits(self) -> str:
        return f"max by ({CONTAINER}, node, resource) ({self._of(self.selectors[1])})"

    @property
    def _always(self) -> str:
        return f"max by ({CONTAINER}) ({self._of(self.selectors[2])})"


def _marked(vector: str, label: str, value: str) -> str:
    return f'label_replace({vector}, "{label}", "{value}", "pod", ".*")'


async def read_requests(context: CollectContext, nodes: Sequence[str]) -> NodeRequests | None:
    """Requests of the pods that run on each node at the end; None if the server has none."""
    queries = RequestQueries(context)
    phases = context.narrowed('kube_pod_status_phase{phase=~"Pending|Running"}')
    series = [await context.reader.count(each, context.ends) for each in (*queries.selectors, phases)]
    containers, inits, sidecars, whole, phased = series
    if not containers and not whole:
        return None
    await _name_missing(context, inits=inits, sidecars=sidecars, whole=whole)
    # Without the phase, pods that are completed would count until they are deleted.
    of_pods = f"max by (namespace, pod) ({context.of_objects(phases)} == 1)"
    running = f" * on (namespace, pod) group_left () {of_pods}" if phased else ""
    grid = await context.reader.grid(
        f"sum by (node, resource) ({queries.total}{running})",
        ("node", "resource"),
        context.ends,
        context.ends,
        60,
        series=sum(series),
        purpose="requests by node",
        progress=context.share_of(34, 38, "requests"),
    )
    cores, size = (by_node(grid, nodes, resource)[0] for resource in ("cpu", "memory"))
    return NodeRequests(cores, size) if np.isfinite(cores).any() else None


async def _name_missing(context: CollectContext, *, inits: int, sidecars: int, whole: int) -> None:
    """State which requests the server does not have."""
    if whole:
        return
    context.reader.remark(NO_POD_LEVEL)
    if sidecars:
        return
    info = context.narrowed("kube_pod_init_container_info")
    known, with_policy = [
        await context.reader.count(each, context.ends)
        for each in (info, context.narrowed('kube_pod_init_container_info{restart_policy!=""}'))
    ]
    if not inits and not known:
        context.reader.remark(NO_INIT_CONTAINERS)
    elif (inits and not known) or (known and not with_policy):
        context.missing.append(WITHOUT_POLICY)
