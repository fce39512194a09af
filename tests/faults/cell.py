"""The programs of one row: a service with a source, a Kubernetes API, and an extender in a process of its own."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.fakes.kube import FakeKube
from tests.faults import truth
from tests.faults.source import TrueSource
from tests.real.clock import FakedClock
from tests.real.name_server import NameServer, ResolvingService
from tests.service import ExtenderService, Service
from tests.waiting import wait_for

INTERVAL_S = 5.0
MAX_STALENESS_S = 30.0
WINDOW_S = 300.0
SOURCE_NAME = "prometheus.monitoring.svc"
READY_S = 120.0
DISK_MIB = 4
PROFILE = """
[scheduler.default]
plugins = [
  { name = "HighLoadFilter", args = { usageThresholds = { cpu = 85 } } },
  { name = "LoadAwareScheduling" },
]
"""
SETTINGS = f"""
[provider]
name = "Prometheus"
address = "{{address}}"
timeout = "2s"
[refresh]
interval = "{INTERVAL_S:g}s"
resolution = "{truth.STEP_S:g}s"
max_staleness = "{MAX_STALENESS_S:g}s"
[store]
url = "sqlite:///{{database}}"
[kubernetes]
kubeconfig = "{{kubeconfig}}"
"""
OF_EXTENDER = f"""
[refresh]
interval = "{INTERVAL_S:g}s"
max_staleness = "{MAX_STALENESS_S:g}s"
[kubernetes]
kubeconfig = "{{kubeconfig}}"
[extender]
watcher = "{{watcher}}"
"""
POD: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "default", "uid": "uid-of-web"},
    "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]},
}


class Cell:
    """The running programs. With `by_name`, the address of the source is a name of a name server; with `small_disk`,
    the database is on a file system of DISK_MIB."""

    def __init__(self, directory: Path, *, by_name: bool = False, small_disk: bool = False) -> None:
        self.directory = directory
        directory.mkdir(parents=True)
        self._stack = ExitStack()
        self.source = TrueSource()
        self.kube = FakeKube()
        self.names = NameServer(directory, answers=True, options="timeout:5 attempts:2") if by_name else None
        self.clock = FakedClock(directory)
        (directory / "extender-clock").mkdir()
        self.extender_clock = FakedClock(directory / "extender-clock")
        self.disk = directory / "disk"
        self.disk.mkdir()
        self._has_small_disk = small_disk
        self.service: Service
        self.extender: ExtenderService

    def __enter__(self) -> Cell:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def _start(self) -> None:
        if self._has_small_disk:
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(self.disk)]
            subprocess.run(command, check=True, capture_output=True)
            self._stack.callback(subprocess.run, ["umount", "-l", str(self.disk)], check=True)
        self.source.__enter__()
        self.kube.__enter__()
        self._stack.push(lambda *_: self.source.__exit__())
        self._stack.push(lambda *_: self.kube.__exit__())
        for node in truth.NODES:
            self.kube.node(node, cpu="16", memory="64Gi")
        self.kube.put("v1/pods", "default/web", metadata={"uid": POD["metadata"]["uid"]}, spec=POD["spec"])
        kubeconfig = self.kube.kubeconfig(self.directory / "kubeconfig")
        host = SOURCE_NAME if self.names is not None else "127.0.0.1"
        address = f"http://{host}:{self.source.port}"
        config = SETTINGS.format(address=address, database=self.disk / "w.db", kubeconfig=kubeconfig) + PROFILE
        options: dict[str, Any] = {"config": config, "env": self.clock.environment}
        if self.names is not None:
            self._stack.callback(self.names.close)
            self.service = ResolvingService(self.directory / "serve", server=self.names, **options)
        else:
            self.service = Service(self.directory / "serve", **options)
        self._stack.callback(self.service.kill)
        self.service.start()
        config = OF_EXTENDER.format(kubeconfig=kubeconfig, watcher=self.service.url) + PROFILE
        self.extender = ExtenderService(self.directory / "extender", config=config, env=self.extender_clock.environment)
        self._stack.callback(self.extender.kill)
        self.extender.start()
        wait_for(lambda: self.service.get("/readyz").status == 200, what="windows", timeout=READY_S)
        wait_for(self._is_scoring, what="the load of the extender", timeout=READY_S)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _is_scoring(self) -> bool:
        return self.extender.get("/readyz").json()["watcher"]["age_s"] is not None

    def restart(self) -> None:
        """Start the service again after it ended."""
        self.service.launch()
        self.service.wait_ready()
