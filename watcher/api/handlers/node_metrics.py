"""Handlers for Koordinator NodeMetrics: when the report is rebuilt, its ETags, and the errors for missing ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial

from aiohttp import hdrs, web
from multidict import CIMultiDict

from watcher.api.body_builder import BodyBuilder
from watcher.api.data_errors import check_complete, row_of
from watcher.api.handlers.base import BODY_CACHE_BYTES, CurrentSnapshot, Handlers
from watcher.api.service import ServiceView
from watcher.core.koordinator.collect_policy import CollectPolicies, CollectPolicy
from watcher.core.koordinator.report import NodeMetricReport, make_report, node_statuses, period_of
from watcher.core.publishing.compression import Encoding, compressed
from watcher.core.publishing.documents import Published
from watcher.platform.http.parameters import query_values, truncated
from watcher.platform.http.responses import (
    SMALL_BODY,
    BodyCache,
    body_response,
    encoding_for,
    etag_matches,
    not_modified,
    plain_encoding_for,
    with_content_coding,
)
from watcher.platform.http.routing import JSON, ApiError

CAPACITY_HINT = (
    'absolute amounts need the capacity of nodes: set kubernetes.node_names = "on" (and kubernetes.kubeconfig outside '
    "the cluster), or use metrics-server as the source; see docs/reference/api.md"
)


@dataclass(frozen=True, slots=True)
class CachedReport:
    """A report built from one published snapshot with one set of policies, and a cache of its encoded bodies."""

    policies: CollectPolicies
    published: Published
    report: NodeMetricReport
    tag: str
    kept: BodyCache = field(default_factory=lambda: BodyCache(BODY_CACHE_BYTES))

    def is_valid_for(self, published: Published) -> bool:
        """Whether this report is still valid for `published`: no node's report interval has ended since."""
        made, now = self.published.snapshot.timestamp, published.snapshot.timestamp
        return all(period_of(policy, made) == period_of(policy, now) for policy in self._used)

    @property
    def _shortest_interval_s(self) -> int:
        return min(policy.report_interval_s for policy in self._used)

    @property
    def _used(self) -> set[CollectPolicy]:
        return {self.policies.default_policy, *self.report.policies}

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
        return with_content_coding(headers, encoding)

    def encoded_node(self, host: str) -> bytes:
        """The encoded NodeMetric of a known node. Raises ApiError if the node has none."""
        body = self.report.objects.get(host)
        if body is not None:
            return body
        why = self.report.missing.get(host, "the node appeared after the last report")
        hint = CAPACITY_HINT if "capacity" in why else "GET /watcher/{host} returns the available data of the node"
        raise ApiError(404, "no_node_metric", f"no NodeMetric for node {truncated(host)!r}: {why}", hint)

    def check_not_empty(self) -> None:
        """Raise ApiError if no node has a NodeMetric."""
        if self.report.objects:
            return
        reasons = sorted(set(self.report.missing.values()))
        hint = CAPACITY_HINT if any("capacity" in why for why in reasons) else "GET /watcher returns the available data"
        message = f"no node has a NodeMetric: {'; '.join(reasons)}"
        raise ApiError(404, "no_node_metric", message, hint)


class NodeMetricHandlers(Handlers):
    """Handlers for NodeMetrics of all nodes and of one node."""

    def __init__(self, service: ServiceView, *, current: CurrentSnapshot, body_builder: BodyBuilder) -> None:
        super().__init__(service, current=current, body_builder=body_builder)
        self._reported: CachedReport | None = None
        self._reports = 0

    async def node_metrics(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The NodeMetrics of all nodes, as a list."""
        query_values(request.rel_url.raw_query_string, known=())
        current, _ = self._current.responses()
        check_complete(current.published)
        reported = await self._report(current.published)
        reported.check_not_empty()
        encoding = encoding_for(request)
        etag = reported.etag(None, encoding)
        headers = reported.headers(etag, encoding, scope=self._current.scope, monotonic=self._service.monotonic())
        if etag_matches(request, etag):
            return not_modified(headers)
        tagged = partial(reported.etag, None)
        body = await self._body_builder.cached_body(encoding, reported.report.body, kept=reported.kept, etag=tagged)
        return body_response(body, headers)

    async def node_metric(self, request: web.Request, captured: Sequence[str]) -> web.Response:
        """The NodeMetric of one node."""
        query_values(request.rel_url.raw_query_string, known=())
        current, _ = self._current.responses()
        (host,) = captured
        row_of(current.published, host)
        reported = await self._report(current.published)
        body = reported.encoded_node(host)
        encoding = encoding_for(request) if len(body) > SMALL_BODY else plain_encoding_for(request)
        etag = reported.etag(host, encoding)
        headers = reported.headers(etag, encoding, scope=self._current.scope, monotonic=self._service.monotonic())
        if etag_matches(request, etag):
            return not_modified(headers)
        if encoding is not Encoding.IDENTITY:
            body = await self._body_builder.in_thread(partial(compressed, body, encoding))
        return body_response(body, headers)

    async def _report(self, published: Published) -> CachedReport:
        """The current report; built now if there is none, if a node's report interval has ended, or if it is older than
        max_staleness."""
        reported, policies = self._reported, self._service.collect_policies
        if reported is not None and reported.policies is policies and not self._is_stale(reported):
            if reported.is_valid_for(published):
                return reported
            before = reported.report
        else:
            before = None
        which = (published.tag, "nodemetrics", id(policies))
        make = partial(self._make_report, published, policies, before)
        self._reported = reported = await self._body_builder.shared(which, make)
        return reported

    def _is_stale(self, reported: CachedReport) -> bool:
        return reported.published.age(self._service.monotonic()) > self._service.max_staleness

    async def _make_report(
        self, published: Published, policies: CollectPolicies, before: NodeMetricReport | None
    ) -> CachedReport:
        service = self._service
        service.request_pods()
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

        report = await self._body_builder.in_thread(make)
        self._reports += 1
        return CachedReport(policies, published, report, f"{published.tag}-nodemetrics-{self._reports:x}")
