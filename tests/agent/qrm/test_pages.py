"""The pages of a process whose plug-ins no manager uses."""

import asyncio
import json
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from agent.qrm.grpc.contact import SILENT_S
from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.pages import QrmComponents, QrmPages
from agent.qrm.settings import QrmSettings
from agent.qrm.store.files import StateFile
from agent.qrm.telemetry import QrmMetrics
from tests.agent.qrm.plugins.test_plugins import cpu_plugin
from watcher.platform.telemetry.instruments import Instruments


def test_the_pages_of_the_mode_server_without_a_manager(tmp_path: Path):
    now = 0.0
    server = PluginServer(
        cpu_plugin(), tmp_path / "cpu.sock", StateFile(tmp_path / "state"), external=True, monotonic=lambda: now
    )
    metrics, telemetry = QrmMetrics(), Instruments(version="1", cluster="")
    metrics.contacts = {"cpu": server.contact}
    telemetry.add(metrics)
    pages = QrmPages(QrmComponents(QrmSettings(mode="server"), metrics, {"cpu": server}), telemetry)

    def page(handler: Any) -> Any:
        return json.loads(asyncio.run(handler(None, ())).body)

    def silence() -> str:
        metrics.gather()
        lines = generate_latest(telemetry.registry).decode().splitlines()
        return next(line for line in lines if line.startswith("load_watcher_qrm_manager_silent_seconds{"))

    assert page(pages.health) == {"status": "ok", "unused": {}}
    server.contact.registered("")
    assert page(pages.state)["plugins"]["cpu"]["live"] is True
    now = SILENT_S
    assert page(pages.health) == {"status": "ok", "unused": {"cpu": SILENT_S}}
    plugin = page(pages.state)["plugins"]["cpu"]
    assert (plugin["live"], plugin["silent_s"], plugin["refused"]) == (False, SILENT_S, "")
    assert silence() == 'load_watcher_qrm_manager_silent_seconds{resource="cpu"} 180.0'
    server.contact.called()
    assert page(pages.health) == {"status": "ok", "unused": {}}
