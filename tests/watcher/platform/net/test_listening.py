"""A server on `::` serves both families, over real sockets."""

from __future__ import annotations

import errno
import socket
from typing import Any

import aiohttp
import pytest

from tests.fakes.service import Protection
from tests.watcher.platform.http.test_connections import ROUTES
from watcher.platform.http.routing import Router
from watcher.platform.http.runner import Runner, application
from watcher.platform.net.listening import any_address_socket, host_port
from watcher.platform.net.loopback import is_loopback, reachable_host
from watcher.platform.telemetry.instruments import Instruments


async def answers(listen: str, *hosts: str) -> dict[str, bool]:
    """Whether a server that listens on `listen` answers at each of `hosts`."""
    runner = Runner(application(Router(ROUTES, protection=Protection(), meter=Instruments(version="0"))))
    await runner.setup()
    try:
        await runner.listen(listen, 0)
        port = runner.addresses[0][1]
        found = {}
        async with aiohttp.ClientSession() as session:
            for host in hosts:
                try:
                    async with session.post(f"http://{host_port(host, port)}/take", json={}) as response:
                        found[host] = response.status == 200
                except aiohttp.ClientConnectorError:
                    found[host] = False
        return found
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("listen", ["::", "0:0::0"])
async def test_a_server_on_all_ipv6_addresses_serves_ipv4_too(listen: str) -> None:
    assert await answers(listen, "::1", "127.0.0.1") == {"::1": True, "127.0.0.1": True}


async def test_an_address_serves_only_its_own_family() -> None:
    assert await answers("0.0.0.0", "::1", "127.0.0.1") == {"::1": False, "127.0.0.1": True}
    assert await answers("::1", "::1", "127.0.0.1") == {"::1": True, "127.0.0.1": False}


@pytest.mark.parametrize("code", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
async def test_without_ipv6_the_addresses_of_ipv4_are_served(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A kernel that was started with ipv6.disable=1 has no such sockets."""
    real = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *arguments: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(code, "no IPv6")
        return real(family, *arguments, **options)

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with any_address_socket(0) as found:
        assert (found.family, found.getsockname()[0]) == (socket.AF_INET, "0.0.0.0")


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_a_port_of_another_program_is_an_error(taken: str) -> None:
    family = socket.AF_INET6 if ":" in taken else socket.AF_INET
    with socket.create_server((taken, 0), family=family) as other, pytest.raises(OSError, match="in use"):
        any_address_socket(other.getsockname()[1]).close()


@pytest.mark.parametrize(
    ("host", "text"), [("::1", "[::1]:80"), ("fd00::a", "[fd00::a]:80"), ("10.0.0.1", "10.0.0.1:80"), ("a", "a:80")]
)
def test_an_ipv6_address_is_in_brackets(host: str, text: str) -> None:
    assert host_port(host, 80) == text


@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("0::0", "127.0.0.1"),
        ("::1", "::1"),
        ("fd00::1", "fd00::1"),
        ("example.org", "example.org"),
    ],
)
def test_a_server_on_all_addresses_is_reached_by_ipv4(listen: str, reached: str) -> None:
    assert reachable_host(listen) == reached


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("localhost", True),
        ("::", False),
        ("fd00::1", False),
    ],
)
def test_a_client_of_this_machine_is_recognized_in_both_families(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
