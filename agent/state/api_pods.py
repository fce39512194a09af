"""The pods of this node from the Kubernetes API, by an informer limited to pods bound to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.state.pod_facts import PODS, AgentPod, facts_of
from agent.state.readings import PodFacts, PodsUnknown
from watcher.core.kubernetes.wire import ItemT, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.parameters import Selector

log = logging.getLogger(__name__)

FactsT = TypeVar("FactsT")


class InformerPodList(Generic[ItemT, FactsT]):
    """Watches the pods of `node` (its name in Kubernetes). `read` converts each pod; it returns None for a pod to leave
    out, and raises ValueError for a pod that cannot be read, which is then ignored. Does not close the client."""

    def __init__(
        self, client: KubeClient, resource: Resource[ItemT], read: Callable[[ItemT], FactsT | None], *, node: str
    ) -> None:
        self._informer: Informer[ItemT] = Informer(client, resource, selector=Selector(fields=f"spec.nodeName={node}"))
        self._read = read
        self._facts: dict[str, tuple[ItemT, FactsT | None]] = {}
        self._true_at: float | None = None

    async def start(self) -> None:
        """Start watching. Does not wait for the API."""
        await self._informer.start()

    async def close(self) -> None:
        """Stop watching the pods; the client stays open."""
        await self._informer.close()

    def listing(self, *, monotonic: float, max_age: float) -> tuple[FactsT, ...]:
        """The pods after the last event, sorted by name. The copy is current while the watch lasts; otherwise its age
        counts from the last call that found the watch working. Raises PodsUnknown."""
        informer, age = self._informer, self.age(monotonic=monotonic)
        hint = informer.error.hint if informer.error is not None else ""
        if age is None:
            why = informer.error or "the Kubernetes API has not responded yet"
            raise PodsUnknown(f"the pods of this node are unknown: {why}", hint=hint)
        if age > max_age:
            raise PodsUnknown(f"the last list of pods is {age:.0f} s old: {informer.error}", hint=hint)
        # Objects are replaced, never modified, so the facts of an identical object are reused.
        before = self._facts
        self._facts = {
            name: known
            if (known := before.get(name)) is not None and known[0] is pod
            else (pod, self._read_or_ignore(name, pod))
            for name, pod in informer.objects.items()
        }
        return tuple(facts for _, (_, facts) in sorted(self._facts.items()) if facts is not None)

    def age(self, *, monotonic: float) -> float | None:
        """Seconds since a call of this method or of `listing` found the watch working; None before the first list."""
        if self._informer.synced.is_set() and self._informer.error is None:
            self._true_at = monotonic
        return None if self._true_at is None else monotonic - self._true_at

    def _read_or_ignore(self, name: str, pod: ItemT) -> FactsT | None:
        try:
            return self._read(pod)
        except ValueError as error:
            log.warning("ignoring the pod %s, no action is taken on it: %s", name, error)
            return None


class InformerPods(InformerPodList[AgentPod, PodFacts]):
    """The node's pods as the agent uses them."""

    def __init__(self, client: KubeClient, node: str) -> None:
        super().__init__(client, PODS, facts_of, node=node)
