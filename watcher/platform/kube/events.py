"""Write Events about objects, which `kubectl describe` shows.

An Event of the core API is in the namespace of the object it is about. For a cluster-scoped object (a node) that is
"default", and the uid is by convention the node's name, because `kubectl describe node` looks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from watcher.core.kubernetes.objects import EVENTS
from watcher.platform.kube.client import KubeClient

MESSAGE_BYTES = 1024
"""Longer messages are truncated to this number of bytes."""
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an Event is about: a Pod by NAMESPACE/NAME, or a Node by its name."""

    kind: Literal["Pod", "Node"]
    key: str
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSource:
    """The source of an Event: the component's name and the node on which it runs."""

    component: str
    host: str


async def report(
    client: KubeClient, about: EventSubject, *, reason: str, message: str, warning: bool, by: EventSource, now: float
) -> None:
    """Write an Event that happened at `now` (unix seconds); `reason` is one word in CamelCase. Raises KubeError."""
    namespace, _, name = about.key.rpartition("/")
    moment = datetime.fromtimestamp(now, UTC)
    where = namespace or DEFAULT_NAMESPACE
    involved = {"apiVersion": "v1", "kind": about.kind, "name": name, "uid": about.uid or name}
    content = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name[:200]}.", "namespace": where},
        "involvedObject": {**involved, **({"namespace": namespace} if namespace else {})},
        "reason": reason,
        "message": _cut(message),
        "type": "Warning" if warning else "Normal",
        "source": {"component": by.component, "host": by.host},
        "reportingComponent": by.component,
        "reportingInstance": by.host,
        "firstTimestamp": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "lastTimestamp": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "count": 1,
    }
    await client.create(EVENTS, content, namespace=where)


def _cut(message: str) -> str:
    encoded = message.encode()
    return message if len(encoded) <= MESSAGE_BYTES else encoded[: MESSAGE_BYTES - 3].decode(errors="ignore") + "…"
