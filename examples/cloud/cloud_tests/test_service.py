"""The service with Datadog, configured only by the Go load-watcher's environment."""

import os
import time
from pathlib import Path

import pytest

from cloud_tests.fake_datadog import API_KEY, APP_KEY, FakeDatadog
from tests.conftest import RunService
from tests.real.parts import REPOSITORY
from tests.waiting import wait_for

CPU = "instance:node_cpu:ratio"


def environment(server: FakeDatadog) -> dict[str, str]:
    return {
        "METRICS_PROVIDER_NAME": "Datadog",
        "METRICS_PROVIDER_ADDRESS": server.url,
        "METRICS_PROVIDER_TOKEN": API_KEY,
        "METRICS_PROVIDER_APP_KEY": APP_KEY,
        "DATADOG_HOST_NAME_SUFFIX": ".example.com",
        "DATADOG_CLUSTER_NAME": "blue",
    }


def test_windows_are_complete_and_have_real_samples(run_service: RunService, installed: Path):
    """From the first minute on, because Datadog has a history; hosts of other clusters and domains are left out."""
    server = FakeDatadog()
    began = 60 * (time.time() // 60) - 1200
    for host, cluster in (("node-1.example.com", "blue"), ("node-2.example.com", "green"), ("node-3.org", "blue")):
        tags = {"host": host, "cluster_name": cluster, "cluster": cluster}
        for minute in range(30):  # ten of them in the future
            times = [began + 60 * minute + 15 * quarter for quarter in range(4)]
            server.put("cpu.utilization", tags, times, 40.0 + 4.0 * (minute % 2))
    with server:
        service = run_service(
            env=environment(server) | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(installed)])}
        )

        def whole() -> object:
            answer = service.get("/watcher")
            if answer.status != 200:
                return None
            document = answer.json()
            metrics = document["data"]["NodeMetricsMap"]["node-1"]["metrics"]
            rollups = {metric["rollup"] for metric in metrics if metric["name"] == CPU}
            return document if rollups == {"15m"} else None

        document = wait_for(whole, what="a window of 15 minutes")
    assert isinstance(document, dict)
    assert "Datadog" == document["source"]
    assert ["node-1"] == list(document["data"]["NodeMetricsMap"])
    values = {each["operator"]: each["value"] for each in document["data"]["NodeMetricsMap"]["node-1"]["metrics"]}
    assert {"AVG": pytest.approx(42.0, abs=0.5), "STD": pytest.approx(2.0, abs=0.2)} == values
