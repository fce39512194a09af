"""Load that goes on: a fleet's samples written into a real Prometheus as time reaches them, by a thread.

Like an agent that writes remotely, it keeps what it cannot deliver and delivers it later, so a Prometheus that was
away has no gap afterwards, and a reader that leaves one has no excuse.
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
LASTS_SECONDS = 900.0  # more than any module of tests may take


class Feed:
    """Samples of `nodes` every `step` seconds: the past `history` seconds at once, then each when its time has come."""

    def __init__(
        self, prometheus: Prometheus, nodes: int | Sequence[str], *, history: float = 30.0, step: float = 1.0
    ) -> None:
        self._prometheus = prometheus
        now = time.time()
        # Samples stand in the middle of their slot, off every edge.
        end = np.floor(now + LASTS_SECONDS) + step / 2
        self.fleet = make_fleet(nodes, start=now - history, end=end, step=step, seed=5)
        self._series = recording_rule_series(self.fleet)
        self._written = 0.0
        self._stop = threading.Event()
        self._silent: frozenset[str] = frozenset()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def silence(self, *nodes: str) -> None:
        """From now on these nodes send nothing, and what they miss stays missing."""
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
                continue  # away, or still starting: next time

    def _write(self) -> None:
        now = time.time()
        due = between(self._series, self._written, now)
        self._prometheus.write([one for one in due if one.labels["instance"] not in self._silent])
        self._written = now
