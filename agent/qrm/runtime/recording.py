"""Stores the values of properties before they are set for the first time, for `load-watcher qrm restore`.

Cpusets are not stored: with the kubelet's own managers off, containers have none before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from agent.qrm.manager.admission import ApplyFailed
from agent.qrm.manager.allocation import CPUSETS, Properties
from agent.qrm.pods import PodContainer, QrmPod
from agent.qrm.store.originals import UNKNOWN, OriginalValues


class ReadableRuntime(Protocol):
    """A way to apply properties to running containers that also reads them."""

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Set properties on a running container. Raises ApplyFailed."""
        ...

    async def values(self, pod: QrmPod, container: PodContainer, names: Iterable[str]) -> Properties:
        """The values of those of the properties that are known. Raises ApplyFailed."""
        ...


class RecordingRuntime:
    """Applies properties through `runtime`. `pods` returns the pods of the node: the values of other containers are
    removed."""

    def __init__(
        self, runtime: ReadableRuntime, originals: OriginalValues, pods: Callable[[], Collection[QrmPod]]
    ) -> None:
        self._runtime = runtime
        self._originals = originals
        self._pods = pods

    async def apply(self, pod: QrmPod, container: PodContainer, properties: Properties) -> None:
        """Set properties on a running container, unless their values cannot be stored. Raises ApplyFailed."""
        names = self._originals.missing(container.id, properties.keys() - CPUSETS)
        if names:
            values = await self._runtime.values(pod, container, names)
            try:
                await self._originals.keep({each.id for pod in self._pods() for each in pod.containers})
                await self._originals.record(container.id, {name: values.get(name, UNKNOWN) for name in sorted(names)})
            except OSError as error:
                where = f"{pod.key}, container {container.name}"
                raise ApplyFailed(f"{where}: cannot write {self._originals.path}: {error.strerror}") from None
        await self._runtime.apply(pod, container, properties)
