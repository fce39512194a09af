"""Leader election among replicas by a Lease (coordination.k8s.io).

Follows the rules of client-go's leader election, so that kubectl shows the usual fields: the holder renews the Lease,
and a replica that has seen it unchanged for its duration may take it. That duration is measured on the replica's own
monotonic clock from the last observed change, because the times in a Lease come from another machine's clock. Every
write is conditional on the version that was read, so if two replicas write at once, one fails. A holder that cannot
renew stops before other replicas may take over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from watcher.core.kubernetes.errors import KubeConflict, KubeError, KubeNoApi, KubeNotFound
from watcher.core.kubernetes.wire import MinimalMetadata, Resource
from watcher.platform.kube.client import KubeClient
from watcher.platform.kube.parameters import PatchKind

log = logging.getLogger(__name__)

LEASE_DURATION_S = 30
RENEW_EVERY_S = 10.0
MARGIN_S = 5.0
"""The holder considers the Lease lost this many seconds before other replicas may take it."""


class LeaseSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The holder and the duration in seconds after each renewal. An empty holder identity means that the Lease was
    released."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    acquire_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True):
    """A Lease object, reduced to the fields used here."""

    metadata: MinimalMetadata = MinimalMetadata()
    spec: LeaseSpec = LeaseSpec()


LEASES: Resource[Lease] = Resource("coordination.k8s.io", "v1", "leases", Lease)


class Election:
    """This replica's participation in the election for the Lease NAMESPACE/NAME. `identity` must differ for each
    replica and each start."""

    def __init__(
        self,
        client: KubeClient,
        key: str,
        *,
        identity: str,
        manager: str,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        lasts: int = LEASE_DURATION_S,
        margin: float = MARGIN_S,
    ) -> None:
        self.key = key
        self._client = client
        self._identity = identity
        self._manager = manager
        self._now = now
        self._monotonic = monotonic
        self._lasts = lasts
        self._margin = margin
        self._until = float("-inf")
        self._seen = ""
        self._seen_at = float("-inf")

    @property
    def held(self) -> bool:
        """Whether this replica holds the Lease now."""
        return self._monotonic() < self._until

    async def acquire_or_renew(self) -> bool:
        """Take the Lease if it is free, renew it if this replica holds it. Returns whether this replica holds it.
        Raises KubeError; a Lease that is held then remains held until it expires."""
        began, before = self._monotonic(), self.held
        try:
            ours = await self._stand(began)
        except KubeConflict:  # another replica was faster
            ours = False
        self._until = began + self._lasts - self._margin if ours else float("-inf")
        if ours != before:
            log.info("%s the Lease %s", "this replica holds" if ours else "this replica no longer holds", self.key)
        return ours

    async def _stand(self, began: float) -> bool:
        try:
            lease = await self._client.get(LEASES, self.key)
        except KubeNoApi:
            raise
        except KubeNotFound:
            new = {**self._renewed(), "acquireTime": self._stamp(), "leaseTransitions": 0}
            namespace, _, name = self.key.rpartition("/")
            content = {
                "apiVersion": LEASES.group_version,
                "kind": "Lease",
                "metadata": {"name": name, "namespace": namespace},
                "spec": new,
            }
            await self._client.create(LEASES, content, namespace=namespace, manager=self._manager)
            return True
        spec = lease.spec
        if lease.metadata.resource_version != self._seen:
            self._seen, self._seen_at = lease.metadata.resource_version, began
        ours = spec.holder_identity == self._identity
        if not ours and spec.holder_identity and began - self._seen_at < (spec.lease_duration_seconds or self._lasts):
            return False
        change = self._renewed()
        if not ours:
            change |= {"acquireTime": self._stamp(), "leaseTransitions": (spec.lease_transitions or 0) + 1}
        await self._write(lease, change)
        return True

    async def take_over(self) -> bool:
        """Take the Lease from any holder, which notices it when it renews the Lease the next time. Returns whether
        another replica held it. Raises KubeError; KubeConflict if the holder renewed it at the same moment."""
        began = self._monotonic()
        try:
            lease = await self._client.get(LEASES, self.key)
        except KubeNotFound:
            return False
        await self._write(lease, {**self._renewed(), "acquireTime": self._stamp()})
        self._until = began + self._lasts - self._margin
        return bool(lease.spec.holder_identity)

    async def release(self) -> None:
        """Release the Lease if this replica holds it, so that another replica can take it at once. Raises nothing:
        without a release the Lease expires."""
        if self._until == float("-inf"):
            return
        self._until = float("-inf")
        try:
            lease = await self._client.get(LEASES, self.key)
            if lease.spec.holder_identity == self._identity:
                await self._write(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except KubeError as error:
            log.debug("the Lease %s was not released; it will expire: %s", self.key, error)

    async def _write(self, lease: Lease, spec: dict[str, object]) -> None:
        change = {"metadata": {"resourceVersion": lease.metadata.resource_version}, "spec": spec}
        await self._client.patch(LEASES, self.key, change, kind=PatchKind.MERGE, manager=self._manager)

    def _renewed(self) -> dict[str, object]:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._lasts,
            "renewTime": self._stamp(),
        }

    def _stamp(self) -> str:
        return f"{datetime.fromtimestamp(self._now(), UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
