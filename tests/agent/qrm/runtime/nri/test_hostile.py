"""A hostile runtime at the socket of NRI: garbage, half frames, 16 MB, unknown methods, wrong streams, floods. The
session keeps little memory, reports the reason, and connects again."""

import asyncio
import struct
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.qrm.runtime.nri.ttrpc import (
    PLUGIN_CONNECTION,
    PLUGIN_SERVICE,
    REQUEST,
    RESPONSE,
    RUNTIME_CONNECTION,
    CallFailed,
    CallRequest,
    NriSession,
    decode_response,
    encode_failure,
    encode_request,
    encode_response,
)
from tests.fakes.nri import PluginSeen, RuntimeSocket, raw
from tests.waiting import eventually

MIB = 1 << 20
LARGEST = (1 << 24) - 1
"""The largest length of a ttrpc message, 16 MB."""


@dataclass
class Attacked:
    """A session with a plug-in that answers Configure, and Synchronize once it is `released`, and the runtime that
    attacks it."""

    runtime: RuntimeSocket
    session: NriSession
    released: asyncio.Event
    failures: list[tuple[str, str]] = field(default_factory=list)

    async def registered(self) -> PluginSeen:
        """The next connection, with its registration done."""
        plugin = await asyncio.to_thread(self.runtime.accept)
        await asyncio.to_thread(plugin.read_until, lambda: bool(plugin.calls), "RegisterPlugin")
        (stream,) = plugin.calls
        await asyncio.to_thread(plugin.send, raw(RUNTIME_CONNECTION, stream, RESPONSE, encode_response(b"")))
        await eventually(lambda: not self.session.trouble, what="the registration")
        return plugin


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="nri-") as directory:
        yield Path(directory, "nri.sock")


@pytest.fixture
async def attacked(socket: Path) -> AsyncIterator[Attacked]:
    async def configure(_: bytes) -> bytes:
        return b"configured"

    async def synchronize(_: bytes) -> bytes:
        await released.wait()
        return b"synchronized"

    released = asyncio.Event()
    failures: list[tuple[str, str]] = []
    with RuntimeSocket(socket) as runtime:
        session = NriSession(
            socket,
            lambda: {"Configure": configure, "Synchronize": synchronize},
            name="load-watcher",
            index="50",
            failed=lambda *what: failures.append(what),
            first_delay=0.001,
        )
        running = asyncio.create_task(session.run())
        yield Attacked(runtime, session, released, failures)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def request(method: str, *, service: str = PLUGIN_SERVICE) -> bytes:
    return encode_request(CallRequest(service, method, b"", 1.0))


def too_long(connection: int, length: int) -> bytes:
    """The header of a frame that promises too much."""
    return struct.pack(">II", connection, length)


FATAL = {
    "garbage": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "bad-frame"),
    "a frame of 4 GB": (too_long(1, 2**32 - 1), "bad-frame"),
    "a message of 4 GB": (struct.pack(">II", 1, 10) + struct.pack(">IIBB", 2**32 - 1, 1, 1, 0), "bad-frame"),
}


@pytest.mark.parametrize("attack", FATAL)
async def test_bytes_that_are_not_frames_end_the_connection_and_the_next_one_works(attacked: Attacked, attack: str):
    sent, kind = FATAL[attack]
    plugin = await attacked.registered()
    await asyncio.to_thread(plugin.send, sent)
    assert await asyncio.to_thread(plugin.is_closed)
    await eventually(lambda: attacked.failures, what="the failure")
    assert attacked.failures[0][0] == kind
    assert str(attacked.runtime.path) in attacked.failures[0][1]
    await _works(await attacked.registered())


@pytest.mark.parametrize("size", [1, 7, 8, 9, 17, 20])
async def test_half_a_frame_and_the_end(attacked: Attacked, size: int):
    plugin = await attacked.registered()
    await asyncio.to_thread(plugin.send, raw(PLUGIN_CONNECTION, 1, REQUEST, request("Configure"))[:size])
    await asyncio.to_thread(plugin.socket.close)
    await eventually(lambda: attacked.failures, what="the failure")
    assert attacked.failures[0][0] == "bad-frame"
    assert "within a frame" in attacked.failures[0][1]
    await _works(await attacked.registered())


async def test_delays_grow_while_each_registration_is_followed_by_invalid_data(attacked: Attacked):
    """The first delay is 1 ms and doubles; the seventh is at least 64 ms."""
    for _ in range(7):
        plugin = await attacked.registered()
        await asyncio.to_thread(plugin.send, too_long(1, 2**32 - 1))
        assert await asyncio.to_thread(plugin.is_closed)
    closed = time.monotonic()
    plugin = await attacked.registered()
    assert time.monotonic() - closed > 0.064
    await _works(plugin)
    assert [kind for kind, _ in attacked.failures] == ["bad-frame"] * 7


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "an unknown method": (lambda: raw(1, 1, REQUEST, request("Reboot")), "Reboot"),
    "an unknown service": (lambda: raw(1, 1, REQUEST, request("Configure", service="x.Y")), "no method Configure"),
    "an even stream": (lambda: raw(1, 2, REQUEST, request("Configure")), "must be odd"),
    "a response instead of a request": (lambda: raw(1, 1, RESPONSE, b""), "type 2 are not supported"),
    "a type of the future": (lambda: raw(1, 1, 9, b""), "type 9 are not supported"),
    "a request that is not a message": (lambda: raw(1, 1, REQUEST, b"\xff\xff\xff"), "not a ttrpc request"),
}


