"""Evict pods through the Eviction API, which respects PodDisruptionBudgets.

Deleting a pod would ignore PodDisruptionBudgets; an Eviction is checked against them. The result is one of six
outcomes, because the caller that reduces a node's load reacts differently to each: count on the release, count the pod
as gone, take the next pod, report to the operator, or retry in the next cycle.

Eviction has been in policy/v1 since Kubernetes 1.22, and in policy/v1beta1 until 1.24. Servers reject an unknown
version with 400 or with 404. They return 404 also for a pod that does not exist: the response then names the pod.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from watcher.core.kubernetes.errors import (
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeNoApi,
    KubeNotFound,
    KubeUnauthorized,
    KubeUnreachable,
)
from watcher.core.kubernetes.objects import PODS
from watcher.platform.kube.client import KubeClient

log = logging.getLogger(__name__)

VERSIONS = ("policy/v1", "policy/v1beta1")
FIRST_DELAY_S = 5.0
"""Seconds before the second attempt if the server gives no Retry-After; doubled before each further attempt."""

_OTHER_UID = re.compile(r"UID in (the )?precondition")
_TWO_BUDGETS = "more than one PodDisruptionBudget"


class EvictionOutcome(StrEnum):
    """The outcome of an eviction request."""

    EVICTED = "evicted"
    """Accepted: the pod ends within its grace period."""
    GONE = "gone"
    """The pod does not exist, has another uid, or its namespace is being deleted: the pod will be deleted without an
    eviction."""
    PROTECTED = "protected"
    """A PodDisruptionBudget allowed no disruption until the deadline."""
    FORBIDDEN = "forbidden"
    """The account lacks the permission, or its credentials are invalid."""
    REFUSED = "refused"
    """The server refused the eviction, and a retry would not help."""
    UNANSWERED = "unanswered"
    """The server was unreachable or busy until the deadline. It may have evicted the pod nevertheless."""


PASSING = (EvictionOutcome.PROTECTED, EvictionOutcome.UNANSWERED)


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """The outcome of an eviction after `tries` attempts, with the server's message and, if the operator can fix the
    cause, a hint. `retry_after` is the number of seconds that the server asks the client to wait before a retry; None
    if not given."""

    outcome: EvictionOutcome
    message: str = ""
    hint: str = ""
    tries: int = 1
    retry_after: float | None = None


class Evictor:
    """Evicts pods, and remembers which version of Eviction the server accepts."""

    def __init__(
        self,
        client: KubeClient,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._clock = clock
        self._sleep = sleep
        self._versions = VERSIONS

    async def evict(
        self, key: str, *, within: float, uid: str = "", grace_seconds: int | None = None
    ) -> EvictionResult:
        """Evict the pod NAMESPACE/NAME if it still has this `uid`, with its own grace period or `grace_seconds`.

        Transient failures (a budget, a busy server, a lost connection) are retried until `within` seconds are over:
        after the server's Retry-After, otherwise after 5 s, 10 s, 20 s, … No attempt begins after that; an attempt in
        progress is awaited. Raises nothing.
        """
        give_up, delay, tries = self._clock() + within, FIRST_DELAY_S, 0
        while True:
            tries += 1
            try:
                await self._post(key, uid=uid, grace_seconds=grace_seconds)
                return EvictionResult(EvictionOutcome.EVICTED, tries=tries)
            except KubeError as error:
                outcome = outcome_of(error)
                wait = error.retry_after or delay
                if outcome not in PASSING or self._clock() + wait > give_up:
                    return EvictionResult(outcome, str(error), error.hint, tries, error.retry_after)
                log.debug("eviction of %s will be retried in %g s: %s", key, wait, error)
                delay = delay if error.retry_after else 2 * delay
            await self._sleep(wait)

    async def _post(self, key: str, *, uid: str, grace_seconds: int | None) -> None:
        """Post in the version that worked last, and in the other version if the server does not know it."""
        first, second = self._versions
        try:
            await self._post_as(first, key, uid=uid, grace_seconds=grace_seconds)
        except KubeError as error:
            if error.status != 400 and not isinstance(error, KubeNoApi):
                raise
            try:
                await self._post_as(second, key, uid=uid, grace_seconds=grace_seconds)
            except KubeError as other:
                if other.status == 400 or isinstance(other, KubeNoApi):
                    raise error from other  # the server knows neither version, or the request itself is invalid
                self._versions = (second, first)
                raise
            self._versions = (second, first)

    async def _post_as(self, version: str, key: str, *, uid: str, grace_seconds: int | None) -> None:
        namespace, _, name = key.rpartition("/")
        options: dict[str, Any] = {}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        body = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}}
        await self._client.create_subresource(PODS, key, {**body, "deleteOptions": options}, subresource="eviction")


def outcome_of(error: KubeError) -> EvictionOutcome:
    """The outcome that a failed attempt means. Pure."""
    if isinstance(error, KubeNotFound):
        return EvictionOutcome.REFUSED if isinstance(error, KubeNoApi) else EvictionOutcome.GONE
    if isinstance(error, KubeForbidden):
        return EvictionOutcome.GONE if "NamespaceTerminating" in error.causes else EvictionOutcome.FORBIDDEN
    if isinstance(error, KubeUnauthorized):
        return EvictionOutcome.FORBIDDEN
    if isinstance(error, KubeConflict):
        return EvictionOutcome.GONE if _OTHER_UID.search(str(error)) else EvictionOutcome.UNANSWERED
    if "DisruptionBudget" in error.causes:
        return EvictionOutcome.PROTECTED
    if isinstance(error, KubeUnreachable) and _TWO_BUDGETS not in str(error):
        return EvictionOutcome.UNANSWERED
    return EvictionOutcome.REFUSED
