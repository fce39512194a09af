"""Interfaces for modules that other packages add to the service: a settings table, routes, metrics, background tasks.

The watcher does not import the scorers; the command line (load_watcher/commands/serve.py) passes their module to it,
which keeps the dependencies between the packages in one direction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web
from prometheus_client.registry import Collector

from watcher.core.config.settings import Settings
from watcher.core.decisions import DecisionStore
from watcher.core.koordinator.report import Capacity, NodeUsages, PodClass
from watcher.core.pods.published import PublishedPods
from watcher.core.pods.table import Pod
from watcher.core.problems.document import FleetProblem
from watcher.core.publishing.documents import Published
from watcher.model import Snapshot, Window
from watcher.platform.http.routing import Route


class ModuleHost(Protocol):
    """The interface of the running service that a module may use."""

    @property
    def settings(self) -> Settings: ...

    @property
    def published(self) -> Published | None: ...

    @property
    def pods(self) -> PublishedPods | None: ...

    @property
    def windows(self) -> tuple[Window, ...]: ...

    @property
    def max_staleness(self) -> float: ...

    @property
    def decisions(self) -> DecisionStore: ...

    def request_pods(self) -> str: ...

    async def capacities(self) -> Mapping[str, Capacity]:
        """Return the capacity of nodes by name; nodes with unknown capacity are missing."""
        ...

    def measure(self, snapshot: Snapshot) -> NodeUsages:
        """Compute the usage of a snapshot's nodes by the collect policies. Slow; may be called from any thread."""
        ...

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class BuiltModule:
    """A built module: additional HTTP routes, cleanup contexts (`lives`) that run for the lifetime of the service, and
    metrics collectors. Collectors are called at a scrape, not in the event loop's thread; so is `pod_classes`, which
    returns Koordinator's classes of pods by namespace and name. `problems` returns the current problems of the module;
    it is called on the event loop and must be fast. `on_listening` is called with the address of the service
    ("http://127.0.0.1:2020") once it accepts requests. `renew` takes the module's table after a reload of the settings:
    called in a thread, it changes nothing and raises SettingsError if the new values cannot be applied while the
    service runs; the function that it returns applies them, on the event loop. A module without `renew` keeps its
    settings until a restart."""

    routes: tuple[Route, ...] = ()
    lives: tuple[Callable[[web.Application], AbstractAsyncContextManager[None]], ...] = field(default=())
    collectors: tuple[Collector, ...] = ()
    on_listening: tuple[Callable[[str], None], ...] = ()
    renew: Callable[[Mapping[str, Any]], Callable[[], None]] | None = None
    pod_classes: Callable[[], Mapping[Pod, PodClass]] | None = None
    problems: Callable[[], Sequence[FleetProblem]] | None = None


class ServiceModule(Protocol):
    """Builds the module of a package from the table `section` of the settings; without that table, the service runs
    without the module. A module with section "" needs no settings and is always built, from an empty table."""

    @property
    def section(self) -> str: ...

    def build(self, table: Mapping[str, Any], serving: ModuleHost) -> BuiltModule: ...
