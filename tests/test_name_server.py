"""A name server that does not respond: what was silent is reported, and no process waits for it when it ends. The
processes have a resolv.conf of their own, in a mount namespace; it names a real UDP socket without responses."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.real.parts import REPOSITORY
from tests.service import Service
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs a mount namespace"),
]

ADDRESS = f"127.53.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"  # other workers run these tests too
NAME = "prometheus.monitoring.svc"
SILENT = f"no name server has responded to the lookup of {NAME}"
SCHEDULER = '[scheduler.p]\nplugins = [{name = "TargetLoadPacking"}]\n'


class NameServer:
    """The socket; `resolv_conf` names it, with waiting times that are longer than a test."""

    def __init__(self, directory: Path) -> None:
        self.resolv_conf = directory / "resolv.conf"
        self.resolv_conf.write_text(f"nameserver {ADDRESS}\noptions timeout:30 attempts:5\n")
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((ADDRESS, 53))
        self._socket.settimeout(PATIENCE_SECONDS)

    def wait_for_query(self) -> None:
        wait_for(lambda: b"prometheus" in self._socket.recv(4096), what=f"a query for {NAME}")

    def close(self) -> None:
        self._socket.close()

    def command(self, *command: str | Path) -> list[str]:
        """The command with this name server; it has the process id of the shell."""
        mount = 'mount --bind "$0" "$(readlink -f /etc/resolv.conf)" && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self.resolv_conf), *map(str, command)]


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServer]:
    server = NameServer(tmp_path)
    yield server
    server.close()


class ResolvingService(Service):
    """A service with that name server."""

    def __init__(self, directory: Path, *arguments: str, server: NameServer, **options: object) -> None:
        super().__init__(directory, *arguments, **options)  # type: ignore[arg-type]
        self._server = server

    def command(self) -> Sequence[str | Path]:
        return self._server.command(*super().command())


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
        name_server.wait_for_query()
        wait_for(lambda: SILENT in service.get("/watcher/health").text, what="the reason")
        assert "overloaded" not in service.log()
        assert "/etc/resolv.conf" in service.log()
    finally:
        assert service.stop() == 0


def test_the_extender_ends_and_reports_the_name_server(name_server: NameServer, tmp_path: Path):
    config = f'[extender]\nwatcher = "http://{NAME}:2020"\n{SCHEDULER}'
    extender = ResolvingExtender(tmp_path / "extender", server=name_server, config=config).start()
    try:
        name_server.wait_for_query()
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
