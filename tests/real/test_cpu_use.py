"""All sources measure the same CPU use of this machine: docs/reference/glossary.md, "CPU use"."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.state.proc_reader import ProcReader
from agent.state.readings import MetricReadings
from tests.conftest import StartPrometheus
from tests.real.parts import NodeExporter
from tests.waiting import wait_for
from watcher.sources.host import HostProvider
from watcher.sources.prometheus.queries import CANDIDATES

pytestmark = pytest.mark.real

SECONDS = 15
POINTS = 4.0
"""Percentage points: the sources read the kernel's counters up to a second apart."""
BUSY = "while True: pass"
WAITING = "import os\nfile = os.open('file', os.O_RDWR | os.O_CREAT)\nwhile True: os.write(file, b'x'); os.fsync(file)"


@pytest.fixture
def load(tmp_path: Path) -> Iterator[None]:
    """A process that computes and one that waits for the disk."""
    children = [subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) for code in (BUSY, WAITING)]
    yield
    for child in children:
        child.kill()
        child.wait()


def agents(reader: ProcReader) -> float | None:
    readings = MetricReadings()
    reader.read(readings, now=time.time(), monotonic=time.monotonic, longest=60.0)
    found = readings.series.get("cpu_total_utilization")
    return None if found is None else found[0].value


def local_providers(seconds: float) -> float:
    """Mean of the samples of the local provider."""

    async def measure() -> float:
        began = time.time()
        provider = HostProvider(node_name="here", resolution=1, max_seconds=60, metrics=["CPU"])
        await provider.start()
        try:
            await asyncio.sleep(seconds)
            (batch,) = (await provider.fetch(began, time.time())).batches
            return float(batch.value.mean())
        finally:
            await provider.close()

    return asyncio.run(measure())


@pytest.mark.usefixtures("load")
def test_all_sources_measure_the_same_use(node_exporter: NodeExporter, start_prometheus: StartPrometheus):
    target = {"targets": [f"127.0.0.1:{node_exporter.port}"]}
    job = {"job_name": "node", "scrape_interval": "1s", "static_configs": [target]}
    prometheus = start_prometheus(config={"scrape_configs": [job]})
    wait_for(lambda: prometheus.query("node_cpu_seconds_total"), what="the first scrape")
    reader = ProcReader("/proc", interfaces=(), cpu_manager_state="/nowhere")
    assert agents(reader) is None
    local = local_providers(SECONDS)
    agent, now = agents(reader), time.time()
    (raw,) = (each for each in CANDIDATES["CPU"] if each.origin == "raw series")
    expression = raw.expression.replace("<label>", "instance").replace("[5m]", f"[{SECONDS}s]")
    (row,) = prometheus.query(expression, time=now)
    exporter = 100.0 * float(row["value"][1])
    assert agent == pytest.approx(exporter, abs=POINTS)
    assert local == pytest.approx(exporter, abs=POINTS)
