"""Sockets that other processes find by their path, and other files in their directory."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from agent.qrm.grpc.grpc_server import PluginServer
from agent.qrm.grpc.plugin_api import PluginCallError
from agent.qrm.grpc.plugin_client import PluginInfo, ask_info, notify
from agent.qrm.grpc.socket_server import LONGEST_PATH, CannotServe, SocketServer
from agent.qrm.store.files import StateFile
from tests.agent.qrm.plugins.test_plugins import cpu_plugin
from tests.waiting import eventually

CPU = PluginInfo("ResourcePlugin", "cpu", "", ("v1alpha1",))
run = asyncio.run


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[PluginServer]:
    server = PluginServer(cpu_plugin(), path, StateFile(path.with_name("state")))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def answers(path: Path) -> bool:
    return await ask_info(path) == CPU


async def answers_again(path: Path) -> None:
    await eventually(lambda: answers(path), what="an answer at the path", ignoring=(PluginCallError,))


def test_a_path_that_is_too_long_is_an_error_with_its_length(tmp_path: Path):
    path = tmp_path / ("x" * 107)
    with pytest.raises(CannotServe, match="but the path of this socket can have at most 106: use a shorter directory"):
        run(SocketServer(path, []).start())


def test_the_longest_path_can_be_served(tmp_path: Path):
    path = tmp_path / ("x" * (LONGEST_PATH - len(str(tmp_path)) - 1))

    async def test() -> None:
        async with serving(path):
            assert await answers(path)

    run(test())


def test_a_live_socket_is_not_taken_over(tmp_path: Path):
    async def test() -> None:
        async with serving(tmp_path / "cpu.sock"):
            with pytest.raises(CannotServe, match="another load-watcher serves"):
                await SocketServer(tmp_path / "cpu.sock", []).start()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / "other.sock"))
            other.listen()
            with pytest.raises(CannotServe, match="another process listens on"):
                await SocketServer(tmp_path / "other.sock", []).start()

    run(test())


def test_the_socket_of_a_dead_process_is_removed(tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "cpu.sock"))

    async def test() -> None:
        async with serving(tmp_path / "cpu.sock"):
            assert await answers(tmp_path / "cpu.sock")
            assert (tmp_path / "cpu.sock").stat().st_mode & 0o777 == 0o660

    run(test())


def test_the_error_names_a_directory_at_the_path_of_the_socket(tmp_path: Path):
    (tmp_path / "cpu.sock").mkdir()
    with pytest.raises(CannotServe, match=r"cannot remove .*cpu\.sock: Is a directory"):
        run(SocketServer(tmp_path / "cpu.sock", []).start())


# --- a manager that empties the directory ----------------------------------------------------------------------------


def test_a_removed_plugin_socket_is_served_again_without_its_registration(tmp_path: Path):
    """Katalyst's manager removes all files of its directory when it starts, the lock files too."""
    path = tmp_path / "cpu.sock"

    async def test() -> None:
        async with serving(path) as server:
            await notify(path, "")
            assert server.contact.live
            for each in tmp_path.iterdir():
                each.unlink()
            await answers_again(path)
            assert (server.contact.error, server.contact.live) == (None, False)
            await notify(path, "")
            assert server.contact.live
            with pytest.raises(CannotServe, match="another load-watcher serves"):
                await SocketServer(path, []).start()
        assert not path.exists()

    run(test())


async def connects(path: Path) -> bool:
    _, writer = await asyncio.open_unix_connection(path)
    writer.close()
    return True


def remove(path: Path) -> None:
    path.unlink()


def remove_directory(path: Path) -> None:
    shutil.rmtree(path.parent)


def replace_with_dead_socket(path: Path) -> None:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))


