"""Errors of the store. Messages are for the operator: the problem, its location, and in `hint` a way to fix it."""

from __future__ import annotations


class StoreError(Exception):
    """An operation of the store failed. `hint` describes what the operator can do; the cause is chained."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class StoreInUse(StoreError):
    """Another process, named in the message, writes this database or this watcher's rows."""


class StoreUnusable(StoreError):
    """The database is damaged, from a newer version, or belongs to another program. It was not changed."""


class StoreUnreachable(StoreError):
    """The database server cannot be reached now; a later attempt may succeed."""
