"""Handlers for Koordinator NodeMetrics: when the report is rebuilt, its ETags, and the errors for missing ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial

from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.api.body_builder import Making
from watcher.api.data_errors import refuse_remnant, row_of
from watcher.api.nodes import KEPT_BYTES, Current
from watcher.api.service import Service
from watcher.core.koordinator.collect_policy import CollectPolicies, CollectPolicy
from watcher.core.koordinator.report import NodeMetricReport, make_report, node_statuses, period_of
from watcher.core.publishing.compression import Encoding, compressed
from watcher.core.publishing.documents import Published
from watcher.platform.http.parameters import query_values, shown
from watcher.platform.http.responses import (
    SMALL_BODY,
    Kept,
    coded,
    encoding_for,
    has_it,
    not_modified,
    plain_encoding_for,
    sent,
)
from watcher.platform.http.routing import JSON, ApiError

CAPACITY_HINT = (
    'absolute amounts need the capacity of nodes: set kubernetes.node_names = "on" (and kubernetes.kubeconfig outside '
    "the cluster), or use metrics-server as the source; see docs/api.md"
)


@dataclass(frozen=True, slots=True)
class Reported:
    """A report built from one published snapshot with one set of policies, and a cache of its encoded bodies."""

    policies: CollectPolicies
    published: Published
    report: NodeMetricReport
    tag: str
    kept: Kept = field(default_factory=lambda: Kept(KEPT_BYTES))

    def stands(self, published: Published) -> bool:
        """Whether this report is still valid for `published`: no node's report interval has ended since."""
        made, now = self.published.snapshot.timestamp, published.snapshot.timestamp
        return all(period_of(policy, made) == period_of(policy, now) for policy in self._used)

    @property
    def _shortest_interval_s(self) -> int:
        return min(policy.report_interval_s for policy in self._used)

    @property
    def _used(self) -> set[CollectPolicy]:
        return {self.policies.for_others, *self.report.policies}

    def etag(self, host: str | None, encoding: Encoding) -> str:
        """The ETag of the body of one node or (None) of all nodes. It is unique per body and constant while this report
        is valid."""
        which = "" if host is None else hashlib.blake2s(host.encode(), digest_size=8).hexdigest()
        return f'"{self.tag}-{which}-{encoding}"'

    def headers(self, etag: str, encoding: Encoding, *, scope: str, monotonic: float) -> CIMultiDict[str]:
        """Headers of a NodeMetric document. `Age` is the age of the newest sample in seconds; `scope` is the prefix of
        Cache-Control, `monotonic` the current monotonic time in seconds."""
        headers = {
            hdrs.CONTENT_TYPE: JSON,
            hdrs.VARY: hdrs.ACCEPT_ENCODING,
            hdrs.CACHE_CONTROL: f"{scope}max-age={self._shortest_interval_s}, must-revalidate",
            hdrs.LAST_MODIFIED: formatdate(self.published.snapshot.timestamp, usegmt=True),
            hdrs.ETAG: etag,
            hdrs.AGE: str(int(self.published.age(monotonic))),
        }
        return coded(headers, encoding)

    def one(self, host: str) -> bytes:
        """The encoded NodeMetric of a known node. Raises ApiError if the node has none."""
        body = self.report.objects.get(host)
        if body is not None:
            return body
        why = self.report.missing.get(host, "the node appeared after the last report")
        hint = CAPACITY_HINT if "capacity" in why else "GET /watcher/{host} returns the available data of the node"
        raise ApiError(404, "no_node_metric", f"no NodeMetric for node {shown(host)!r}: {why}", hint)

    def check(self) -> None:
        """Raise ApiError if no node has a NodeMetric."""
        if self.report.objects:
            return
        reasons = sorted(set(self.report.missing.values()))
        hint = CAPACITY_HINT if any("capacity" in why for why in reasons) else "GET /watcher returns the available data"
        message = f"no node has a NodeMetric: {'; '.join(reasons)}"
        raise ApiError(404, "no_node_metric", message, hint)


class NodeMetricHandlers:
    """Handlers for NodeMetrics of all nodes and of one node."""

    def __init__(self, service: Service, *, current: Current, making: Making) -> None:
        self._service = service
        self._current = current
        self._making = making
        self._reported: Reported | None = None
        self._reports = 0

    async def node_metrics(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The NodeMetrics of all nodes, as a list."""
        query_values(request.rel_url.raw_query_string, known=())
        current, _ = self._current.answering()
        refuse_remnant(current.published)
        reported = await self._report(current.published)
        reported.check()
        encoding = encoding_for(request)
        etag = reported.etag(None, encoding)
        headers = reported.headers(etag, encoding, scope=self._current.scope, monotonic=self._service.monotonic())
        if has_it(request, etag):
            return not_modified(headers)
        tagged = partial(reported.etag, None)
        body = await self._making.coded(encoding, reported.report.body, kept=reported.kept, etag=tagged)
        return sent(body, headers)

    async def node_metric(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The NodeMetric of one node."""
        query_values(request.rel_url.raw_query_string, known=())
        current, _ = self._current.answering()
        (host,) = captured
        row_of(current.published, host)
        reported = await self._report(current.published)
        body = reported.one(host)
        encoding = encoding_for(request) if len(body) > SMALL_BODY else plain_encoding_for(request)
        etag = reported.etag(host, encoding)
        headers = reported.headers(etag, encoding, scope=self._current.scope, monotonic=self._service.monotonic())
        if has_it(request, etag):
            return not_modified(headers)
        if encoding is not Encoding.IDENTITY:
            body = await self._making.in_thread(partial(compressed, body, encoding))
        return sent(body, headers)

    async def _report(self, published: Published) -> Reported:
        """The current report; built now if there is none, if a node's report interval has ended, or if it is older than
        max_staleness."""
        reported, policies = self._reported, self._service.collect_policies
        if reported is not None and reported.policies is policies and not self._is_stale(reported):
            if reported.stands(published):
                return reported
            before = reported.report
        else:
            before = None
        which = (published.tag, "nodemetrics", id(policies))
        make = partial(self._make_report, published, policies, before)
        self._reported = reported = await self._making.shared(which, make)
        return reported

    def _is_stale(self, reported: Reported) -> bool:
        return reported.published.age(self._service.monotonic()) > self._service.max_staleness

    async def _make_report(
        self, published: Published, policies: CollectPolicies, before: NodeMetricReport | None
    ) -> Reported:
        service = self._service
        service.want_pods()
        pods = service.pods
        if pods is not None and pods.age(service.monotonic()) > service.max_staleness:
            pods = None
        capacities, snapshot = await service.capacities(), published.snapshot

        def make() -> NodeMetricReport:
            mine = policies.of_all(snapshot.nodes, service.node_labels)
            statuses = node_statuses(
                snapshot, capacities=capacities, pods=pods, policies=mine, classes=service.pod_classes()
            )
            return make_report(statuses, before=before, max_age=service.max_staleness)

        report = await self._making.in_thread(make)
        self._reports += 1
        return Reported(policies, published, report, f"{published.tag}-nodemetrics-{self._reports:x}")
