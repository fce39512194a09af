"""One pod for each uid of a control group.

The API gives each pod a uid of its own. The uid of a static pod is in its manifest, and its mirror pod in the API names
it in an annotation, so two pods can have one uid: two manifests with the same uid, or a mirror pod that no kubelet has
created.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

PodT = TypeVar("PodT")


class PodIdentity(NamedTuple):
    """`uid` is that of the control group, `created` the creation time in the API in unix seconds, infinity if unknown,
    `key` namespace/name."""

    uid: str
    static: bool
    created: float
    key: str


class UniquePods(Generic[PodT]):
    """Selects one pod for each uid, and logs the others when they appear. A pod that is not static comes first, because
    its uid is its own; then the pod that was created first, because its uid could not be copied before."""

    def __init__(self, identity: Callable[[PodT], PodIdentity], log: logging.Logger) -> None:
        self._identity = identity
        self._log = log
        self._ignored: frozenset[str] = frozenset()

    def select(self, pods: Iterable[PodT]) -> tuple[PodT, ...]:
        """The selected pods, in the given order. Equal pods count as one."""
        listed = [(self._identity(pod), pod) for pod in pods]
        found: dict[str, tuple[PodIdentity, PodT]] = {}
        for identity, pod in sorted(listed, key=lambda each: each[0][1:]):
            found.setdefault(identity.uid, (identity, pod))
        ignored = {
            f"ignoring the pod {identity.key}: it has the uid {identity.uid} of the pod {found[identity.uid][0].key}"
            for identity, pod in listed
            if found[identity.uid][1] != pod
        }
        for each in sorted(ignored - self._ignored):
            self._log.warning("%s", each)
        self._ignored = frozenset(ignored)
        return tuple(pod for identity, pod in listed if found[identity.uid][1] is pod)
