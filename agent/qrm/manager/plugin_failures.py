"""Log messages about failing plug-ins: one when a failure begins, and one when it ends.

A round calls several methods of each plug-in, so a plug-in that has died would otherwise cause several messages in
every round. No I/O besides the log, no clock.
"""

from __future__ import annotations

import logging

from agent.qrm.grpc.plugin_api import PAUSED, PluginCallError

log = logging.getLogger(__name__)

UNREACHABLE = "UNAVAILABLE"
LATE = "DEADLINE_EXCEEDED"


class PluginFailures:
    """The current failures of the plug-ins, by resource: the failing methods, "" for every method."""

    def __init__(self) -> None:
        self._failing: dict[str, set[str]] = {}
        self._silent: set[str] = set()

    def failed(self, error: PluginCallError, consequence: str) -> None:
        """A call has failed. An unreachable plug-in fails in every method; other failures concern one method."""
        if error.status == PAUSED:
            return  # the call that timed out has been reported
        if error.status in (UNREACHABLE, LATE):
            self._silent.add(error.resource)
        failing = self._failing.setdefault(error.resource, set())
        method = "" if error.status == UNREACHABLE else error.method
        if method not in failing:
            log.warning("%s; %s", error, consequence)
        failing.add(method)

    def succeeded(self, resource: str, method: str) -> None:
        """A call of the method has succeeded, so the plug-in responds."""
        self._silent.discard(resource)
        failing = self._failing.get(resource, set())
        if "" in failing:
            log.info("the plug-in for %s responds again", resource)
        elif method in failing:
            log.info("the plug-in for %s no longer fails in %s", resource, method)
        failing -= {"", method}

    def forget(self, resource: str) -> None:
        """The plug-in was registered or deregistered."""
        self._failing.pop(resource, None)
        self._silent.discard(resource)

    def responds(self, resource: str) -> bool:
        """Whether the plug-in has responded since the last call that did not reach it or timed out."""
        return resource not in self._silent
