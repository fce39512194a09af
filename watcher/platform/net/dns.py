"""Resolves a host name to all of its addresses, as for a headless Service, and sends requests to one of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager

import aiohttp
from aiohttp import hdrs
from yarl import URL

from watcher.platform.net.resolver import lookup


async def addresses_of(url: URL) -> Collection[str]:
    """Return all addresses of the host in a URL, each once, in the resolver's order. Raises OSError if there is none,
    UnicodeError if the host is not a valid name."""
    assert url.host is not None
    found = await lookup(url.host, url.port or 0)
    return dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found)


def get_from(
    session: aiohttp.ClientSession, target: URL, *, of: URL, headers: Mapping[str, str] = {}
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    """Send a GET request to `target`, a URL with an address, using the name in `of` for the Host header and for the
    check of the certificate. Redirects are not followed."""
    headers = {hdrs.HOST: of.raw_authority, **headers}
    return session.get(target, headers=headers, server_hostname=of.raw_host, allow_redirects=False)
