"""The suite of faults (conformance.py) for the providers of this project."""

import json
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.fakes.influxdb import NOTHING, answered, csv, series, table
from tests.fakes.prometheus import Asked, Script, matrix, responded, until_hung_up, vector
from tests.fetches import sections
from tests.watcher.sources.conformance import *  # noqa: F403  # the tests
from tests.watcher.sources.conformance import NOW, SECRET, Kind, Sample, idle, milliseconds, options, rfc3339
from watcher.platform.kube.credentials import KubeAccess
from watcher.sources.base import Provider
from watcher.sources.influxdb.provider import InfluxProvider
from watcher.sources.metrics_server.provider import MetricsServerProvider
from watcher.sources.prometheus.provider import PrometheusProvider

pytestmark = pytest.mark.slow  # 300 servers


def of_prometheus(asked: Asked, samples: Sequence[Sample]) -> bytes:
    if asked.query.startswith("count"):
        labels = [{"node": node, "instance": f"{number}:9100"} for number, (node, _, _) in enumerate(samples)]
        return vector(*labels)
    return matrix(*(({"node": node}, [(at, _ratio(value))]) for node, at, value in samples))


def _ratio(value: Any) -> Any:
    return str(value / 100) if type(value) in (int, float) else value


def of_influxql(asked: Asked, samples: Sequence[Sample]) -> bytes:
    lines = [
        series({"host": node, "rack": str(number)}, ["usage_idle"], [milliseconds(at), idle(value)])
        for number, (node, at, value) in enumerate(samples)
    ]
    return answered(b"".join(lines) or NOTHING)


def of_flux(asked: Asked, samples: Sequence[Sample]) -> bytes:
    tables = [
        table(
            number,
            {"host": node, "rack": str(number)},
            "usage_idle",
            (rfc3339(at), "" if value is None else idle(value)),
        )
        for number, (node, at, value) in enumerate(samples)
    ]
    return answered(csv(("host", "rack"), *tables) if tables else b"\r\n")


def of_metrics_server(asked: Asked, samples: Sequence[Sample]) -> bytes | Script:
    if asked.path == "/api/v1/nodes":
        if "watch" in asked.parameters:
            return until_hung_up
        nodes = [{"metadata": {"name": name}, "status": {"capacity": {"cpu": "100"}}} for name in ("a", "b")]
        return responded(json.dumps({"kind": "NodeList", "metadata": {"resourceVersion": "7"}, "items": nodes}))
    items = [
        {
            "metadata": {"name": node},
            "timestamp": rfc3339(at),
            "window": "15s",
            "usage": {"cpu": str(value) if type(value) in (int, float) else value},
        }
        for node, at, value in samples
    ]
    return responded(json.dumps({"kind": "NodeMetricsList", "metadata": {}, "items": items}))


def make_prometheus(*given: Any) -> Provider:
    return PrometheusProvider(*sections(**options(*given)))


def make_influxql(*given: Any) -> Provider:
    return InfluxProvider(*sections(**options(*given), dialect="influxql"))


def make_flux(*given: Any) -> Provider:
    return InfluxProvider(*sections(**options(*given), dialect="flux", bucket="b", org="o"))


def make_metrics_server(address: str, timeout: float, _: Any) -> Provider:
    tls = ssl.create_default_context() if address.startswith("https:") else None
    access = partial(KubeAccess, address, "a test", tls=tls, token=SECRET)
    return MetricsServerProvider(
        access, resolution=0.05, max_seconds=900.0, keys=("CPU",), timeout=timeout, clock=lambda: NOW
    )


KINDS = {
    "prometheus": Kind(make_prometheus, of_prometheus),
    "influxql": Kind(make_influxql, of_influxql),
    "flux": Kind(make_flux, of_flux, empty_body_is_valid=True),
    "metrics-server": Kind(make_metrics_server, of_metrics_server, bounded=False),
}

pytestmark = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
