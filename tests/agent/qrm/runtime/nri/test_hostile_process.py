"""`load-watcher qrm` as a process with a hostile runtime at its socket of NRI."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    PLUGIN_SERVICE,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    CallFailed,
    CallRequest,
    decode_response,
    encode_request,
    encode_response,
)
from tests.agent.qrm.test_main import RESERVED, Qrm
from tests.fakes.nri import PluginSeen, RuntimeSocket, raw
from tests.real.nri.node import NriNode, nri_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MIB = 1 << 20
MORE_MIB = 48
"""Memory that an attack may take, in MiB: buffers of one message, and what the allocator keeps."""


@pytest.fixture
def node() -> Iterator[NriNode]:
    with nri_node() as made:
        yield made


def request(stream: int, method: str, payload: bytes = b"") -> bytes:
    return raw(PLUGIN_CONNECTION, stream, REQUEST, encode_request(CallRequest(PLUGIN_SERVICE, method, payload, 1.0)))


def registered(runtime: RuntimeSocket) -> PluginSeen:
    """The next connection of the manager, registered, configured and synchronized."""
    plugin = runtime.accept()
    plugin.read_until(lambda: bool(plugin.calls), "RegisterPlugin")
    (stream,) = plugin.calls
    plugin.send(raw(RUNTIME_CONNECTION, stream, RESPONSE, encode_response(b"")))
    plugin.send(request(1, "Configure", pb.ConfigureRequest(runtime_name="hostile").SerializeToString()))
    plugin.send(request(3, "Synchronize"))
    plugin.read_until(lambda: 3 in plugin.answers, "the answer to Synchronize")
    plugin.answers.clear()
    return plugin


def peak(qrm: Qrm) -> float:
    """The largest resident memory of the process so far in MiB."""
    assert qrm.process is not None
    status = Path(f"/proc/{qrm.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def state(qrm: Qrm) -> dict[str, Any]:
    found: dict[str, Any] = qrm.state()["nri"]
    return found


def send_16_megabytes(plugin: PluginSeen) -> None:
    length = (1 << 24) - 1
    head = struct.pack(">IIBB", length, 5, REQUEST, 0)
    left = length + len(head)
    while left:
        piece = min(left, MIB)
        plugin.send(struct.pack(">II", PLUGIN_CONNECTION, piece) + head + bytes(piece - len(head)))
        left, head = left - piece, b""


def send_containers(plugin: PluginSeen) -> None:
    """Parts of a synchronization without end, 192 MiB together."""
    pod = pb.PodSandbox(id="a", annotations={"example.org/long": "x" * 3 * MIB})
    payload = pb.SynchronizeRequest(pods=[pod], more=True).SerializeToString()
    for number in range(64):
        plugin.send(request(101 + 2 * number, "Synchronize", payload))
    plugin.read_until(lambda: len(plugin.answers) == 64, "the answers")


REFUSED: dict[str, tuple[Callable[[PluginSeen], None], str]] = {
    "an unknown method": (lambda plugin: plugin.send(request(5, "Reboot")), "has no method Reboot"),
    "a request that is not a message": (
        lambda plugin: plugin.send(raw(1, 5, REQUEST, b"\xff\xff")),
        "not a ttrpc request",
    ),
    "a message of 16 MB": (send_16_megabytes, "exceeds 4194304 bytes"),
}


def test_wrong_requests_get_errors_in_bounded_memory(node: NriNode):
    with RuntimeSocket(node.nri_socket) as runtime, node.manage(RESERVED) as qrm:
        plugin = registered(runtime)
        before = peak(qrm)
        for attack, why in REFUSED.values():
            attack(plugin)
            plugin.read_until(lambda: bool(plugin.answers), "the answer")
            with pytest.raises(CallFailed, match=why):
                decode_response(plugin.answers.pop(5))
        plugin.send(request(7, "Configure"))
        plugin.read_until(lambda: 7 in plugin.answers, "the answer to a valid request")
        assert peak(qrm) - before < MORE_MIB
        assert state(qrm)["connected"]


def test_a_synchronization_without_end_takes_bounded_memory(node: NriNode):
    """The parts are not kept beyond the limit of containers."""
    with RuntimeSocket(node.nri_socket) as runtime, node.manage(RESERVED) as qrm:
        plugin = registered(runtime)
        before = peak(qrm)
        send_containers(plugin)
        assert peak(qrm) - before < MORE_MIB
        assert state(qrm)["connected"]


FATAL: dict[str, tuple[bytes, str]] = {
    "garbage": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "a frame of"),
    "half a frame": (request(5, "Configure")[:20], "within a frame"),
}


@pytest.mark.parametrize("attack", FATAL)
def test_invalid_data_is_logged_once_and_the_manager_registers_again(node: NriNode, attack: str):
    sent, why = FATAL[attack]
    with RuntimeSocket(node.nri_socket) as runtime, node.manage(RESERVED) as qrm:
        for times in (1, 2):
            plugin = registered(runtime)
            plugin.send(sent)
            plugin.socket.close()

            def counted(times: int = times) -> bool:
                return bool(state(qrm)["failures"].get("bad-frame") == times)

            wait_for(counted, what="the failure to be counted")
        registered(runtime)
        (finding,) = state(qrm)["findings"]
        assert (finding["kind"], finding["times"]) == ("bad-frame", 2)
        assert why in finding["message"]
        assert qrm.metric('qrm_nri_failures_total{kind="bad-frame"}') == 2
        assert qrm.log().count("invalid data") == 1
        wait_for(lambda: state(qrm)["connected"], what="the next registration")


def test_a_runtime_that_closes_in_the_middle_of_a_request(node: NriNode):
    """The answer is discarded; the pod of the request is not in the way of the next connection."""
    with RuntimeSocket(node.nri_socket) as runtime, node.manage(RESERVED) as qrm:
        plugin = registered(runtime)
        pod = pb.PodSandbox(id="a", uid="a", name="a", namespace="default")
        container = pb.Container(id="b", pod_sandbox_id="a", name="b")
        create = pb.CreateContainerRequest(pod=pod, container=container).SerializeToString()
        plugin.send(request(5, "CreateContainer", create))
        plugin.socket.close()
        plugin = registered(runtime)
        plugin.send(request(5, "CreateContainer", create))
        plugin.read_until(lambda: 5 in plugin.answers, "the answer")
        assert not decode_response(plugin.answers[5])
        assert state(qrm)["connected"]
