"""Checks that a request does not come from a page of another site in a browser.

A page can make the browser of its visitor send requests to addresses that only the visitor reaches, such as
127.0.0.1. For requests that change state, the browser names the page's origin (Origin, Sec-Fetch-Site), and asks the
server first unless the body has one of the three types of HTML forms, which no route accepts (routing.py). A page whose
host name resolves to a loopback address ("DNS rebinding") is of the same origin for the browser; only the Host header
shows the name. Programs other than browsers send neither Origin nor Sec-Fetch-Site.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from aiohttp import hdrs

from watcher.platform.net.loopback import is_loopback

SEC_FETCH_SITE = "Sec-Fetch-Site"
SAME_SITE = ("same-origin", "none")  # none: the user, for example through the address bar


def foreign_origin(headers: Mapping[str, str]) -> str:
    """The origin of a request from a browser, if it is not the service itself; otherwise ""."""
    site, origin = headers.get(SEC_FETCH_SITE), headers.get(hdrs.ORIGIN)
    if site is not None:
        return "" if site in SAME_SITE else origin or site
    if origin is None:
        return ""
    try:
        own = urlsplit(origin).netloc == headers.get(hdrs.HOST)
    except ValueError:  # malformed, for example "http://["
        own = False
    return "" if own else origin or "null"


class LocalHosts:
    """The values of the Host header for a server that listens only on a loopback address: IP addresses, which cannot be
    rebound, localhost, the listen address, and additional `names`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}
        self._seen: set[str] = set()  # valid values with their ports

    def accept(self, host: str | None) -> bool:
        """Whether the value is one of these. Requests without one are not from a browser."""
        if host is None or host in self._seen:
            return True
        name = host_name(host)
        if not (name in self._names or name.endswith(".localhost") or is_address(name)):
            return False
        if len(self._seen) < 100:
            self._seen.add(host)
        return True


def local_hosts(listen: str, names: Iterable[str] = ()) -> LocalHosts | None:
    """The accepted hosts of a server that listens on `listen`; None (all) unless this is a loopback address."""
    return LocalHosts((listen, *names)) if is_loopback(listen) else None


def host_name(host: str) -> str:
    """The name or address of a Host header, without port and brackets, in lower case."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
