"""The exporters that can run here have the series that the layouts say."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import StartPrometheus
from tests.field.exporters import node_exporter
from tests.field.layout import read_layouts
from tests.field.series import series_of
from tests.real.parts import NodeExporter, Prometheus
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

LABELS = {"job": "node", "instance": "machine:9100"}
SCRAPED_ONLY = {"device", "cpu", "mode"}
"""Labels with other values on this machine."""


@pytest.fixture
def scraping(tmp_path: Path, start_prometheus: StartPrometheus) -> Iterator[Prometheus]:
    """A real Prometheus that scrapes a real node exporter as the layout of virtual machines does."""
    with NodeExporter(tmp_path / "exporter") as exporter:
        target = exporter.url.removeprefix("http://")
        labels = [{"target_label": "instance", "replacement": LABELS["instance"]}]
        job = {"job_name": "node", "scrape_interval": "1s", "relabel_configs": labels,
               "static_configs": [{"targets": [target]}]}  # fmt: skip
        yield start_prometheus(config={"scrape_configs": [job]})


def test_the_node_exporter_has_the_series_of_the_layouts(scraping: Prometheus):
    """The names, and the names of their labels beside those of the target."""
    layout = read_layouts()["node-exporter-on-vms"]
    expected = {}
    for exposed in node_exporter(layout.machines[0], layout, {}):
        expected[exposed.name] = {*exposed.labels, *LABELS, "__name__"}
    wait_for(lambda: scraping.query("node_uname_info"), what="the first scrape")
    found = {name: scraping.query(name) for name in expected}
    assert {name for name, rows in found.items() if not rows} <= {"node_disk_io_time_seconds_total"}
    for name, rows in found.items():
        for row in rows:
            more = row["metric"].keys() - expected[name]
            assert expected[name] <= row["metric"].keys(), name
            assert more <= {"release", "version"}, name


def test_a_layout_of_virtual_machines_is_what_prometheus_stores(scraping: Prometheus):
    """The label sets of the layout's series of one machine, except values that belong to a machine."""
    layout = read_layouts()["node-exporter-on-vms"]
    wait_for(lambda: scraping.query("node_uname_info"), what="the first scrape")
    for series in series_of(layout):
        if series.machine == layout.machines[0].key and series.name.startswith(("node_cpu", "node_memory")):
            fixed = {name: text for name, text in series.labels.items() if name not in SCRAPED_ONLY}
            (names,) = {frozenset(row["metric"]) for row in scraping.query(series.name)}
            assert names == series.labels.keys()
            assert re.fullmatch(r".+:\d+", fixed["instance"])
