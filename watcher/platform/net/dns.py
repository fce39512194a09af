"""A name that stands for several servers, as that of a headless Service does, and asking one of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager

import aiohttp
from aiohttp import hdrs
from yarl import URL


async def addresses_of(url: URL) -> Collection[str]:
    """All addresses of the name in a URL, each once, in the resolver's order. OSError if there is none, UnicodeError
    for what can be no name at all."""
    assert url.host is not None
    found = await asyncio.get_running_loop().getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    return dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)


def get_from(
    session: aiohttp.ClientSession, target: URL, *, of: URL, headers: Mapping[str, str] = {}
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """GET of `target`, a URL with an address in it, as if by the name in `of`: that is the host which is asked for, and
    whom its certificate must be for. Redirects are not followed: whoever is there may not send us elsewhere."""
    headers = {hdrs.HOST: of.raw_authority, **headers}
    return session.get(target, headers=headers, server_hostname=of.raw_host, allow_redirects=False)