@pytest.mark.parametrize("act", [remove, remove_directory, replace_with_dead_socket])
def test_a_removed_socket_is_served_again(tmp_path: Path, act: Callable[[Path], None]):
    path = tmp_path / "socks" / "cpu.sock"

    async def test() -> None:
        server = SocketServer(path, [], every=0.05)
        await server.start()
        for _ in range(2):
            act(path)
            await eventually(lambda: connects(path), what="a connection", ignoring=(OSError,))
        await server.stop()
        assert not path.exists()

    run(test())


def test_the_socket_of_a_running_process_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "cpu.sock"

    async def test() -> None:
        server = SocketServer(path, [], every=0.05)
        await server.start()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(tmp_path / "new.sock"))
            other.listen()
            (tmp_path / "new.sock").rename(path)
            await eventually(lambda: "another process listens" in caplog.text, what="the report")
            assert await eventually(lambda: connects(path), what="the other process", ignoring=(OSError,))
        await eventually(lambda: caplog.messages[-1] == f"serving {path} again", what="serving again")
        assert await connects(path)
        await server.stop()
        assert caplog.text.count("another process listens") == 1, "reported once, retried at each check"

    with caplog.at_level("INFO"):
        run(test())


def test_the_end_of_a_server_leaves_the_socket_of_another_process(tmp_path: Path):
    path = tmp_path / "cpu.sock"

    async def test() -> None:
        server = SocketServer(path, [])
        await server.start()
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            other.listen()
            await server.stop()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))

    run(test())


class SlowService:
    """A service with one method, whose calls end when `leave` is set."""

    def __init__(self) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(self._call)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("slow", {"Call": handler}),))

    async def _call(self, request: bytes, _context: object) -> bytes:
        self.entered.set()
        await self.leave.wait()
        return request


@asynccontextmanager
async def calling(path: Path, slow: SlowService) -> AsyncIterator[asyncio.Future[bytes]]:
    """A task with a pending call."""
    async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
        method: Any = channel.unary_unary("/slow/Call")
        call = asyncio.ensure_future(method(b"x"))
        await slow.entered.wait()
        yield call


def test_a_call_completes_while_another_process_has_the_path(tmp_path: Path):
    """The socket of the other process stays at its path, also if the first process is killed meanwhile."""
    path = tmp_path / "cpu.sock"

    async def test() -> None:
        slow = SlowService()
        server = SocketServer(path, [slow.add_to])
        await server.start()
        async with calling(path, slow) as call:
            path.unlink()
            with socket.socket(socket.AF_UNIX) as other:
                other.bind(str(path))
                other.listen()
                stopping = asyncio.create_task(server.stop(grace=60.0))
                await asyncio.sleep(0)
                assert await connects(path)
                slow.leave.set()
                assert await call == b"x"
                await stopping
                assert await connects(path)

    run(test())


def test_a_directory_that_is_emptied_while_calls_end_is_served_again(tmp_path: Path):
    path = tmp_path / "socks" / "cpu.sock"

    async def test() -> None:
        slow = SlowService()
        lost = asyncio.Event()
        server = SocketServer(path, [slow.add_to], lost=lost.set, every=0.05)
        await server.start()
        async with calling(path, slow) as call:
            replace_with_dead_socket(path)
            await lost.wait()
            remove_directory(path)
            slow.leave.set()
            assert await call == b"x"
        await eventually(lambda: connects(path), what="a connection", ignoring=(OSError,))
        await server.stop()

    run(test())


def test_a_server_that_is_stopped_while_it_creates_its_socket_leaves_no_file(tmp_path: Path):
    path = tmp_path / "cpu.sock"

    async def test() -> None:
        lost, creating = asyncio.Event(), asyncio.Event()

        def service(_server: grpc.aio.Server) -> None:
            if lost.is_set():
                creating.set()

        server = SocketServer(path, [service], lost=lost.set, every=0.05)
        await server.start()
        path.unlink()
        await creating.wait()
        await server.stop()
        assert [each.name for each in tmp_path.iterdir()] == [".cpu.sock.lock"]
        again = SocketServer(path, [])
        await again.start()
        await again.stop()

    run(test())
