"""The client that runs in the process of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from watcher.client.arrays import Columns, NodeSilence, PodColumns, columns_of_snapshot, to_pods, to_silence
from watcher.client.errors import WatcherError
from watcher.client.polling import MAX_AGE_S, POLL_S, Client, no_copy_of_pods
from watcher.core.koordinator.aggregates import aggregates_document, usages_of
from watcher.core.koordinator.report import NodeUsages
from watcher.core.pods.published import PublishedPods
from watcher.core.publishing.documents import Published
from watcher.core.publishing.selection import Selection
from watcher.model import MetricType, Operator, Snapshot, Window


class PodUsageSource(Protocol):
    """The part of the service that the in-process client uses for pods; implemented by `api.service.Service`."""

    @property
    def pods(self) -> PublishedPods | None: ...

    def request_pods(self) -> str: ...


class InProcessClient(Client):
    """The client that runs in the process of the service and reads its published documents without HTTP requests.
    `published` returns the current snapshot, `window` is the service's default window, `max_staleness` the maximum age
    in seconds. `horizon` is that of the operator FORECAST, "" for the default one. `pods` is the service if a copy of
    pod usage is required, `minutes` adds the readings of each minute to it; `measure` computes `Columns.usages`."""

    def __init__(
        self,
        published: Callable[[], Published | None],
        *,
        window: Window,
        types: tuple[MetricType, ...] | None = None,
        operators: tuple[Operator, ...] | None = None,
        horizon: str = "",
        pods: PodUsageSource | None = None,
        minutes: bool = False,
        measure: Callable[[Snapshot], NodeUsages] | None = None,
        max_staleness: float = MAX_AGE_S,
        interval: float = POLL_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(pods=pods is not None, interval=interval, monotonic=monotonic)
        self._max_staleness = max_staleness
        self._published = published
        self._supply = pods
        self._minutes = minutes
        self._measure = measure
        self._selection = Selection(window, types, operators, horizon)
        self._tag: str | None = None
        self._pod_tag: str | None = None

    async def refresh(self) -> Columns:
        """Copy the published snapshot, in a thread. Raises WatcherError if there is none, it is too old, or a partial
        outage makes it incomplete."""
        published = self._young()
        if published.snapshot.lost:
            lost = len(published.snapshot.lost)
            raise WatcherError("partial_outage", f"{lost} known nodes went missing at once; the list is incomplete")
        if not published.snapshot.nodes:
            raise WatcherError("no_metrics", "no metrics for any node", hint="see /api/v1/findings")
        tag = f"{published.tag}-{published.silent.tag}"
        if self._nodes.copy is None or self._tag != tag:
            self._nodes.copy = await asyncio.to_thread(self._take, published)
            self._tag = tag
        return self._nodes.copy

    async def refresh_silence(self) -> NodeSilence:
        """Return the silent nodes as published. Raises WatcherError if nothing is published or it is too old."""
        published = self._young()
        return to_silence(published.silent.document)

    async def refresh_pods(self) -> PodColumns:
        """Copy the published pod usage, in a thread. Raises WatcherError if there is none or it is too old."""
        if self._supply is None:
            raise no_copy_of_pods()
        why, pods = self._supply.request_pods(), self._supply.pods
        if pods is None or not pods.table.pods:
            hint = why or "pod usage is collected at the next refresh"
            raise WatcherError("no_pods", f"no pod usage available{'' if why else ' yet'}", hint=hint)
        if (age := pods.age(self._monotonic())) > self._max_staleness:
            raise WatcherError("stale", f"the newest sample is {age:.0f} s old, more than {self._max_staleness:g} s")
        if self._pods.copy is None or self._pod_tag != pods.tag:
            self._pods.copy = await asyncio.to_thread(self._take_pods, pods)
            self._pod_tag = pods.tag
        return self._pods.copy

    def _young(self) -> Published:
        published = self._published()
        if published is None:
            raise WatcherError("no_metrics", "no metrics yet", hint="wait for the first tick to finish")
        if (age := published.age(self._monotonic())) > self._max_staleness:
            raise WatcherError("stale", f"the newest sample is {age:.0f} s old, more than {self._max_staleness:g} s")
        return published

    def _take(self, published: Published) -> Columns:
        snapshot, silence = published.snapshot, published.silent.document
        found = columns_of_snapshot(
            snapshot, self._selection, received=published.monotonic, age_at_receipt=published.age_s
        )
        if all(np.isnan(values).all() for values in found.values.values()):
            raise WatcherError("no_metrics", "no metrics of the requested types and operators")
        silent = {node.name: node.sampled for node in silence.nodes if node.sampled is not None}
        usages = None if self._measure is None else usages_of(aggregates_document(self._measure(snapshot)))
        return replace(found, usages=usages, silence=NodeSilence(silent, len(found.nodes), silence.source_ok))

    def _take_pods(self, pods: PublishedPods) -> PodColumns:
        found = to_pods(pods.document(), received=pods.monotonic, age_at_receipt=pods.age_s)
        return replace(found, recent=pods.minutes()) if self._minutes else found
