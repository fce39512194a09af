"""The source of a row: the API of Prometheus with the true load, which can be faulty."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import partial
from typing import Any

from tests.fakes.prometheus import Asked, FakePrometheus, Script, responded, until_hung_up
from tests.faults import truth

LOADS = {"instance:node_cpu:ratio": truth.cpu, "instance:node_memory_utilisation:ratio": truth.memory}
HOUR_S = 3600.0

Series = list[dict[str, Any]]


class TrueSource(FakePrometheus):
    """`fault` changes the series of a response, or answers in its place; `gone` are nodes without new samples. Unless
    it `keeps_connections`, it closes each after a response."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.fault: Callable[[Asked, Series], Series | bytes | Script] = lambda _, series: series
        self.shown: Callable[[float], float] = lambda moment: moment
        """The time whose load is shown at a time."""
        self.gone: dict[str, float] = {}
        self.keeps_connections = True

    def _respond(self, asked: Asked) -> bytes | Script:
        kind, series = self._series(asked)
        answer = self.fault(asked, series)
        if not isinstance(answer, list):
            return answer
        content = json.dumps({"status": "success", "data": {"resultType": kind, "result": answer}})
        date = {"Date": formatdate(usegmt=True)}
        if self.keeps_connections:
            return responded(content, headers=date)
        return partial(_send_and_close, responded(content, headers={**date, "Connection": "close"}))

    def _series(self, asked: Asked) -> tuple[str, Series]:
        name = next((each for each in LOADS if each in asked.query), "")
        labels = [{"__name__": name, "node": node, "instance": f"{node}:9100"} for node in truth.NODES] if name else []
        if asked.query.startswith("count"):
            return "vector", [{"metric": each, "value": [time.time(), "1"]} for each in labels]
        span = re.search(r"\[(\d+)s\]", asked.query)
        if span is None or not asked.query.startswith(name):
            return "matrix", []
        until = float(asked.parameters.get("time", time.time()))
        since = until - float(span[1])
        return "matrix", [{"metric": each, "values": self._values(name, each["node"], since, until)} for each in labels]

    def _values(self, name: str, node: str, since: float, until: float) -> list[list[Any]]:
        ends = min(until, time.time(), self.gone.get(node, until))
        load = LOADS[name]
        return [[at, repr(load(node, self.shown(at)) / 100)] for at in truth.samples(node, since, ends)]


def _send_and_close(response: bytes, connection: socket.socket) -> None:
    connection.sendall(response)
    connection.shutdown(socket.SHUT_RDWR)


def hang(_: Asked, __: Series) -> Script:
    """Send nothing."""
    return until_hung_up


def error_500(_: Asked, __: Series) -> bytes:
    """Send an internal error."""
    return responded("out of memory", status=500)


def no_series(_: Asked, __: Series) -> Series:
    """Send a valid response without series."""
    return []


def zeros(asked: Asked, series: Series) -> Series:
    """Send 0 for all nodes."""
    if asked.query.startswith("count"):
        return series
    return [{**each, "values": [[at, "0"] for at, _ in each["values"]]} for each in series]
