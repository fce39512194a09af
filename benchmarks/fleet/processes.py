"""The processes of the benchmark beside the control plane: those with the agents, and the other client."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.real.parts import REPOSITORY, program_environment

CONTROL_PLANE = -10
"""Niceness of etcd, the API server and the other client, if this user may set it: on one machine, the other processes
must not take the time that they do not take on machines of their own."""
POLL_S = 0.5


def niced(command: Sequence[object]) -> list[str]:
    """The command of the service or of agents, with a much lower priority than the control plane."""
    return ["nice", "-n", "15", *map(str, command)]


class Fleet:
    """Processes with `count` agents in all."""

    def __init__(
        self, kubeconfig: Path, *, count: int, processes: int, seed: int, sources: str, evicting: float, refresh: float
    ) -> None:
        self.count = count
        self._processes = []
        for index in range(processes):
            first, following = count * index // processes, count * (index + 1) // processes
            options = ["--kubeconfig", kubeconfig, "--first", first, "--count", following - first, "--seed", seed]
            command = [sys.executable, "-m", "benchmarks.fleet.agents", *options]
            command += ["--sources", sources, "--evicting", evicting, "--refresh", refresh]
            self._processes.append(spawn(niced(command)))

    def do(self, what: str, **given: Any) -> int:
        """Send a command to every process, and return the number of agents that are synchronised afterwards."""
        line = json.dumps({"do": what, **given}) + "\n"
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return sum(self._answer(process)["synced"] for process in self._processes)

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, int]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process with agents ended with code {process.wait()}; its errors are above")
        answer: dict[str, int] = json.loads(line)
        return answer

    def wait_synced(self, *, began: float, since: float, timeout: float) -> tuple[float, int]:
        """Wait until all agents are synchronised, judged by requests after `since` (monotonic). Returns the seconds
        since `began` (monotonic) and the number of agents that are; fewer than all after `timeout`."""
        while True:
            synced, passed = self.do("status", since=since), time.monotonic() - began
            if synced == self.count or passed > timeout:
                return passed, synced
            time.sleep(POLL_S)

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class Latencies:
    """The requests of the other client over a phase."""

    seconds: Sequence[float]
    """Of the successful requests, sorted."""
    refused: int
    """Requests that got 429."""
    failed: int
    """Requests without a response, or with another error."""

    def quantile(self, share: float) -> float | None:
        """The latency that `share` of the requests do not exceed, in ms."""
        if not self.seconds:
            return None
        return 1e3 * self.seconds[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def __add__(self, other: Latencies) -> Latencies:
        return Latencies(
            sorted([*self.seconds, *other.seconds]), self.refused + other.refused, self.failed + other.failed
        )


class OtherClient:
    """The process of probe.py, whose output goes to a file."""

    def __init__(self, kubeconfig: Path, directory: Path, *, rate: float) -> None:
        self._path = directory / "probe.jsonl"
        command = [sys.executable, "-m", "benchmarks.fleet.probe", "--kubeconfig", kubeconfig, "--rate", rate]
        with self._path.open("w") as file:
            self._process = spawn(command, stdout=file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def between(self, begin: float, end: float) -> Latencies:
        """The requests that were due in this time (unix seconds)."""
        lines = self._path.read_text().splitlines()
        found = [each for each in map(json.loads, lines) if begin <= each["due"] < end]
        statuses = [each["status"] for each in found]
        good = sorted(each["seconds"] for each in found if each["status"] == 200)
        return Latencies(good, statuses.count(429), len(found) - len(good) - statuses.count(429))


def spawn(command: Sequence[object], *, stdout: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a process of this repository."""
    return subprocess.Popen(
        list(map(str, command)),
        cwd=REPOSITORY,
        env={**program_environment(), "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=stdout,
        text=True,
    )
