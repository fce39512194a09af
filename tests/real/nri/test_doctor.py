"""`load-watcher doctor` on a node with a running `load-watcher qrm` in mode nri."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    PLUGIN_SERVICE,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    CallRequest,
    Message,
    encode,
    encode_request,
    encode_response,
)
from tests.agent.qrm.test_main import RESERVED, Qrm
from tests.doctor import Reported, doctor
from tests.fakes.nri import RuntimeSocket
from tests.real.nri.node import NriNode, nri_node, wait_until_connected
from tests.waiting import wait_for

pytestmark = [pytest.mark.real, pytest.mark.slow]

DEADLOCK = "13733"
"""The issue of containerd that NRI 0.12.1 fixes."""


@pytest.fixture
def node() -> Iterator[NriNode]:
    with nri_node() as made:
        yield made


def reported(port: int, config: Path, **settings: object) -> Reported:
    given = {"mode": "nri", "port": port, "runtime_config": config, **settings}
    return doctor("--only", "qrm", *(text for key, value in given.items() for text in ("--set", f"qrm.{key}={value}")))


def test_the_runtime_of_a_running_manager_is_reported(node: NriNode):
    """The runtime's name and version are from its registration; the doctor does not connect to the socket."""
    config = node.directory / "config.toml"
    config.write_text("version = 3\n")
    uid = "00000001-0000-4000-8000-000000000000"
    with node.runtime() as runtime, node.manage(RESERVED) as qrm:
        runtime.wait_for_plugin()
        wait_until_connected(qrm)
        facts = qrm.state()["nri"]["runtime"]
        found = reported(qrm.port, config, nri_socket="/nowhere/nri.sock")
        registered = f"registered with {facts['name']} {facts['version']}, NRI {facts['nri']}"
        found.one("qrm", "ok", "the plug-in 50-load-watcher is", registered)
        assert not found.of("qrm", "warn", "fail")
        assert not node.create(runtime, "default/unknown", uid).cpus
        line = reported(qrm.port, config).one(
            "qrm", "warn", "1 container started without allocations", "default/unknown"
        )
        assert f"{qrm.url}/qrm" in line.cure
        runtime.kill()
        wait_for(lambda: qrm.metric("qrm_nri_connected") == 0, what="the loss of the connection")
        reported(qrm.port, config).one("qrm", "fail", "containers start without allocations", str(node.nri_socket))


def test_a_manager_in_another_mode_is_reported(node: NriNode):
    with node.run(mode="dry-run") as qrm:
        wait_for(lambda: not qrm.state()["last_reconcile"]["trouble"], what="a round after the first list of pods")
        reported(qrm.port, node.directory / "none").one("qrm", "warn", "runs in mode dry-run, not in mode nri")
        reported(qrm.port, node.directory / "none", mode="cri").one("qrm", "skipped", "the mode is dry-run")


def test_the_mode_of_the_running_manager_counts(node: NriNode):
    """deploy/components/qrm-nri sets the mode by an argument, so that the settings file in the pod has dry-run."""
    with node.runtime() as runtime, node.manage(RESERVED, 'on_failure = "refuse"') as qrm:
        runtime.wait_for_plugin()
        wait_until_connected(qrm)
        found = reported(qrm.port, node.directory / "none", mode="dry-run")
        found.one("qrm", "ok", "the plug-in 50-load-watcher is registered")
        found.one("qrm", "warn", "unknown whether a refusal works while the manager does not run")


@contextmanager
def registration(name: str, version: str, nri: str) -> Iterator[Qrm]:
    """A manager that is registered with a runtime of this name and version."""
    configure = pb.ConfigureRequest(runtime_name=name, runtime_version=version, NRI_version=nri)
    with (
        nri_node() as node,
        RuntimeSocket(node.nri_socket) as socket,
        node.manage(RESERVED, 'on_failure = "refuse"') as qrm,
    ):
        seen = socket.accept()
        seen.read_until(lambda: 1 in seen.calls, "its registration")
        seen.send(encode(Message(RUNTIME_CONNECTION, 1, RESPONSE, encode_response(b""))))
        for stream, (method, message) in enumerate(
            (("Configure", configure), ("Synchronize", pb.SynchronizeRequest()))
        ):
            request = CallRequest(PLUGIN_SERVICE, method, message.SerializeToString())
            seen.send(encode(Message(PLUGIN_CONNECTION, 2 * stream + 1, REQUEST, encode_request(request))))
            seen.read_until(lambda stream=stream: 2 * stream + 1 in seen.answers, method)  # type: ignore[misc]
        yield qrm


