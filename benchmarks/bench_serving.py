"""Responses per second, compared with a Go program that serves as the Go load-watcher does.

    python -m benchmarks.bench_serving                     # 5,000 nodes, about six minutes
    python -m benchmarks.bench_serving --nodes 500 --seconds 1

The service is a real `load-watcher serve`, one process, that reads from a real Prometheus; the peer is peer/main.go,
with the same document and any number of threads. One wrk measures both alternately, so that other load of the machine
affects both; the numbers are medians of the rounds.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cluster import still_service
from benchmarks.report import Table, amount, at_least
from benchmarks.source import METRICS, names
from tests.real.parts import Server, run_program

CONNECTIONS = 16
PEER_SOURCE = Path(__file__).with_name("peer") / "main.go"
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}


@dataclass(frozen=True)
class Case:
    """One kind of request. `peer_path` and `peer_headers` are the substitute request if the peer does not support this
    kind."""

    name: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    goal: float | None = None
    peer_headers: Mapping[str, str] | None = None
    peer_path: str | None = None


@dataclass(frozen=True)
class Run:
    """Result of wrk: requests per second, and the 99th percentile of the latency in ms."""

    rate: float
    p99: float


class Peer(Server):
    """The Go program with the document of a service."""

    name = "peer"

    def __init__(self, directory: Path, *, program: Path, source: str) -> None:
        super().__init__(directory)
        self._program = program
        self._source = source

    def command(self) -> Sequence[str | Path]:
        return [self._program, "-from", self._source, "-listen", f"127.0.0.1:{self.port}"]

    def is_ready(self) -> bool:
        return self.session.get(f"{self.url}/watcher", timeout=10).ok


def build_peer(directory: Path, source: Path = PEER_SOURCE) -> Path | None:
    """Build a peer's program; return None without Go."""
    compiler = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if compiler is None:
        return None
    program = directory / "peer"
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([compiler, "build", "-o", program, source], check=True, cwd=directory)
    return program


@contextmanager
def running_peer(directory: Path, source: str) -> Iterator[Peer | None]:
    """Run the peer for the service at `source`; yield None if it cannot be built."""
    program = build_peer(directory)
    if program is None:
        yield None
        return
    with Peer(directory / "running", program=program, source=source) as peer:
        yield peer


def cases(node: str) -> list[Case]:
    """Return the measured requests. `node` is the name of a node in the middle of the list."""
    gzip = {"Accept-Encoding": "gzip"}
    return [
        Case("list", "/watcher", goal=10),
        Case("list; the peer serves prepared bytes", "/watcher", peer_path="/ready"),
        Case("list, gzip", "/watcher", gzip, goal=100),
        Case("list, zstd; the peer: gzip", "/watcher", {"Accept-Encoding": "zstd"}, peer_headers=gzip),
        Case("list, not modified (304); the peer: list", "/watcher", {"If-None-Match": "*"}, peer_headers={}),
        Case("one node, /watcher/{host}", f"/watcher/{node}", goal=20),
        Case("one node, ?host=", f"/watcher?host={node}", goal=20),
    ]


def ask(url: str, headers: Mapping[str, str], *, seconds: int) -> Run:
    """Run wrk for `seconds`. Raises RuntimeError for unexpected responses."""
    flags = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    done = run_program(
        "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "20s", "--latency", *flags, url, timeout=120
    )
    rate = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", done.stdout)
    if done.returncode or rate is None or p99 is None or "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise RuntimeError(f"wrk at {url}: {done.stdout}")
    return Run(float(rate[1]), float(p99[1]) * _UNITS[p99[2]])


def measure(case: Case, ours: Server, peer: Server | None, *, seconds: int, rounds: int) -> tuple[Run, Run | None]:
    """Return the medians of both, measured alternately."""
    our_runs, peer_runs = [], []
    for _ in range(rounds):
        our_runs.append(ask(ours.url + case.path, case.headers, seconds=seconds))
        if peer is not None:
            headers = case.headers if case.peer_headers is None else case.peer_headers
            peer_runs.append(ask(peer.url + (case.peer_path or case.path), headers, seconds=seconds))
    return _median(our_runs), _median(peer_runs) if peer_runs else None


def _median(runs: Sequence[Run]) -> Run:
    return Run(statistics.median(run.rate for run in runs), statistics.median(run.p99 for run in runs))


def table(nodes: int, *, metrics: Sequence[str], seconds: int, rounds: int) -> Table:
    """Measure all cases with a document of these metrics."""
    with (
        tempfile.TemporaryDirectory() as folder,
        still_service(Path(folder), nodes=nodes, metrics=metrics) as ours,
        running_peer(Path(folder) / "peer", f"{ours.url}/watcher") as peer,
    ):
        body = ours.get("/watcher", headers={"Accept-Encoding": "identity"}).body
        result = Table(
            f"Serving {nodes:,} nodes × {len(metrics)} metrics (AVG and STD, 15m), a list of {len(body) / 1e6:.2f} MB",
            ["request", "service /s", "peer /s", "ratio", "goal", "service p99", "peer p99"],
        )
        for case in cases(names(nodes)[nodes // 2]):
            our, its = measure(case, ours, peer, seconds=seconds, rounds=rounds)
            _add(result, case, our, its)
    if peer is None:
        result.notes.append("Go is not installed, so the peer was not measured.")
    return result


def _add(result: Table, case: Case, our: Run, its: Run | None) -> None:
    ratio = our.rate / its.rate if its else None
    result.add(
        case.name,
        amount(our.rate),
        amount(its.rate if its else None),
        amount(ratio, "×"),
        at_least(ratio, case.goal) if case.goal else "",
        amount(our.p99, "ms"),
        amount(its.p99 if its else None, "ms"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=4, help="duration of each run of wrk in seconds (default 4)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for metrics in (METRICS[:2], METRICS):
        print(table(options.nodes, metrics=metrics, seconds=options.seconds, rounds=options.rounds).markdown())
    print(
        f"wrk, 1 thread, {CONNECTIONS} connections, {options.seconds} s, {options.rounds} alternating rounds, medians. "
        "The service uses one core, the peer both; the peer has neither zstd nor ETags."
    )


if __name__ == "__main__":
    main()
