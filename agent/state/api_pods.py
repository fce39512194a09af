"""The pods of this node from the Kubernetes API: an informer that asks for those bound to it and no others."""

from __future__ import annotations

import logging

from agent.state.pod_facts import PODS, Pod, facts_of
from agent.state.readings import NoPods, PodFacts
from watcher.platform.kube.client import KubeClient, Selector
from watcher.platform.kube.informer import Informer

log = logging.getLogger(__name__)


class InformedPods:
    """Keeps the pods of `node`, by its name in Kubernetes. The client stays its owner's."""

    def __init__(self, client: KubeClient, node: str) -> None:
        self._informer: Informer[Pod] = Informer(client, PODS, selector=Selector(fields=f"spec.nodeName={node}"))
        self._facts: dict[str, tuple[Pod, PodFacts | None]] = {}
        self._true_at: float | None = None

    async def start(self) -> None:
        """Begin to watch. Does not wait for the API."""
        await self._informer.start()

    async def close(self) -> None:
        """Stop watching."""
        await self._informer.close()

    def listing(self, *, monotonic: float, max_age: float) -> tuple[PodFacts, ...]:
        """The pods as the last event left them. The copy counts as true for as long as the watch lasts, and has an age
        from when that was last seen. Raises NoPods."""
        informer = self._informer
        if informer.synced.is_set() and informer.error is None:
            self._true_at = monotonic
        hint = informer.error.hint if informer.error is not None else ""
        if self._true_at is None:
            why = informer.error or "the Kubernetes API has not answered yet"
            raise NoPods(f"it is not known which pods there are: {why}", hint=hint)
        if (age := monotonic - self._true_at) > max_age:
            raise NoPods(f"the last list of pods is {age:.0f} s old: {informer.error}", hint=hint)
        # An object is not changed but replaced, so the facts of the same one are the same.
        before = self._facts
        self._facts = {
            name: known if (known := before.get(name)) is not None and known[0] is pod else (pod, _facts(name, pod))
            for name, pod in informer.objects.items()
        }
        return tuple(facts for _, (_, facts) in sorted(self._facts.items()) if facts is not None)


def _facts(name: str, pod: Pod) -> PodFacts | None:
    try:
        return facts_of(pod)
    except ValueError as error:
        log.warning("the pod %s is left out, and nothing is done to it: %s", name, error)
        return None
