"""The mode in which the manager last set properties of containers, for `load-watcher qrm restore`."""

from __future__ import annotations

from pathlib import Path

from agent.qrm.store.files import BadState, StateFile

FILE = "last_mode"
_KEY = "mode"


def record_mode(directory: Path, mode: str) -> None:
    """Store the mode. Raises OSError."""
    StateFile(directory / FILE).write({_KEY: mode})


def recorded_mode(directory: Path) -> str | None:
    """The stored mode; None if no manager has set properties. Raises BadState and OSError."""
    document = StateFile(directory / FILE).read()
    if document is None:
        return None
    mode = document.get(_KEY)
    if not isinstance(mode, str):
        raise BadState(f"it has no {_KEY}")
    return mode
