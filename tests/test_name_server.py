"""A name server that does not respond: it is reported, and no process waits for it at its end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.name_server import NAMESPACES, NameServer, ResolvingService
from tests.real.parts import REPOSITORY
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NAMESPACES, reason="needs a mount namespace"),
]

NAME = "prometheus.monitoring.svc"
SILENT = f"no name server has responded to the lookup of {NAME}"
SCHEDULER = '[scheduler.p]\nplugins = [{name = "TargetLoadPacking"}]\n'


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServer]:
    server = NameServer(tmp_path)
    yield server
    server.close()


class ResolvingExtender(ResolvingService):
    verb = "extender"


PROMETHEUS = f'[provider]\nname = "Prometheus"\naddress = "http://{NAME}:9090"\ntimeout = "2s"\n'
INFLUXDB = (
    f'[provider]\nname = "InfluxDB"\naddress = "http://{NAME}:8086"\ntimeout = "2s"\ndialect = "flux"\nbucket = "b"\n'
    'org = "o"\ntoken = "t"\n'
)


@pytest.mark.parametrize("provider", [PROMETHEUS, INFLUXDB], ids=["Prometheus", "Flux"])
def test_the_service_ends_and_reports_the_name_server(provider: str, name_server: NameServer, tmp_path: Path):
    config = provider + '[refresh]\ninterval = "5s"\n'
    service = ResolvingService(tmp_path / "serve", server=name_server, config=config).start()
    try:
        name_server.wait_for_query(b"prometheus")
        wait_for(lambda: SILENT in service.get("/watcher/health").text, what="the reason")
        assert "overloaded" not in service.log()
        assert "/etc/resolv.conf" in service.log()
    finally:
        assert service.stop() == 0


def test_the_extender_ends_and_reports_the_name_server(name_server: NameServer, tmp_path: Path):
    config = f'[extender]\nwatcher = "http://{NAME}:2020"\n{SCHEDULER}'
    extender = ResolvingExtender(tmp_path / "extender", server=name_server, config=config).start()
    try:
        name_server.wait_for_query(b"prometheus")
        wait_for(lambda: SILENT in extender.log(), what="the reason")
    finally:
        assert extender.stop() == 0


def test_a_command_ends_and_reports_the_name_server(name_server: NameServer, tmp_path: Path):
    command = [sys.executable, "-m", "load_watcher", "why", "shop/web", "--url", f"http://{NAME}:2020"]
    done = subprocess.run(
        name_server.command(*command),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 2
    assert SILENT in " ".join(done.stderr.split())
