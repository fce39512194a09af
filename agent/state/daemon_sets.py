"""Whether the DaemonSets exist that pods of the Kubernetes API name as their controllers.

A user who may create pods may name any controller, and pods of DaemonSets are not evicted. Each DaemonSet is therefore
read from the API, and must have the uid of the owner reference. Until the API has answered, the DaemonSet is treated as
existing. The API accepts any owner name that is not empty, so an error of one name must not prevent the other reads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import msgspec

from watcher.core.kubernetes.errors import (
    KubeError,
    KubeForbidden,
    KubeNotFound,
    KubeRefused,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.objects import ObjectMetadata
from watcher.core.kubernetes.wire import Resource
from watcher.core.messages import printable
from watcher.platform.kube.client import KubeClient
from watcher.platform.repeated_errors import RepeatedErrors

log = logging.getLogger(__name__)

VALID_S = 600.0
"""Seconds after which a DaemonSet that existed is read again. One that did not exist never gets the same uid."""
RETRY_S = 30.0
"""Seconds before the next attempt after an error."""
FOR_ALL = (KubeForbidden, KubeUnauthorized, KubeUnreachable)
"""Errors that do not depend on the DaemonSet: the others are not read either until the next attempt."""


class DaemonSet(msgspec.Struct, frozen=True, gc=False):
    """A DaemonSet, reduced to its metadata."""

    metadata: ObjectMetadata = ObjectMetadata()


DAEMON_SETS: Resource[DaemonSet] = Resource("apps", "v1", "daemonsets", DaemonSet)


class DaemonSetReference(NamedTuple):
    """The owner reference of a pod to a DaemonSet as its controller."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """The DaemonSet in the form namespace/name."""
        return f"{self.namespace}/{self.name}"


class DaemonSetOwners:
    """Reads the DaemonSets in a background task. Does not close the client."""

    def __init__(self, client: KubeClient, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._references: frozenset[DaemonSetReference] = frozenset()
        self._known: dict[DaemonSetReference, tuple[bool, float]] = {}
        """Whether the DaemonSet exists, and the monotonic time of the answer."""
        self._failed: dict[DaemonSetReference, tuple[str, float]] = {}
        """The last error that depended on the DaemonSet, and its monotonic time."""
        self._retry_at = 0.0
        self._failure = ""
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the background task. Does not wait for the API."""
        self._task = asyncio.create_task(self._run(), name="agent-daemon-sets")

    async def close(self) -> None:
        """Stop the background task; the client stays open."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def missing(self, references: Collection[DaemonSetReference]) -> frozenset[DaemonSetReference]:
        """Those of the references of all pods whose DaemonSet is known not to exist. Unknown ones are read in the
        background."""
        self._references = frozenset(references)
        self._known = {each: answer for each, answer in self._known.items() if each in self._references}
        self._failed = {each: failure for each, failure in self._failed.items() if each in self._references}
        if self._due():
            self._wake.set()
        return frozenset(each for each, (exists, _) in self._known.items() if not exists)

    def _due(self) -> list[DaemonSetReference]:
        """The references whose DaemonSet has to be read now."""
        now = self._monotonic()
        if now < self._retry_at:
            return []
        valid = {each for each, (exists, at) in self._known.items() if not exists or now - at < VALID_S}
        waiting = {each for each, (_, at) in self._failed.items() if now - at < RETRY_S}
        return sorted(self._references - valid - waiting)

    async def _run(self) -> None:
        errors = RepeatedErrors(log)
        while True:
            await self._wake.wait()
            self._wake.clear()
            for reference in self._due():
                try:
                    await self._read(reference)
                except FOR_ALL as error:
                    self._retry_at = self._monotonic() + RETRY_S
                    self._failure = _reported(error, self._failure)
                    break
                except KubeError as error:
                    why, _ = self._failed.get(reference, ("", 0.0))
                    self._failed[reference] = _reported(error, why), self._monotonic()
                except Exception as error:
                    self._failed[reference] = "", self._monotonic()
                    errors.failed(error, "unexpected error while reading the DaemonSets of pods")
            if not self._failed:
                errors.succeeded()

    async def _read(self, reference: DaemonSetReference) -> None:
        """Read one DaemonSet, and store whether it exists with the uid of the reference. Raises KubeError."""
        try:
            found = (await self._client.get(DAEMON_SETS, reference.key)).metadata.uid if _is_valid(reference) else ""
        except KubeNotFound:
            found = ""
        self._failed.pop(reference, None)
        self._failure = ""
        self._known[reference] = found == reference.uid, self._monotonic()
        if found != reference.uid:
            log.warning(
                "no DaemonSet %s has the uid %s that pods name as their controller: the pods are treated as pods "
                "without a controller",
                printable(reference.key),
                printable(reference.uid) or '""',
            )


def _is_valid(reference: DaemonSetReference) -> bool:
    """Whether a DaemonSet may have this name."""
    try:
        DAEMON_SETS.path_of(reference.key)
    except KubeRefused:
        return False
    return True


def _reported(error: KubeError, before: str) -> str:
    """The text of an error, which is logged if it differs from the one before."""
    why = f"{error}. {error.hint}".rstrip(". ")
    if why != before:
        log.warning("DaemonSets that pods name as controllers cannot be read, and are treated as existing: %s", why)
    return why
