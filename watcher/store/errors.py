"""What the store raises. The messages are for the operator: what is wrong, where, and in `hint` what to do."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do what was asked. `hint` says what the operator can do; the cause is chained."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoreInUse(StoreError):
    """Another process writes this database, or this watcher's part of it; the message names it."""


class StoreUnusable(StoreError):
    """What lies there is damaged, of a newer version, or not ours. Nothing of it was changed."""


class StoreAway(StoreError):
    """The database server cannot be reached now, which may pass by itself."""
