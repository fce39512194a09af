"""Addresses to listen on, and their text with a port."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket

log = logging.getLogger(__name__)

ANY_IPV4 = "0.0.0.0"  # only where the address of all families was chosen


def host_port(host: str, port: int | str) -> str:
    """Return host and port as in a URL: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_any_ipv6(host: str) -> bool:
    """Whether the host is `::`, in any spelling."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return found.version == 6 and found.is_unspecified


def any_address_socket(port: int) -> socket.socket:
    """Return a TCP socket that is bound to `port` on all addresses of IPv6 and IPv4, or of IPv4 on a machine without
    IPv6. Raises OSError."""
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPFNOSUPPORT):
            raise
        log.info("this machine has no IPv6: listening on %s in place of ::", ANY_IPV4)
        return _bound(socket.AF_INET, ANY_IPV4, port)


def _bound(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:  # asyncio sets this option, and net.ipv6.bindv6only is its default
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
