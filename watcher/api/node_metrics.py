"""NodeMetrics as the API answers them: when they are made anew, under which ETag, and what is said where there are
none."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from email.utils import formatdate

from aiohttp import hdrs
from multidict import CIMultiDict

from watcher.api.parameters import shown
from watcher.api.responses import Kept, coded
from watcher.api.routing import JSON, ApiError
from watcher.collect_policy import CollectPolicies, CollectPolicy
from watcher.node_metrics import NodeMetricReport, period_of
from watcher.publish import Encoding, Published

KEPT_BYTES = 64 << 20
CAPACITY_HINT = (
    'amounts need the capacity of nodes: set kubernetes.node_names = "on" (and kubernetes.kubeconfig outside the '
    "cluster), or take metrics-server as the source; docs/api.md says more"
)


@dataclass(frozen=True, slots=True)
class Reported:
    """One report by these policies, of the snapshot that was published when it was made, with its encoded bodies."""

    policies: CollectPolicies
    published: Published
    report: NodeMetricReport
    tag: str
    kept: Kept = field(default_factory=lambda: Kept(KEPT_BYTES))

    def stands(self, published: Published) -> bool:
        """Whether a report of this snapshot would be the same: no node's report interval has ended since."""
        made, now = self.published.snapshot.timestamp, published.snapshot.timestamp
        return all(period_of(policy, made) == period_of(policy, now) for policy in self._used)

    @property
    def _shortest_interval_s(self) -> int:
        return min(policy.report_interval_s for policy in self._used)

    @property
    def _used(self) -> set[CollectPolicy]:
        return {self.policies.for_others, *self.report.policies}

    def etag(self, host: str | None, encoding: Encoding) -> str:
        """Unlike for whatever differs in a single byte, and the same again while this report stands."""
        which = "" if host is None else hashlib.blake2s(host.encode(), digest_size=8).hexdigest()
        return f'"{self.tag}-{which}-{encoding}"'

    def headers(self, etag: str, encoding: Encoding, *, scope: str, monotonic: float) -> CIMultiDict[str]:
        """`Age` counts from the newest sample; `scope` begins Cache-Control."""
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
        """The NodeMetric of a node that the watcher knows. Raises ApiError where there is none."""
        body = self.report.objects.get(host)
        if body is not None:
            return body
        why = self.report.missing.get(host, "it came after the last report")
        hint = CAPACITY_HINT if "capacity" in why else "GET /watcher/{host} has what is known of it"
        raise ApiError(404, "no_node_metric", f"there is no NodeMetric of node {shown(host)!r}: {why}", hint)

    def check(self) -> None:
        """Raise ApiError if there is no node with a NodeMetric."""
        if self.report.objects:
            return
        reasons = sorted(set(self.report.missing.values()))
        hint = CAPACITY_HINT if any("capacity" in why for why in reasons) else "GET /watcher has what is known of them"
        message = f"there is no NodeMetric of any node: {'; '.join(reasons)}"
        raise ApiError(404, "no_node_metric", message, hint)
