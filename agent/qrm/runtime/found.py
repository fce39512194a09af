"""Containers that exist in a container runtime, as `load-watcher qrm restore` uses them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from agent.qrm.manager.allocation import Properties


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A container that has not ended; `pod` is namespace/name."""

    id: str
    name: str
    pod: str
    pod_uid: str


class ContainerGone(RuntimeError):
    """The container has ended since it was listed."""


class RestoringRuntime(Protocol):
    """A container runtime whose containers can be listed and updated. All methods raise ApplyFailed; those of one
    container raise ContainerGone."""

    async def containers(self) -> list[FoundContainer]:
        """The containers of all pods."""
        ...

    async def properties(self, container: FoundContainer, names: Iterable[str]) -> Properties | None:
        """Those of the properties that a container has; None if the runtime does not report them."""
        ...

    async def set(self, container: FoundContainer, properties: Properties) -> None:
        """Set properties on a container."""
        ...

    async def close(self) -> None:
        """Close the connection to the runtime."""
        ...
