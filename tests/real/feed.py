"""Continuous load: a thread writes a fleet's samples into a real Prometheus when their time has come.

Like an agent with remote write, it keeps samples that it cannot deliver and delivers them later. So there is no gap
after an outage of the Prometheus, and a gap in the watcher is a fault of the watcher.
"""

import threading
import time
from collections.abc import Sequence
from typing import Self

import numpy as np
import requests

from tests.real.fleet import between, make_fleet, recording_rule_series
from tests.real.parts import Prometheus

PAUSE_SECONDS = 0.25
LASTS_SECONDS = 900.0  # longer than any module of tests runs


class Feed:
    """Samples of `nodes` every `step` seconds: the past `history` seconds at once, then each when its time has come."""

    def __init__(
        self, prometheus: Prometheus, nodes: int | Sequence[str], *, history: float = 30.0, step: float = 1.0
    ) -> None:
        self._prometheus = prometheus
        now = time.time()
        # Samples are in the middle of their slots, far from each edge.
        end = np.floor(now + LASTS_SECONDS) + step / 2
        self.fleet = make_fleet(nodes, start=now - history, end=end, step=step, seed=5)
        self._series = recording_rule_series(self.fleet)
        self._written = 0.0
        self._stop = threading.Event()
        self._silent: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def silence(self, *nodes: str) -> None:
        """From now on these nodes send nothing; the missed samples stay missing."""
        self._silent = frozenset(nodes)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            try:
                self._write()
            except (requests.RequestException, AssertionError):
                continue  # unavailable, or still starting: retried

    def _write(self) -> None:
        now = time.time()
        due = between(self._series, self._written, now)
        self._prometheus.write([one for one in due if one.labels["instance"] not in self._silent])
        self._written = now