@pytest.fixture(scope="module")
def registered() -> Iterator[dict[str, Any]]:
    """The state of a manager that is registered with a runtime."""
    with registration("containerd", "2.4.2", "v0.12.3") as qrm:
        state = qrm.state()
        assert state["nri"]["runtime"] == {"name": "containerd", "version": "2.4.2", "nri": "v0.12.3"}
        assert DEADLOCK not in qrm.log()
        yield state


@contextmanager
def served(state: dict[str, Any]) -> Iterator[int]:
    """A server with this state at /qrm; its port."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(state).encode()
            self.send_response(200 if self.path == "/qrm" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_manager_that_sets_nothing_or_does_not_admit_a_pod(registered: dict[str, Any], tmp_path: Path):
    """In all modes."""
    refused = {"pod": "shop/db", "uid": "1", "role": "db", "reason": "x", "message": "no CPUs"}
    rounds = registered["last_reconcile"] | {"trouble": "the kubelet of this node sets cpusets itself"}
    for state in (registered, registered | {"mode": "cri", "nri": None}):
        with served(state | {"last_reconcile": rounds, "inadmissible": [refused]}) as port:
            found = reported(port, tmp_path / "none", mode=state["mode"])
        found.one("qrm", "fail", "allocations are not applied", "sets cpusets itself")
        found.one("qrm", "warn", "1 pod cannot be admitted, such as shop/db: no CPUs")


@pytest.mark.parametrize(
    ("name", "version", "status", "words"),
    [
        ("containerd", "v2.1.4", "fail", ("containerd v2.1.4 has no default validator", "use containerd 2.2 or newer")),
        ("containerd", "2.4.2", "ok", ("a refusal works", "NRI v0.12.3 starts one container when it drops a manager")),
        ("cri-o", "1.34.0", "fail", ("CRI-O 1.34.0 has no default validator", "newer than 1.34.0")),
        ("cri-o", "1.36.1", "ok", ("a refusal works: CRI-O requires the plug-in load-watcher",)),
    ],
)
def test_whether_a_refusal_works_with_this_version_is_reported(
    registered: dict[str, Any], tmp_path: Path, name: str, version: str, status: str, words: tuple[str, ...]
):
    """containerd before 2.2 and CRI-O 1.34.0 ignore the settings of the validator."""
    config = tmp_path / "config.toml"
    tolerated = "tolerate-missing-nri-plugins.noderesource.dev"
    if name == "containerd":
        lines = 'enable = true, required_plugins = ["load-watcher"]'
        table, prefix = '[plugins."io.containerd.nri.v1.nri"]', ""
    else:
        lines = 'nri_enable_default_validator = true, nri_validator_required_plugins = ["load-watcher"]'
        table, prefix = "[crio.nri]", "nri_validator_"
    config.write_text(
        f'{table}\ndefault_validator = {{ {lines}, {prefix}tolerate_missing_plugins_annotation = "{tolerated}" }}\n'
    )
    runtime = {**registered["nri"]["runtime"], "name": name, "version": version}
    with served({**registered, "nri": {**registered["nri"], "runtime": runtime}}) as port:
        found = reported(port, config, on_failure="refuse")
        found.one("qrm", "ok", f"registered with {name} {version}, NRI v0.12.3")
        found.one("qrm", status, *words)
        assert not found.of("qrm", "warn")


@pytest.mark.parametrize(
    ("name", "version", "nri", "warned"),
    [
        ("containerd", "v2.3.7", "v0.12.0", True),
        ("containerd", "v2.1.9", "", True),
        ("containerd", "v2.4.0", "v0.12.3", False),
        ("cri-o", "1.36.1", "v0.11.0", True),
    ],
)
def test_whether_this_version_can_deadlock_is_reported(
    registered: dict[str, Any], tmp_path: Path, name: str, version: str, nri: str, warned: bool
):
    runtime = {"name": name, "version": version, "nri": nri}
    with served({**registered, "nri": {**registered["nri"], "runtime": runtime}}) as port:
        found = reported(port, tmp_path / "none")
    assert any(DEADLOCK in str(each) for each in found.of("qrm", "warn")) == warned


def test_a_version_that_can_deadlock_is_in_the_log_and_in_the_state(tmp_path: Path):
    with registration("containerd", "v2.3.7", "v0.12.0") as qrm:
        assert any(DEADLOCK in str(each) for each in reported(qrm.port, tmp_path / "none").of("qrm", "warn"))
        assert DEADLOCK in qrm.log()
