"""Cost of ranking nodes for a pod: a pass of each plug-in, a pod event, and prioritize over HTTP.

    python -m benchmarks.bench_scoring                     # 5,000 and 50,000 nodes, about a minute
    python -m benchmarks.bench_scoring --nodes 1000 --rounds 20

The pass of TargetLoadPacking is compared with a loop over the nodes in Python, with the same formula and numbers, and
with one in Go (peer/packing/main.go). The fastest of many passes counts.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.bench_serving import build_peer
from benchmarks.report import Table as Report
from benchmarks.report import amount, at_most
from benchmarks.source import names
from scorers.cluster.pods import pod_info
from scorers.cluster.table import ClusterTable
from scorers.decisions import records
from scorers.decisions.log import DecisionLog
from scorers.decisions.recorder import DecisionRecorder
from scorers.extender.handlers import Extender
from scorers.plugin_api.framework import FilterPlugin, ScorePlugin, round_half_away_one
from scorers.profiles.profiles import PluginSettings, ProfileSettings
from scorers.profiles.ranking import ProfileRunner
from tests.fakes.service import Live
from tests.scorers.simulated_cluster import NOW, load, node, pod
from watcher.client import Columns
from watcher.core.kubernetes.objects import Pod
from watcher.model import MetricType
from watcher.store.decisions.store import StoreDecisions
from watcher.store.settings import StoreSettings
from watcher.store.store import Store

LOOP_SOURCE = Path(__file__).with_name("peer") / "packing" / "main.go"
GOALS_MS = {
    "TargetLoadPacking": 0.1,
    "LoadVariationRiskBalancing": 0.2,
    "LowRiskOverCommitment": 5.0,
    "LoadAwareScheduling": 1.0,
}
"""Goal in milliseconds of a pass over 5,000 nodes."""
GOAL_NODES = 5000
GOAL_EVENT_US = 50.0
PLUGINS = (*GOALS_MS, "NodeResourceLimits", "Peaks", "HighLoadFilter")
FORECASTING = ("LoadAwareScheduling", "HighLoadFilter")
"""Plug-ins that can use forecasts."""
GOAL_FORECAST = 1.1
"""Highest ratio of a pass with forecasts to one with windows."""
POINTS = ("filter", "score")
ALONE = "TargetLoadPacking"
TURNS = 10
PODS_ON_A_NODE = 4
CONTAINERS = (
    {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
    {"requests": {"cpu": "100m", "memory": "128Mi"}},
)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A table of `nodes` nodes, and a profile with all plug-ins."""

    table: ClusterTable
    nodes: Sequence[str]
    profile: ProfileRunner

    def plugins(self, name: str) -> tuple[list[FilterPlugin], list[ScorePlugin]]:
        """Return the filter plug-ins and the score plug-ins with this name."""
        filtering = [plugin for each, plugin in self.profile.filtering if each.name == name]
        return filtering, [plugin for each, plugin in self.profile.scoring if each.name == name]


def loads(nodes: Sequence[str]) -> Columns:
    """Return CPU and memory of all nodes, with deviations and forecasts."""
    random = np.random.default_rng(7).random((6, len(nodes)))
    keys = (
        *(("CPU", "AVG"), ("CPU", "STD"), ("Memory", "AVG"), ("Memory", "STD")),
        *(("CPU", "FORECAST"), ("Memory", "FORECAST")),
    )
    scale = (90.0, 20.0, 90.0, 5.0, 100.0, 100.0)
    return load(
        {
            name: {key: float(most * random[part, i]) for part, (key, most) in enumerate(zip(keys, scale, strict=True))}
            for i, name in enumerate(nodes)
        },
        horizon="6h",
    )


