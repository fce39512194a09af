"""Reservations of pods that kube-scheduler is placing.

Every client that reaches the port can send a request, unless a certificate is required. Therefore a pod is reserved for
the full time only if it waits for a node in the API, with the resources that it has there. A pod that the API has not
reported yet is reserved for UNREPORTED_S, and at most MOST_UNREPORTED such pods at a time: in a burst of pods, the
watch of the extender may be behind that of kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from scorers.cluster.pods import ENDED, identity
from scorers.cluster.table import ClusterTable
from watcher.core.kubernetes.objects import Pod

RESERVED_S = 5.0
UNREPORTED_S = 1.0
"""Duration in seconds of the reservation of a pod that the API has not reported yet."""
MOST_UNREPORTED = 20
"""Maximum number of such reservations: the pods of 200 ms at a hundred pods per second, which is more than
kube-scheduler places with an extender."""
MOST_AWAITED = 1_000
"""Maximum number of pods that are reserved, or reserved for longer, when the API reports them."""

FindPod = Callable[[Pod], Pod | None]
"""Returns the pod of a request as the API has it, None for a pod that the API has not reported."""


def is_waiting(pod: Pod) -> bool:
    """Whether a pod waits for a node."""
    return not pod.spec.node_name and pod.status.phase not in ENDED


class Reservations:
    """The reservations in a table. `now` returns unix seconds."""

    def __init__(self, table: ClusterTable, *, now: Callable[[], float], find_pod: FindPod) -> None:
        self.find_pod = find_pod
        self.deferred = 0
        """Number of requests since the start whose pod was not reserved until the API reported the pod."""
        self._table = table
        self._now = now
        self._awaited: dict[str, tuple[str, float]] = {}  # pods that the API has not reported: node, end of reservation
        self._unreported: dict[str, float] = {}  # of these, the reserved pods: end of the reservation

    def begin(self, pod: Pod) -> None:
        """Release the pod's own reservation and all expired reservations."""
        self._table.expire(self._now())
        self._table.release(identity(pod))
        self._awaited.pop(identity(pod), None)
        self._unreported.pop(identity(pod), None)

    def reserve(self, pod: Pod, node: str) -> str:
        """Return the node, "" if the pod is not reserved: it does not wait for a node, or too many pods are reserved
        that the API has not reported."""
        now = self._now()
        known = self.find_pod(pod)
        if known is None:
            return self._reserve_unreported(pod, node, now=now)
        if not is_waiting(known):
            return ""
        return node if self._table.reserve(known, node, now=now, until=now + RESERVED_S) else ""

    def _reserve_unreported(self, pod: Pod, node: str, *, now: float) -> str:
        key = identity(pod)
        self._awaited[key] = (node, now + RESERVED_S)
        if len(self._awaited) > MOST_AWAITED:
            del self._awaited[next(iter(self._awaited))]
        self._unreported = {other: until for other, until in self._unreported.items() if until > now}
        if len(self._unreported) >= MOST_UNREPORTED:
            self.deferred += 1
            return ""
        if not self._table.reserve(pod, node, now=now, until=now + UNREPORTED_S):
            return ""
        self._unreported[key] = now + UNREPORTED_S
        return node

    def reserve_on_only_node(self, pod: Pod, names: Sequence[str], failures: Mapping[str, str]) -> str:
        """Reserve the pod if exactly one node passes; return the node, "" if there is no reservation."""
        if len(names) - len(failures) != 1:
            return ""
        node = next((name for name in names if name not in failures), "")
        row = self._table.row.get(node)
        return "" if row is None or not self._table.known[row] else self.reserve(pod, node)

    def reported(self, pod: Pod) -> None:
        """Reserve a pod that the API reports only now, after the request about it: for the rest of RESERVED_S, with its
        resources in the API."""
        node, until = self._awaited.pop(identity(pod), ("", 0.0))
        if self._unreported.pop(identity(pod), None) is not None:
            self._table.release(identity(pod))
        if self._now() < until and is_waiting(pod):
            self._count(pod, node, until=until)

    def bound(self, pod: Pod, node: str) -> None:
        """Count a pod that was bound now; the watch reports it later."""
        self._count(pod, node, until=self._now() + RESERVED_S)

    def _count(self, pod: Pod, node: str, *, until: float) -> None:
        with suppress(ValueError):  # invalid quantities, already logged for the pod's watch event
            self._table.reserve(pod, node, now=self._now(), until=until)
