"""A name that stands for several servers, as that of a headless Service does."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection

from yarl import URL


async def addresses_of(url: URL) -> Collection[str]:
    """All addresses of the name in a URL, each once, in the resolver's order. OSError if there is none, UnicodeError
    for what can be no name at all."""
    assert url.host is not None
    found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)
