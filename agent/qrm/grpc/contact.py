"""Whether a manager uses the plug-ins of this process. In the mode `server` nothing else shows that a manager has
lost its plug-ins."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

SILENT_S = 180.0
"""Seconds after which a plug-in that no manager uses is reported. Managers call plug-ins every few seconds."""
CHECK_INTERVAL_S = 5.0


class ManagerContact:
    """The registration of one plug-in with a manager, and the time of its last call. `called_regularly`: whether
    managers call the plug-in in every reconcile round; if not, a registration counts as contact.

    `error` is the last registration status: None if there is none yet, empty for success, otherwise the error message.
    """

    def __init__(self, monotonic: Callable[[], float], *, called_regularly: bool) -> None:
        self.error: str | None = None
        self._monotonic = monotonic
        self._called_regularly = called_regularly
        self._last = monotonic()

    def registered(self, error: str) -> None:
        """A manager has sent the registration status."""
        self.error = error
        if not error:
            self._last = self._monotonic()

    def called(self) -> None:
        """A manager has called the plug-in."""
        self._last = self._monotonic()

    def lost(self) -> None:
        """The registration is void, because managers deregister a plug-in when its socket file is gone."""
        self.error = None
        self._last = self._monotonic()

    @property
    def silent_for(self) -> float:
        """Seconds since a manager last registered or called the plug-in."""
        if self.error == "" and not self._called_regularly:
            return 0.0
        return self._monotonic() - self._last

    @property
    def live(self) -> bool:
        """Whether a manager has registered the plug-in and uses it."""
        return self.error == "" and self.silent_for < SILENT_S


class SilenceReport:
    """Logs once when no manager uses a plug-in for SILENT_S seconds, and once when a manager uses it again. `contacts`
    are by resource."""

    def __init__(self, contacts: Mapping[str, ManagerContact], *, where: str) -> None:
        self._contacts = contacts
        self._where = where
        self._reported: set[str] = set()

    def check(self) -> None:
        """Log the changes since the last check."""
        for resource, contact in self._contacts.items():
            if contact.silent_for >= SILENT_S:
                if resource not in self._reported:
                    self._reported.add(resource)
                    log.warning(
                        "no manager has registered or called the plug-in for %s for %.0f s; check that the manager "
                        "runs and reads the plug-in directory %s",
                        resource,
                        contact.silent_for,
                        self._where,
                    )
            elif resource in self._reported:
                self._reported.remove(resource)
                log.info("a manager uses the plug-in for %s again", resource)

    async def run(self) -> None:
        """Check every CHECK_INTERVAL_S seconds until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_INTERVAL_S)
