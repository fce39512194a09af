"""Metrics that every process of load-watcher exports (version, memory, CPU time, requests), and helpers for others.

Requests are counted as plain integers: a prometheus_client instrument would cost as much as serving a cached body. Each
service has a separate registry, so two services in one process do not interfere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1.0, 5.0)


class Instruments:
    """The metrics of a process. `cluster` is the name of the cluster, "" if it has none."""

    def __init__(self, *, version: str, cluster: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = _Requests()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Info("load_watcher_build", "Version of load-watcher.", registry=self.registry).info({"version": version})
        if cluster:
            text = "Name of the cluster that this service serves (cluster.name)."
            Info("load_watcher_cluster", text, registry=self.registry).info({"cluster": cluster})
        self.registry.register(self._requests)

    def add(self, collector: Collector) -> None:
        """Export the metrics of another collector."""
        self.registry.register(collector)

    def count_request(self, *, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is a name from the table of routes, never a path."""
        self._requests.count(route, status, seconds)

    def exposition(self) -> bytes:
        """Return the whole page. Takes milliseconds: call it in a thread."""
        return generate_latest(self.registry)


class Timings:
    """A histogram of seconds with plain integer buckets, so that observing is cheap. `labels` are label names; `bounds`
    are upper bounds in seconds, in ascending order."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...], bounds: tuple[float, ...]) -> None:
        self._name, self._text, self._labels, self._bounds = name, text, labels, bounds
        self._buckets: dict[tuple[str, ...], list[int]] = {}
        self._seconds: dict[tuple[str, ...], float] = {}

    def observe(self, seconds: float, *values: str) -> None:
        """Record a duration; `values` are the label values. A negative duration, caused by a clock change, counts as
        0."""
        buckets = self._buckets.get(values)
        if buckets is None:
            self._seconds[values] = 0.0
            buckets = self._buckets[values] = [0] * (len(self._bounds) + 1)
        buckets[bisect_left(self._bounds, seconds)] += 1
        self._seconds[values] += max(0.0, seconds)

    def collect(self) -> Iterator[Family]:
        """Yield the histogram; called by the registry in another thread than `observe`, so the rows are copied."""
        family = HistogramMetricFamily(f"load_watcher_{self._name}", self._text, labels=self._labels)
        bounds = [*map(repr, self._bounds), "+Inf"]
        for values, buckets in list(self._buckets.items()):
            cumulative = list(zip(bounds, accumulate(buckets), strict=True))
            family.add_metric(values, buckets=cumulative, sum_value=self._seconds[values])
        yield family


class _Requests:
    """Number of requests by route and status, and the duration of their handlers by route."""

    def __init__(self) -> None:
        self._count: dict[tuple[str, int], int] = {}
        text = "Duration of request handlers in seconds, without sending the response."
        self._timings = Timings("http_request_duration_seconds", text, ("route",), REQUEST_S)

    def count(self, route: str, status: int, seconds: float) -> None:
        key = (route, status)
        self._count[key] = self._count.get(key, 0) + 1
        self._timings.observe(seconds, route)

    def collect(self) -> Iterator[Family]:
        """Yield the metric families; called by the registry."""
        rows = [({"route": route, "code": str(code)}, count) for (route, code), count in list(self._count.items())]
        yield counter("http_requests", "HTTP requests by route and status code.", rows)
        yield from self._timings.collect()


Rows = Iterable[tuple[Mapping[str, str], float]]


def gauge(name: str, text: str, rows: Rows) -> Family:
    """Create a gauge load_watcher_NAME; `rows` are (labels, value)."""
    return _filled(GaugeMetricFamily(f"load_watcher_{name}", text), rows)


def counter(name: str, text: str, rows: Rows) -> Family:
    """Create a counter load_watcher_NAME_total; `rows` are (labels, value)."""
    return _filled(CounterMetricFamily(f"load_watcher_{name}", text), rows, suffix="_total")


def _filled(family: Family, rows: Rows, *, suffix: str = "") -> Family:
    for labels, value in rows:
        family.add_sample(family.name + suffix, dict(labels), value)
    return family
