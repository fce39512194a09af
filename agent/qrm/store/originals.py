"""The values that containers had before an allocation was applied, for `load-watcher qrm restore`.

Only values that differ from the default are stored: without an allocation, a container has no set of CPUs and memory
nodes of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from agent.qrm.manager.allocation import Properties, Value
from agent.qrm.store.files import BadState, StateFile, set_aside

FILE = "original_values"
UNKNOWN = ""
"""Stored for a property whose value was not known."""


class OriginalValues:
    """The values by container id."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._file = StateFile(self.path)
        self._values: dict[str, dict[str, Value]] = {}
        self._lock = asyncio.Lock()

    def read(self, *, replace_damaged: bool = True) -> None:
        """Read the stored values. A damaged file is renamed, or BadState raised. Raises OSError."""
        try:
            document: dict[str, Any] = self._file.read() or {}
        except BadState as error:
            if not replace_damaged:
                raise
            set_aside(self.path, str(error))
            return
        self._values = dict(document.get("containers", {}))

    def of(self, container_id: str) -> Properties:
        """The known values of a container that differ from the default."""
        stored = self._values.get(container_id, {})
        return {name: value for name, value in stored.items() if value != UNKNOWN}

    def missing(self, container_id: str, names: Iterable[str]) -> set[str]:
        """Those of the properties for which nothing is stored."""
        return set(names) - self._values.get(container_id, {}).keys()

    async def record(self, container_id: str, values: Mapping[str, Value]) -> None:
        """Store values of a container, except those that are stored already. Raises OSError."""
        if self.missing(container_id, values):
            self._values[container_id] = {**values, **self._values.get(container_id, {})}
            await self._write()

    def drop(self, container_id: str) -> None:
        """Remove the values of a container that has ended; the next write stores this."""
        self._values.pop(container_id, None)

    async def keep(self, container_ids: Collection[str]) -> None:
        """Remove the values of all other containers, which have ended. Raises OSError."""
        kept = {id: values for id, values in self._values.items() if id in container_ids}
        if kept != self._values:
            self._values = kept
            await self._write()

    async def _write(self) -> None:
        async with self._lock:
            document = {"containers": {id: dict(values) for id, values in self._values.items()}}
            await asyncio.to_thread(self._file.write, document)