def build(size: int) -> Cluster:
    """Return nodes with four pods each; one of forty pods is recent."""
    cluster, nodes = ClusterTable(), names(size)
    models = {name: {"k0": 471.7, "k1": -91.5, "k2": -0.072} for name in nodes}
    settings = tuple(
        PluginSettings(name, args={"NodePowerModel": models} if name == "Peaks" else {}, points=POINTS)
        for name in PLUGINS
    )
    profile = ProfileRunner(ProfileSettings("all", settings), cluster)
    for name in nodes:
        cluster.set_node(name, node(name, {"cpu": "64", "memory": "256Gi"}))
    for i in range(PODS_ON_A_NODE * size):
        scheduled = NOW - (5 if i % 40 == 0 else 900)
        each = pod(f"p{i}", node=nodes[i % size], containers=CONTAINERS, scheduled=scheduled)
        cluster.set_pod(None, each, now=NOW)
    cluster.set_load(loads(nodes), now=NOW)
    list(profile.prepare())
    return Cluster(cluster, nodes, profile)


def quickest(call: Callable[[], object], *, rounds: int) -> float:
    """Return the seconds of the fastest of `rounds` calls."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return min(taken)


# --- a pass ----------------------------------------------------------------------------------------------------------


def passes(cluster: Cluster, *, rounds: int) -> dict[str, float]:
    """Return the milliseconds of the fastest pass of each plug-in over all nodes: filter and score, if it has both."""
    asking, rows = pod_info(pod("asking", containers=CONTAINERS)), np.arange(len(cluster.nodes))

    def once(filtering: Sequence[FilterPlugin], scoring: Sequence[ScorePlugin]) -> None:
        for plugin in filtering:
            plugin.filter(asking, cluster.table, rows, now=NOW)
        for each in scoring:
            each.score(asking, cluster.table, rows, now=NOW)

    return {name: 1e3 * quickest(partial(once, *cluster.plugins(name)), rounds=rounds) for name in PLUGINS}


def forecast_passes(cluster: Cluster, *, rounds: int) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of the fastest pass of each plug-in with windows and with forecasts, side by side."""
    asking, rows = pod_info(pod("asking", containers=CONTAINERS)), np.arange(len(cluster.nodes))
    found = {}
    for name in FORECASTING:
        both = []
        for use in ("window", "forecast"):
            settings = ProfileSettings(use, (PluginSettings(name, args={"use": use}, points=POINTS),))
            both.append(ProfileRunner(settings, cluster.table))

        def once(profile: ProfileRunner) -> None:
            profile.filter(asking, rows, now=NOW)
            profile.rank(asking, rows, now=NOW)

        taken = [[quickest(partial(once, each), rounds=1) for each in both] for _ in range(rounds)]
        window, forecast = (1e3 * min(each) for each in zip(*taken, strict=True))
        found[name] = window, forecast
        for each in both:
            each.close()
    return found


def after_a_tick(cluster: Cluster) -> float:
    """Return the milliseconds until LowRiskOverCommitment has computed all its distributions, a limited number in each
    step."""
    cluster.table.set_load(loads(cluster.nodes[::-1]), now=NOW)
    began = time.perf_counter()
    list(cluster.profile.prepare())
    return 1e3 * (time.perf_counter() - began)


def one_by_one(
    nodes: Sequence[tuple[str, int]], metrics: Mapping[str, list[Any]], recent: Mapping[str, int]
) -> list[int]:
    """TargetLoadPacking as a loop, as in Go."""
    scores = []
    for name, capacity in nodes:
        measured = None
        for kind, operator, value in metrics.get(name, ()):
            if kind == "CPU" and operator in ("AVG", "Latest"):
                measured = value
        if measured is None:
            scores.append(0)
            continue
        more = 1150 + recent.get(name, 0)
        predicted = 100.0 * (measured / 100.0 * capacity + more) / capacity if capacity > 0 else 0.0
        if predicted > 100.0:
            scores.append(0)
        elif predicted > 40.0:
            scores.append(round_half_away_one(40.0 * (100.0 - predicted) / 60.0))
        else:
            scores.append(round_half_away_one(60.0 * predicted / 40.0 + 40.0))
    return scores


