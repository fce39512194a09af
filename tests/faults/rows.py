"""The faults: how each of them begins and ends, and what is expected of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from tests.fakes.kube import NODES
from tests.faults import source, truth
from tests.faults.cell import Cell
from tests.faults.observing import SIGNS, Observer

HOUR_S = 3600
Injection = Callable[[Cell, Observer], AbstractContextManager[None]]


@dataclass(frozen=True)
class FaultRow:
    """A row of the table. `lasts` and `recovers` are in seconds: how long the fault lasts, and how long the recovery is
    waited for. `expected` are the signs of which one must come within two ticks, none if the fault has none of them.
    With `unknowable`, wrong values are expected: no program with this source can detect them."""

    name: str
    inject: Injection
    lasts: float = 25.0
    recovers: float = 60.0
    expected: tuple[str, ...] = SIGNS
    unknowable: bool = False
    by_name: bool = False
    small_disk: bool = False


def _of_source(fault: Any) -> Injection:
    """A fault of the responses of the source."""

    @contextmanager
    def inject(cell: Cell, _: Observer) -> Iterator[None]:
        before, cell.source.fault = cell.source.fault, fault
        yield
        cell.source.fault = before

    return inject


@contextmanager
def _source_down(cell: Cell, _: Observer) -> Iterator[None]:
    cell.source.__exit__()
    yield
    cell.source.__enter__()


@contextmanager
def _old_values(cell: Cell, _: Observer) -> Iterator[None]:
    """The values of an hour ago, which move, with the times of now."""
    began = time.time()
    cell.source.shown = lambda moment: moment - HOUR_S if moment > began else moment
    yield
    ended = time.time()
    cell.source.shown = lambda moment: moment - HOUR_S if began < moment <= ended else moment


def _clock(seconds: int, *, extender: bool = False) -> Injection:
    @contextmanager
    def inject(cell: Cell, _: Observer) -> Iterator[None]:
        clock = cell.extender_clock if extender else cell.clock
        clock.set(seconds)
        yield
        clock.set(0)

    return inject


def _restart_with_clock(seconds: int) -> Injection:
    @contextmanager
    def inject(cell: Cell, _: Observer) -> Iterator[None]:
        cell.service.stop()
        cell.clock.set(seconds)
        cell.restart()
        yield
        cell.clock.set(0)

    return inject


@contextmanager
def _disk_full(cell: Cell, _: Observer) -> Iterator[None]:
    filler = cell.disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    yield
    filler.unlink()


@contextmanager
def _api_down(cell: Cell, _: Observer) -> Iterator[None]:
    cell.kube.__exit__()
    yield
    cell.kube.__enter__()


@contextmanager
def _node_deleted(cell: Cell, observer: Observer) -> Iterator[None]:
    """A node that is drained and deleted; Prometheus has its last samples for five minutes."""
    node = truth.NODES[0]
    observer.nodes = truth.NODES[1:]
    cell.source.gone[node] = time.time()
    cell.kube.delete(NODES, node)
    yield
    del cell.source.gone[node]
    cell.kube.node(node, cpu="16", memory="64Gi")


@contextmanager
def _killed(cell: Cell, _: Observer) -> Iterator[None]:
    cell.service.kill()
    cell.restart()
    yield


@contextmanager
def _name_server_silent(cell: Cell, _: Observer) -> Iterator[None]:
    """From the first lookup on: names are kept for ten seconds. The source closes connections, which need none."""
    assert cell.names is not None
    cell.source.keeps_connections = False
    cell.names.answers = False
    cell.names.wait_for_query(b"prometheus")
    yield
    cell.names.answers = True
    cell.source.keeps_connections = True


ROWS = (
    FaultRow("old values, fresh times", _old_values, 45.0, recovers=360.0, expected=(), unknowable=True),
    FaultRow("source down", _source_down, 38.0),
    FaultRow("source hangs", _of_source(source.hang), 38.0),
    FaultRow("source returns 500", _of_source(source.error_500), 38.0),
    FaultRow("source returns no series", _of_source(source.no_series), 38.0),
    FaultRow("zeros for all nodes", _of_source(source.zeros), 38.0),
    FaultRow("clock +1 h", _clock(HOUR_S), 38.0),
    FaultRow("clock -1 h", _clock(-HOUR_S), 38.0),
    FaultRow("clock of the extender +1 h", _clock(HOUR_S, extender=True), 30.0),
    FaultRow("clock of the extender -1 h", _clock(-HOUR_S, extender=True), 30.0),
    FaultRow("restart with clock -10 min", _restart_with_clock(-600), 38.0),
    FaultRow("disk full", _disk_full, 30.0, small_disk=True),
    FaultRow("Kubernetes API down", _api_down, 30.0),
    FaultRow("node deleted", _node_deleted, 30.0, expected=()),
    FaultRow("kill -9", _killed, 0.0, expected=()),
    FaultRow("name server silent", _name_server_silent, 38.0, by_name=True),
)
