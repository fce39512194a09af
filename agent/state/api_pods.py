"""The pods of this node from the Kubernetes API, by an informer limited to pods bound to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

import msgspec

from agent.state.daemon_sets import DaemonSetOwners, DaemonSetReference
from agent.state.pod_facts import PODS, AgentPod, AgentPodMetadata, facts_of
from agent.state.readings import PodFacts, PodsUnknown
from watcher.core.kubernetes.pod_origin import daemon_set_of
from watcher.core.kubernetes.wire import Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.informer import Informer
from watcher.platform.kube.parameters import Selector

log = logging.getLogger(__name__)

PodT = TypeVar("PodT", bound=AgentPod)
FactsT = TypeVar("FactsT")


class InformerPodList(Generic[PodT, FactsT]):
    """Watches the pods of `node` (its name in Kubernetes). `read` converts each pod; it returns None for a pod to leave
    out, and raises ValueError for a pod that cannot be read, which is then ignored. A DaemonSet that does not exist is
    removed from the owners of a pod. Does not close the client."""

    def __init__(
        self, client: KubeClient, resource: Resource[PodT], read: Callable[[PodT], FactsT | None], *, node: str
    ) -> None:
        self._informer: Informer[PodT] = Informer(client, resource, selector=Selector(fields=f"spec.nodeName={node}"))
        self._owners = DaemonSetOwners(client)
        self._read = read
        self._facts: dict[str, tuple[PodT, bool, FactsT | None]] = {}
        """By name: the pod, whether its DaemonSet does not exist, and its facts."""
        self._true_at: float | None = None

    async def start(self) -> None:
        """Start watching. Does not wait for the API."""
        await self._informer.start()
        await self._owners.start()

    async def close(self) -> None:
        """Stop watching the pods; the client stays open."""
        await self._owners.close()
        await self._informer.close()

    def listing(self, *, monotonic: float, max_age: float) -> tuple[FactsT, ...]:
        """The pods after the last event, sorted by name. The copy is current while the watch lasts; otherwise its age
        counts from the last call that found the watch working. Raises PodsUnknown."""
        informer, age = self._informer, self.age(monotonic=monotonic)
        hint = informer.error.hint if informer.error is not None else ""
        if age is None:
            raise PodsUnknown(str(informer.error or "the Kubernetes API has not responded yet"), hint=hint)
        if age > max_age:
            raise PodsUnknown(f"the last list of pods is {age:.0f} s old: {informer.error}", hint=hint)
        # Objects are replaced, never modified, so the facts of an identical object are reused.
        before, unowned = self._facts, self._unowned()
        self._facts = {
            name: known
            if (known := before.get(name)) is not None and known[0] is pod and known[1] is (name in unowned)
            else (pod, name in unowned, self._read_or_ignore(name, pod, unowned=name in unowned))
            for name, pod in informer.objects.items()
        }
        return tuple(facts for _, (_, _, facts) in sorted(self._facts.items()) if facts is not None)

    def _unowned(self) -> set[str]:
        """The names of the pods whose DaemonSet does not exist."""
        references = {name: _reference(pod.metadata) for name, pod in self._informer.objects.items()}
        missing = self._owners.missing({each for each in references.values() if each is not None})
        return {name for name, each in references.items() if each in missing}

    def age(self, *, monotonic: float) -> float | None:
        """Seconds since a call of this method or of `listing` found the watch working; None before the first list."""
        if self._informer.synced.is_set() and self._informer.error is None:
            self._true_at = monotonic
        return None if self._true_at is None else monotonic - self._true_at

    def _read_or_ignore(self, name: str, pod: PodT, *, unowned: bool) -> FactsT | None:
        try:
            return self._read(_without_daemon_set(pod) if unowned else pod)
        except ValueError as error:
            log.warning("ignoring the pod %s, no action is taken on it: %s", name, error)
            return None


def _reference(metadata: AgentPodMetadata) -> DaemonSetReference | None:
    owner = daemon_set_of(metadata.owner_references)
    return None if owner is None else DaemonSetReference(metadata.namespace, owner.name, owner.uid)


def _without_daemon_set(pod: PodT) -> PodT:
    metadata = pod.metadata
    false = daemon_set_of(metadata.owner_references)
    owners = tuple(owner for owner in metadata.owner_references if owner is not false)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(metadata, owner_references=owners))


class InformerPods(InformerPodList[AgentPod, PodFacts]):
    """The node's pods as the agent uses them."""

    def __init__(self, client: KubeClient, node: str) -> None:
        super().__init__(client, PODS, partial(facts_of, from_api=True), node=node)
