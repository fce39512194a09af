"""Ways to apply properties to running containers: not at all (`dry_run`), through the CRI (`cri`), or as a plug-in of
NRI (`nri`). `restore` returns containers to their earlier values."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.qrm.manager.allocation import Properties
from agent.qrm.pods import PodContainer, QrmPod

log = logging.getLogger(__name__)


async def dry_run(pod: QrmPod, container: PodContainer, properties: Properties) -> None:
    """Log the properties that would be set; set nothing."""
    wanted = ", ".join(f"{name}={value}" for name, value in properties.items())
    log.info("would set %s on %s, container %s (dry-run)", wanted, pod.key, container.name)


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A container of a container runtime that has not ended; `pod` is namespace/name."""

    id: str
    name: str
    pod: str
    pod_uid: str

    @property
    def called(self) -> str:
        """Pod and container, for messages."""
        return f"{self.pod}, container {self.name}"


class ContainerGone(RuntimeError):
    """The container has ended since it was listed."""


class Runtime(Protocol):
    """A container runtime whose containers can be listed and updated. All methods raise ApplyFailed."""

    async def containers(self) -> list[FoundContainer]:
        """The containers of all pods."""
        ...

    async def values(self, container: FoundContainer, names: Iterable[str]) -> Properties | None:
        """Those of the properties that a container has; None if the runtime does not report them. Raises
        ContainerGone."""
        ...

    async def set(self, container: FoundContainer, properties: Properties) -> None:
        """Set properties on a container."""
        ...

    async def close(self) -> None:
        """Close the connection to the runtime."""
        ...
