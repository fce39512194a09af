"""Values of the watcher's documents."""

from __future__ import annotations

from watcher.client.errors import WatcherError
from watcher.model import Operator


def operator_of(name: str) -> Operator:
    """The operator with this name. Raises WatcherError for an unknown operator."""
    try:
        return Operator(name)
    except ValueError:
        raise WatcherError(
            "malformed", f"unknown operator {name[:40]!r}", hint="check whether the watcher is newer"
        ) from None
