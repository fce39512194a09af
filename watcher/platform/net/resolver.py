"""Looks up the addresses of host names in daemon threads. Nothing waits for a name server that does not respond: no
request longer than LONGEST_S, and no process that ends. asyncio looks names up in the threads of its executor, for
which a process waits when it ends, and the system asks each name server several times."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import aiohttp.abc

from watcher.core.messages import printable, shorten_names

LONGEST_S = 10.0
SILENT_S = 1.0
"""A name server that takes longer than this is reported as the cause of a timeout."""
HINT = (
    "Check the name servers in /etc/resolv.conf and the way to them; in a pod: CoreDNS, dnsPolicy, and whether a "
    "NetworkPolicy allows port 53 (UDP and TCP)."
)

AddressInfo: TypeAlias = tuple[Any, ...]
_Key: TypeAlias = tuple[str, int, int, int]


class NameServerSilent(OSError):
    """No name server responded within LONGEST_S."""


class _Lookup:
    """A lookup in progress, shared by all that ask for the same name."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.result: Future[Sequence[AddressInfo]] = Future()


_asking: ContextVar[set[str] | None] = ContextVar("hosts of the requests of this context", default=None)
_lookups: dict[_Key, _Lookup] = {}
_guard = threading.Lock()


async def lookup(host: str, port: int, *, family: int = 0, flags: int = 0) -> Sequence[AddressInfo]:
    """The addresses of a host as socket.getaddrinfo returns them for TCP. Raises OSError, NameServerSilent after
    LONGEST_S, and UnicodeError if the host is not a valid name."""
    if (asking := _asking.get()) is not None:
        asking.add(host)
    shared = asyncio.wrap_future(_started((host, port, family, flags)).result)
    shared.add_done_callback(_retrieve)
    try:
        async with asyncio.timeout(LONGEST_S):
            return await asyncio.shield(shared)
    except TimeoutError:
        raise NameServerSilent(unanswered([host]) or f"no name server responded within {LONGEST_S:g} s") from None


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Mark an exception as retrieved: those that waited may have been cancelled."""
    if not done.cancelled():
        done.exception()


@contextmanager
def noting_hosts(into: set[str]) -> Iterator[None]:
    """Add the hosts that are looked up for requests in this context."""
    token = _asking.set(into)
    try:
        yield
    finally:
        _asking.reset(token)


def unanswered(hosts: Collection[str]) -> str:
    """Those of the hosts of a request whose lookup lasts longer than SILENT_S, as a reason of its timeout; ""
    without one. The lookup of another name is not the cause."""
    now = time.monotonic()
    with _guard:
        late = {key[0] for key, each in _lookups.items() if now - each.since > SILENT_S}
    names = sorted(late.intersection(hosts))
    shown = shorten_names([printable(name) for name in names], 3)
    return f"no name server has responded to the lookup of {shown}" if names else ""


def _started(key: _Key) -> _Lookup:
    with _guard:
        if (there := _lookups.get(key)) is not None:
            return there
        new = _lookups[key] = _Lookup()
    threading.Thread(target=_look_up, args=(key, new), name="name-lookup", daemon=True).start()
    return new


def _look_up(key: _Key, into: _Lookup) -> None:
    host, port, family, flags = key
    try:
        found = socket.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)
    except Exception as error:
        _forget(key)
        into.result.set_exception(error)
    else:
        _forget(key)
        into.result.set_result(found)


def _forget(key: _Key) -> None:
    with _guard:
        del _lookups[key]


class ThreadResolver(aiohttp.abc.AbstractResolver):
    """The resolver of aiohttp's connections, with `lookup`."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[aiohttp.abc.ResolveResult]:
        """The addresses of a host as aiohttp expects them. Raises OSError."""
        found = await lookup(host, port, family=family, flags=socket.AI_ADDRCONFIG)
        return [
            aiohttp.abc.ResolveResult(
                hostname=host,
                host=_numeric(address),
                port=address[1],
                family=of,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for of, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Do nothing: the threads end with the process."""


def _numeric(address: Sequence[Any]) -> str:
    """The address as text; a link-local one with its interface (`%eth0`)."""
    if len(address) == 4 and address[3]:
        return socket.getnameinfo(tuple(address), socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
    return str(address[0])
