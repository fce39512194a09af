"""How we call whoever listens on a unix socket of this machine."""

from __future__ import annotations

from pathlib import Path

import grpc.aio

LONGEST_PAUSE_MS = 1_000

_OPTIONS = (
    # Without this, channels to one path share a connection, and its pauses after failures: a plug-in that came back
    # was not asked who it is for up to two minutes, because of calls to the one before it.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC would wait up to two minutes as well before it looks whether a runtime that was away is there again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", LONGEST_PAUSE_MS),
)


def open_channel(socket: Path) -> grpc.aio.Channel:
    """A connection of its own to a socket; after a failure it is tried again within a second."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
