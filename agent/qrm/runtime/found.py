"""Containers that exist in a container runtime, as `load-watcher qrm restore` finds them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.qrm.manager.allocation import Value


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A container: `pod` is namespace/name, and `has` are its properties, None if the runtime does not report
    them."""

    id: str
    name: str
    pod: str
    pod_uid: str
    has: Mapping[str, Value] | None = None