def python_loop(cluster: Cluster) -> Callable[[], list[int]]:
    """Run the loop over the cluster's data; returns the same scores as the plug-in."""
    average = cluster.table.load.average(MetricType.CPU)
    row = cluster.table.row
    nodes = [(name, 64_000) for name in cluster.nodes]
    metrics = {name: [("CPU", "STD", 1.0), ("CPU", "AVG", float(average[row[name]]))] for name in cluster.nodes}
    recent: dict[str, int] = {}
    for name in cluster.nodes:
        if found := [key for key, _, at in cluster.table.recent.of(row[name]) if at > NOW - 60.0]:
            recent[name] = 2 * 575 * len(found)
    return partial(one_by_one, nodes, metrics, recent)


def go_loop(size: int, *, rounds: int) -> float | None:
    """Return the milliseconds of the fastest pass; None without Go."""
    with tempfile.TemporaryDirectory() as folder:
        program = build_peer(Path(folder), LOOP_SOURCE)
        if program is None:
            return None
        command = [str(program), "-nodes", str(size), "-passes", str(rounds)]
        return 1e-6 * float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


# --- an event --------------------------------------------------------------------------------------------------------


def events(cluster: Cluster, *, rounds: int) -> dict[str, float]:
    """Return the microseconds of a pod event, with all plug-ins subscribed."""
    table, at = cluster.table, cluster.nodes[len(cluster.nodes) // 2]
    come = pod("new", node=at, containers=CONTAINERS, scheduled=NOW)
    same = msgspec.convert(msgspec.to_builtins(come, str_keys=True), Pod)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    changed = pod("new", node=at, containers=CONTAINERS, scheduled=NOW, status=ready)
    steps = {
        "comes": (None, come),
        "changes its phase": (come, same),
        "changes a condition": (same, changed),
        "goes": (changed, None),
    }
    taken = dict.fromkeys(steps, np.inf)
    for _ in range(rounds):
        for what, (old, new) in steps.items():
            began = time.perf_counter()
            table.set_pod(old, new, now=NOW)
            taken[what] = min(taken[what], 1e6 * (time.perf_counter() - began))
    return taken


# --- HTTP ------------------------------------------------------------------------------------------------------------


def alone(cluster: Cluster) -> ProfileRunner:
    """Return a profile with only TargetLoadPacking."""
    return ProfileRunner(ProfileSettings(ALONE, (PluginSettings(ALONE, points=POINTS),)), cluster.table)


def serve(size: int, *, remembering: bool) -> None:
    """Run an extender with `nodes` nodes until stdin closes; prints its port. `remembering`: with a decision log in a
    database on this disk."""
    cluster = build(size)
    profiles = {"all": cluster.profile, ALONE: alone(cluster)}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        url = f"sqlite:///{folder}/bench.db"
        store = Store(StoreSettings(url=url))
        log = DecisionLog(DecisionRecorder(StoreDecisions(store)), cluster.table, now=time.time)
        extender = Extender(cluster.table, profiles, now=lambda: NOW, decisions=log if remembering else None)
        with Live(routes=extender.routes()) as live:
            storing = live.run(_remember(store, log)) if remembering else None
            print(live.port, flush=True)
            sys.stdin.read()
            if storing is not None:
                live.run(_forget(store, storing))


async def _remember(store: Store, log: DecisionLog) -> asyncio.Task[None]:
    await store.open()
    return asyncio.create_task(log.run_flush_loop())


async def _forget(store: Store, storing: asyncio.Task[None]) -> None:
    storing.cancel()
    await asyncio.gather(storing, return_exceptions=True)
    await store.close()


@contextmanager
def serving(size: int, *, remembering: bool) -> Iterator[int]:
    """Yield the port of an extender in a separate process."""
    command = [sys.executable, "-m", "benchmarks.bench_scoring", "--serve", str(size)]
    command += ["--remembering"] if remembering else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def latencies(port: int, profile: str, nodes: Sequence[str], *, rounds: int) -> list[float]:
    """Return the milliseconds of prioritize with all names over one connection, one pod after another."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    taken = []
    for i in range(rounds):
        asking = msgspec.to_builtins(pod(f"asking-{i}", containers=CONTAINERS), str_keys=True)
        body = msgspec.json.encode({"Pod": asking, "Nodes": None, "NodeNames": nodes})
        began = time.perf_counter()
        connection.request("POST", f"/scheduler/{profile}/prioritize", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        taken.append(1e3 * (time.perf_counter() - began))
        if response.status != 200:
            raise RuntimeError(f"prioritize returned {response.status}: {answer[:200]!r}")
    connection.close()
    return taken


# --- the tables ------------------------------------------------------------------------------------------------------


def pass_table(measured: Mapping[int, Mapping[str, float]]) -> Report:
    """Return the table of passes by plug-in and size."""
    sizes = list(measured)
    table = Report("A pass over all nodes", ["", *(f"{size:,} nodes" for size in sizes), "goal"])
    for name in PLUGINS:
        goal = GOALS_MS.get(name) if sizes[0] == GOAL_NODES else None
        judged = "" if goal is None else at_most(measured[sizes[0]][name], goal, "ms")
        table.add(name, *(amount(measured[size][name], "ms") for size in sizes), judged)
    after = [amount(measured[size]["after a tick"], "ms") for size in sizes]
    table.add("LowRiskOverCommitment's distributions, once per tick", *after, "")
    return table


def forecast_table(measured: Mapping[int, Mapping[str, tuple[float, float]]]) -> Report:
    """Return the table of passes with windows and with forecasts, filter and score by one plug-in."""
    table = Report("A pass with forecasts", ["", "nodes", "windows", "forecasts", "ratio", "goal"])
    for size, passed in measured.items():
        for name, (window, forecast) in passed.items():
            ratio = forecast / window
            goal = at_most(ratio, GOAL_FORECAST, "×") if size == GOAL_NODES else ""
            table.add(name, f"{size:,}", amount(window, "ms"), amount(forecast, "ms"), amount(ratio, "×"), goal)
    return table


def loop_table(measured: Mapping[int, Mapping[str, float | None]]) -> Report:
    """Return the table that compares TargetLoadPacking with the loops."""
    table = Report(
        "TargetLoadPacking compared with a loop over the nodes", ["", "plug-in", "Python", "ratio", "Go", "ratio"]
    )
    for size, found in measured.items():
        ours, python, go = found["ours"], found["python"], found["go"]
        assert ours is not None
        assert python is not None
        ratio = None if go is None else go / ours
        cells = (
            amount(ours, "ms"),
            amount(python, "ms"),
            amount(python / ours, "×"),
            amount(go, "ms"),
            amount(ratio, "×"),
        )
        table.add(f"{size:,} nodes", *cells)
    return table


def event_table(size: int, measured: Mapping[str, float]) -> Report:
    """Return the table of pod events."""
    table = Report(f"Pod event, {size:,} nodes, all plug-ins", ["a pod", "", "goal"])
    for what, taken in measured.items():
        table.add(what, amount(taken, "µs"), at_most(taken, GOAL_EVENT_US, "µs"))
    return table


def http_table(size: int, *, rounds: int) -> Report:
    """Return the latencies of prioritize with and without a decision log, measured alternately in two processes."""
    columns = ["plug-ins", "p50", "p99", "with log: p50", "p99", "ratio of p99", "goal"]
    table = Report(f"prioritize with {size:,} names over HTTP, without and with the decision log", columns)
    with serving(size, remembering=False) as without, serving(size, remembering=True) as remembering:
        for profile, goal in ((ALONE, 10.0), ("all", 25.0)):
            taken: dict[int, list[float]] = {without: [], remembering: []}
            for turn in range(TURNS + 1):
                for port, of_port in taken.items():
                    some = latencies(port, profile, names(size), rounds=-(-rounds // TURNS))
                    of_port += some if turn else []  # the first turn is a warm-up
            (p50, p99), (p50_with, p99_with) = (np.percentile(each, [50, 99]).tolist() for each in taken.values())
            cells = [amount(each, "ms") for each in (p50, p99, p50_with, p99_with)]
            table.add(profile, *cells, amount(p99_with / p99, "×"), at_most(p99_with, goal, "ms"))
    return table


def decision_table(cluster: Cluster, *, rounds: int) -> Report:
    """Return the cost of recording a decision: in the event loop after the response, in a thread, and in the
    database."""
    size, columns = len(cluster.nodes), cluster.table.load.columns
    heading = ["plug-ins", "recording, event loop", "encoding, thread", "bytes stored"]
    table = Report(f"A decision in the log, {size:,} nodes, filter and prioritize", heading)
    info, rows, sampled = pod_info(pod("asking", containers=CONTAINERS)), np.arange(size), cluster.table.load.sampled()
    for name, profile in ((ALONE, alone(cluster)), ("all", cluster.profile)):
        ranked, filtered = profile.rank(info, rows, now=NOW), profile.filter(info, rows, now=NOW)
        blank = records.new_decision(info, profile=name, time=NOW, columns=columns, window="15m", identity="uid")
        ranking = partial(records.ranking_record, ranked, cluster.nodes, sampled=sampled, asked=size, most=10)
        passed = partial(records.filter_record, filtered, cluster.nodes, asked=size)
        encode = msgspec.structs.replace(blank, filtered=passed(), ranking=ranking()).encode
        taking, encoding = (
            1e6 * sum(quickest(each, rounds=rounds) for each in several) for several in ((ranking, passed), (encode,))
        )
        table.add(name, amount(taking, "µs"), amount(encoding, "µs"), f"{len(encode()):,}")
    return table


def measure(size: int, *, rounds: int) -> tuple[Cluster, dict[str, float], dict[str, float | None]]:
    """Measure the passes and the comparison loops."""
    cluster = build(size)
    found = passes(cluster, rounds=rounds)
    loop = python_loop(cluster)
    asking, rows = pod_info(pod("asking", containers=CONTAINERS)), np.arange(size)
    _, (packing,) = cluster.plugins("TargetLoadPacking")
    if loop() != packing.score(asking, cluster.table, rows, now=NOW).values.tolist():
        raise RuntimeError("the loop and the plug-in return different scores")
    python = min(1e3 * quickest(loop, rounds=1) for _ in range(max(3, rounds // 10)))
    loops: dict[str, float | None] = {
        "ours": found["TargetLoadPacking"],
        "python": python,
        "go": go_loop(size, rounds=rounds),
    }
    return cluster, found, loops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[GOAL_NODES, 50_000])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--remembering", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, remembering=options.remembering)
        return
    found: dict[int, dict[str, float]] = {}
    loops: dict[int, dict[str, float | None]] = {}
    ahead: dict[int, dict[str, tuple[float, float]]] = {}
    for size in options.nodes:
        cluster, found[size], loops[size] = measure(size, rounds=options.rounds)
        if size == options.nodes[0]:
            taken = events(cluster, rounds=options.rounds)
            remembered = decision_table(cluster, rounds=options.rounds)
        ahead[size] = forecast_passes(cluster, rounds=options.rounds)
        found[size]["after a tick"] = after_a_tick(cluster)
    print(pass_table(found).markdown())
    print(forecast_table(ahead).markdown())
    print(loop_table(loops).markdown())
    print(event_table(options.nodes[0], taken).markdown())
    print(http_table(options.nodes[0], rounds=options.rounds).markdown())
    print(remembered.markdown(), end="")


if __name__ == "__main__":
    main()
