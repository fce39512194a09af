"""What clients see of a cell: values of /watcher, decisions of the extender, and reports of the fault."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import requests

from tests.faults import truth
from tests.faults.cell import INTERVAL_S, MAX_STALENESS_S, POD, WINDOW_S, Cell
from tests.service import Service

EVERY_S = 0.5
PATIENCE_S = 5.0
TOLERANCE = 1.5
"""Percentage points between a served average and the possible ones: samples that are not there yet, and noise."""
CLEARLY = 15.0
"""Percentage points between two nodes whose order the scores must have."""
SIGNS = ("status", "health", "finding", "log")


@dataclass(frozen=True)
class Look:
    """One look at a cell at a monotonic time. `worst` is the largest error of a served value in percentage points, 0 if
    none is wrong; `decision` says what is wrong with a decision, "" for nothing. `uses_load` is false while the
    extender scores without load."""

    at: float
    status: int
    worst: float
    decision: str
    uses_load: bool
    signs: frozenset[str]

    @property
    def is_right(self) -> bool:
        """Whether current load is served and used, and nothing reports a fault, except for what remains."""
        now = self.signs - {"finding", "log"}
        return self.status == 200 and not self.worst and not self.decision and self.uses_load and not now


@dataclass
class Observer:
    """Looks at a cell in a thread of its own, every EVERY_S."""

    cell: Cell
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.nodes: tuple[str, ...] = truth.NODES
        self.mark()

    def mark(self) -> None:
        """Let only what is found or logged from now on be a sign."""
        self._findings = self._seen_findings()
        self._logs = {each.name: len(each.log()) for each in self._services}

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def _services(self) -> tuple[Service, Service]:
        return self.cell.service, self.cell.extender

    def _run(self) -> None:
        while not self._end.is_set():
            began = time.monotonic()
            self.looks.append(self._look())
            self._end.wait(max(0.0, began + EVERY_S - time.monotonic()))

    def wait(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Wait so long, or until something is true."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not until():
            time.sleep(EVERY_S / 2)

    # --- one observation ---------------------------------------------------------------------------------------------

    def _look(self) -> Look:
        at = time.monotonic()
        status, document = self._get(self.cell.service, f"/watcher?window={WINDOW_S:g}s".replace("300s", "5m"))
        worst = self._worst(document) if status == 200 else 0.0
        decision, uses_load = self._decision()
        return Look(at, status, worst, decision, uses_load, self._signs(status))

    def _get(self, service: Service, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
        """The status, 0 without a response, and the document."""
        try:
            method = "GET" if body is None else "POST"
            response = self._session.request(method, f"{service.url}{path}", json=body, timeout=PATIENCE_S)
            return response.status_code, response.json()
        except (requests.RequestException, ValueError):
            return 0, None

    def _worst(self, document: Any) -> float:
        """The largest error of an average of CPU: it must be that of an end within max_staleness."""
        now, worst = time.time(), 0.0
        served = document["data"]["NodeMetricsMap"]
        for node in set(served) & set(self.nodes):
            for metric in served[node]["metrics"]:
                if (metric["type"], metric["operator"]) != ("CPU", "AVG"):
                    continue
                lowest, highest = truth.possible_averages(node, WINDOW_S, now - MAX_STALENESS_S - 2 * INTERVAL_S, now)
                worst = max(worst, lowest - metric["value"] - TOLERANCE, metric["value"] - highest - TOLERANCE)
        return worst

    def _decision(self) -> tuple[str, bool]:
        """What is wrong with the decisions of the extender, and whether it uses load."""
        extender, body = self.cell.extender, {"pod": POD, "nodenames": list(self.nodes)}
        before = self._uses_load()
        _, filtered = self._get(extender, "/scheduler/default/filter", body)
        _, ranked = self._get(extender, "/scheduler/default/prioritize", body)
        scores = {each["Host"]: each["Score"] for each in ranked or ()}
        uses_load = before and self._uses_load() and len(set(scores.values())) > 1
        if not uses_load or filtered is None:
            return "", uses_load
        if truth.HOT in self.nodes and truth.HOT in (filtered.get("nodenames") or filtered.get("NodeNames") or ()):
            return f"{truth.HOT} passes the filter", uses_load
        since = time.time() - MAX_STALENESS_S - 2 * INTERVAL_S
        loads = {
            node: [truth.cpu(node, since + step) for step in range(0, round(MAX_STALENESS_S + 2 * INTERVAL_S) + 1, 5)]
            for node in self.nodes
        }
        for idle in self.nodes:
            for busy in self.nodes:
                if min(loads[busy]) - max(loads[idle]) > CLEARLY and scores[busy] > scores[idle]:
                    return f"{busy} before {idle}", uses_load
        return "", uses_load

    def _uses_load(self) -> bool:
        _, ready = self._get(self.cell.extender, "/readyz")
        age = ready["watcher"]["age_s"] if ready else None
        return age is not None and age <= MAX_STALENESS_S

    # --- signs of a fault --------------------------------------------------------------------------------------------

    def _signs(self, status: int) -> frozenset[str]:
        code, health = self._get(self.cell.service, "/watcher/health")
        _, ready = self._get(self.cell.service, "/readyz")
        store = ((ready or {}).get("detail") or {}).get("store") or {}
        found = {
            "status": status != 200,
            "health": code != 200 or health["status"] != "ok" or store.get("ok") is False,
            "finding": bool(self._seen_findings() - self._findings),
            "log": any(self._warnings(each) for each in self._services),
        }
        return frozenset(name for name in SIGNS if found[name])

    def _seen_findings(self) -> frozenset[tuple[str, str, str]]:
        _, document = self._get(self.cell.service, "/api/v1/findings")
        findings = (document or {}).get("findings", ())
        return frozenset((each["kind"], each.get("node", ""), each.get("metric", "")) for each in findings)

    def _warnings(self, service: Service) -> list[str]:
        lines = service.log()[self._logs[service.name] :].splitlines()
        return [line for line in lines if " warning " in line or " error " in line]

    def warnings(self) -> list[str]:
        """What the programs have logged since the beginning."""
        return [f"{each.name}: {line}" for each in self._services for line in self._warnings(each)]
