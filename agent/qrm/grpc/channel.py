"""gRPC channels to servers on unix sockets of this machine."""

from __future__ import annotations

from pathlib import Path

import grpc.aio

LONGEST_PAUSE_MS = 1_000

_OPTIONS = (
    # Without this option, channels to the same path share a connection and its backoff: after a restart, a plug-in
    # would not be called for up to two minutes because calls to its predecessor had failed.
    ("grpc.use_local_subchannel_pool", 1),
    # By default, gRPC waits up to two minutes before it reconnects to a restarted container runtime.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", LONGEST_PAUSE_MS),
)


def open_channel(socket: Path) -> grpc.aio.Channel:
    """Open a channel that does not share its connection; after a failure it reconnects within a second."""
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
