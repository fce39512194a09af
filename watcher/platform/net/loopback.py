"""Who is this very machine.

Pure: no I/O, no clock; a name is not looked up.
"""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, means this machine alone; other names are taken for others."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
