"""What other packages add to the service: a section of the settings, routes, metrics, and a life of its own.

The watcher knows nothing of the scorers; the command line (`commands/serve.py`) hands it their part, and so the arrows
of the architecture stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web
from prometheus_client.registry import Collector

from watcher.core.decisions import DecisionStore
from watcher.core.koordinator.report import NodeUsages, PodClass
from watcher.core.pods.table import Pod, PublishedPods
from watcher.core.publishing.documents import Published
from watcher.model import Snapshot, Window
from watcher.platform.http.routing import Route
from watcher.platform.settings.tables import Settings


class Serving(Protocol):
    """What a part may ask of the service that it is in."""

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

    def want_pods(self) -> str: ...

    def measure(self, snapshot: Snapshot) -> NodeUsages:
        """What nodes use, by the collect policies. Takes its time; may be called from any thread."""
        ...

    def now(self) -> float: ...

    def monotonic(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Made:
    """A part at work: routes beside the watcher's, what runs from the start of the service to its end, and what it
    tells of itself on /metrics. Collectors are asked at a scrape, in another thread than the event loop's; so is what
    tells Koordinator's classes of pods by namespace and name. `on_listening` is told where the service can be asked
    ("http://127.0.0.1:2020"), once it can. `renew` takes the section's table of settings that were read again: called
    in a thread, it changes nothing and raises SettingsError for what cannot be taken on while the service runs; what
    it returns puts it in place, on the event loop. A part without it has its settings until the next start."""

    routes: tuple[Route, ...] = ()
    lives: tuple[Callable[[web.Application], AbstractAsyncContextManager[None]], ...] = field(default=())
    collectors: tuple[Collector, ...] = ()
    on_listening: tuple[Callable[[str], None], ...] = ()
    renew: Callable[[Mapping[str, Any]], Callable[[], None]] | None = None
    pod_classes: Callable[[], Mapping[Pod, PodClass]] | None = None


class Part(Protocol):
    """A package's part, read from the table `section` of the settings; without that table a service goes without."""

    @property
    def section(self) -> str: ...

    def make(self, table: Mapping[str, Any], serving: Serving) -> Made: ...
