"""Loopback addresses.

Pure: no I/O, no clock; names are not resolved.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address or the name localhost; all other names are not loopback. A server on
    `::` has IPv4 clients with mapped addresses (::ffff:127.0.0.1)."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def reachable_host(listen: str) -> str:
    """Return an address of this machine at which a server that listens on `listen` can be reached. A server on `::`
    serves IPv4 as well, and every machine has 127.0.0.1."""
    try:
        unspecified = not listen or ipaddress.ip_address(listen).is_unspecified
    except ValueError:
        unspecified = False
    return "127.0.0.1" if unspecified else listen
