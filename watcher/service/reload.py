"""Reloads of the settings of a running process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from watcher.core.config.problems import SettingsError
from watcher.core.config.settings import Settings
from watcher.platform.reloaded_files import FileReloader
from watcher.sources.errors import ProviderError

log = logging.getLogger(__name__)


class SettingsReloader:
    """Reads the settings, and the files of the server, again on request, one reload after the other. `apply` puts
    settings into effect; it raises SettingsError or ProviderError if it cannot, and changes nothing then."""

    def __init__(self, files: FileReloader, apply: Callable[[Settings], Awaitable[None]]) -> None:
        self._files = files
        self._apply = apply
        self._task: asyncio.Task[None] | None = None
        self._wanted: Callable[[], Settings] | None = None

    def request(self, read: Callable[[], Settings]) -> None:
        """Reload the settings: now, or again after a reload in progress, which may have read the earlier settings."""
        self._wanted = read
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._reload_while_wanted(), name="reload")

    async def close(self) -> None:
        """Cancel a reload in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _reload_while_wanted(self) -> None:
        while (read := self._wanted) is not None:
            self._wanted = None
            await self._files.check()
            try:
                await self._apply(await asyncio.to_thread(read))
            except (SettingsError, ProviderError) as error:
                log.error("settings not reloaded, the old settings stay active: %s", error)
            except Exception:
                log.exception("settings not reloaded because of an unexpected error; the old settings stay active")