@pytest.mark.parametrize("attack", REFUSED)
async def test_an_invalid_request_gets_an_error_and_the_connection_stays(attacked: Attacked, attack: str):
    made, why = REFUSED[attack]
    plugin = await attacked.registered()
    await asyncio.to_thread(plugin.send, made())
    await asyncio.to_thread(plugin.read_until, lambda: bool(plugin.answers), "the answer")
    (answer,) = plugin.answers.values()
    with pytest.raises(CallFailed, match=why):
        decode_response(answer)
    plugin.answers.clear()
    await _works(plugin)
    assert not attacked.failures


@pytest.mark.parametrize("stream", [1, 2, 99, 2**32 - 1])
async def test_a_response_without_a_request_is_ignored(attacked: Attacked, stream: int):
    plugin = await attacked.registered()
    await asyncio.to_thread(plugin.send, raw(RUNTIME_CONNECTION, stream, RESPONSE, encode_response(b"x")))
    await _works(plugin)
    assert not attacked.failures


async def test_a_refused_registration_is_reported_with_the_message_of_the_runtime(attacked: Attacked):
    plugin = await asyncio.to_thread(attacked.runtime.accept)
    await asyncio.to_thread(plugin.read_until, lambda: bool(plugin.calls), "RegisterPlugin")
    answer = encode_failure(CallFailed(3, "invalid plugin index"))
    await asyncio.to_thread(plugin.send, raw(RUNTIME_CONNECTION, 1, RESPONSE, answer))
    await eventually(lambda: attacked.failures, what="the failure")
    assert attacked.failures[0][0] == "refused"
    assert "invalid plugin index" in attacked.failures[0][1]
    await _works(await attacked.registered())


async def test_a_request_of_16_megabytes_is_refused_in_little_memory(attacked: Attacked):
    plugin = await attacked.registered()
    tracemalloc.start()
    try:
        await asyncio.to_thread(_send_long, plugin, LARGEST)
        await asyncio.to_thread(plugin.read_until, lambda: bool(plugin.answers), "the answer")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with pytest.raises(CallFailed, match="exceeds 4194304 bytes"):
        decode_response(plugin.answers.pop(1))
    assert peak < 3 * MIB
    await _works(plugin)


def _send_long(plugin: PluginSeen, length: int) -> None:
    left = length + 10
    head = struct.pack(">IIBB", length, 1, REQUEST, 0)
    while left:
        piece = min(left, MIB)
        plugin.send(struct.pack(">II", PLUGIN_CONNECTION, piece) + head + bytes(piece - len(head)))
        left, head = left - piece, b""


async def test_a_flood_on_another_connection_is_skipped_in_little_memory(attacked: Attacked):
    plugin = await attacked.registered()
    frame = struct.pack(">II", 77, MIB) + bytes(MIB)
    tracemalloc.start()
    try:
        for _ in range(64):
            await asyncio.to_thread(plugin.send, frame)
        await _works(plugin)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MIB
    assert not attacked.failures


async def test_a_flood_of_requests_is_answered_one_by_one(attacked: Attacked):
    """Each of 5,000 simultaneous requests has a response: its own, or the error for too many requests."""
    plugin = await attacked.registered()
    flood = b"".join(raw(PLUGIN_CONNECTION, stream, REQUEST, request("Configure")) for stream in range(1, 10_001, 2))

    sending = asyncio.create_task(asyncio.to_thread(plugin.send, flood))
    await asyncio.to_thread(plugin.read_until, lambda: len(plugin.answers) == 5000, "the answers")
    await sending
    kinds = {_outcome(answer) for answer in plugin.answers.values()}
    assert kinds <= {b"configured", b"64 requests are being answered"}
    assert b"configured" in kinds
    plugin.answers.clear()
    await _works(plugin)


async def test_requests_beyond_the_maximum_at_the_same_time_are_refused(attacked: Attacked):
    plugin = await attacked.registered()
    frames = [raw(PLUGIN_CONNECTION, stream, REQUEST, request("Synchronize")) for stream in range(1, 131, 2)]
    await asyncio.to_thread(plugin.send, b"".join(frames))
    await asyncio.to_thread(plugin.read_until, lambda: bool(plugin.answers), "an answer")
    assert {stream: _outcome(answer) for stream, answer in plugin.answers.items()} == {
        129: b"64 requests are being answered"
    }
    attacked.released.set()
    await asyncio.to_thread(plugin.read_until, lambda: len(plugin.answers) == 65, "the other answers")
    assert [_outcome(answer) for _, answer in sorted(plugin.answers.items())][:64] == [b"synchronized"] * 64
    await _works(plugin)


def _outcome(answer: bytes) -> bytes:
    try:
        return decode_response(answer)
    except CallFailed as error:
        return str(error).encode()


async def _works(plugin: PluginSeen) -> None:
    """A valid request has an answer."""
    await asyncio.to_thread(plugin.send, raw(PLUGIN_CONNECTION, 20_001, REQUEST, request("Configure")))
    await asyncio.to_thread(plugin.read_until, lambda: 20_001 in plugin.answers, "the answer")
    assert decode_response(plugin.answers[20_001]) == b"configured"
