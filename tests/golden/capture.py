"""Capture the outputs of load-watcher that users and programs depend on, with a fixed clock and fixed sources.

Each function returns texts by file name. `python -m tests.golden.capture` writes all of them into
tests/golden/expected; tests/golden/test_golden.py compares them.
Only public surfaces are used: commands, HTTP, sockets and files.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from tests.agent.policy.writing import a_rule, an_object, node_qos, text_of, write
from tests.agent.qrm.test_main import NICS, RESERVED, World, given, the_seeds_machine
from tests.agent.service.test_process import POD, UID, Machine
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.prometheus import Asked, FakePrometheus, matrix, vector
from tests.real.parts import REPOSITORY
from tests.service import Service
from tests.waiting import wait_for

# A database written by 88d85bf, the last commit before the packages had their new layout: each later version must open
# it.
DATABASE = Path(__file__).with_name("database-88d85bf.db.gz")
EXPECTED = Path(__file__).with_name("expected")
NOW = 1767323045
HISTORY_S = 915
"""The source has samples since then, so the backfill of maxima finds none at any time."""
FROZEN = {
    "FROZEN_UNIX_TIME": str(NOW),
    "PYTHONPATH": f"{Path(__file__).with_name('frozen')}{os.pathsep}{REPOSITORY}",
    "COLUMNS": "100",
    "TZ": "UTC",
}
NODES = ("node-1", "node-2", "node-3")
POD_MANIFEST = {
    "metadata": {"name": "web", "namespace": "shop", "uid": UID},
    "spec": {
        "containers": [
            {"name": "main", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1"}}}
        ]
    },
}

Texts = dict[str, str]


def run(*arguments: str, directory: Path | None = None, code: int = 0) -> str:
    """Standard output of a command with the frozen clock and without settings from the environment."""
    return run_python("-m", "load_watcher", *arguments, directory=directory, code=code)


def run_python(*arguments: str, directory: Path | None = None, code: int = 0) -> str:
    """The same of Python with these arguments."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LOAD_WATCHER_", "METRICS_"))}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**kept, **FROZEN}, cwd=directory, check=False
    )
    assert done.returncode == code, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pretty(body: bytes | str) -> str:
    return json.dumps(json.loads(body), indent=1, ensure_ascii=False) + "\n"


# --- commands --------------------------------------------------------------------------------------------------------


HELP_PAGES = """
import contextlib, io, json
from load_watcher.main import main

def pages(command, name):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        main([*name, "--help"], prog_name="load-watcher", standalone_mode=False)
    yield "-".join(name) or "load-watcher", text.getvalue()
    for below, each in sorted(getattr(command, "commands", {}).items()):
        if not each.hidden:
            yield from pages(each, (*name, below))

print(json.dumps(list(pages(main, ()))))
"""


def helps() -> Texts:
    """`--help` of each command, from one process."""
    pages: list[tuple[str, str]] = json.loads(run_python("-c", HELP_PAGES))
    return {f"help/{name}.txt": text for name, text in pages}


def settings() -> Texts:
    """The default settings as `config show` prints them, and the reference of all settings."""
    with tempfile.TemporaryDirectory() as directory:
        shown = run("config", "show", directory=Path(directory))
        example = run("config", "check", str(REPOSITORY / "load-watcher.example.toml"), directory=Path(directory))
    return {
        "config-show.txt": shown,
        "config-check-example.txt": example.replace(str(REPOSITORY), "REPOSITORY"),
        "settings.md": (REPOSITORY / "docs" / "reference" / "settings.md").read_text("utf-8"),
    }


def simulations() -> Texts:
    """A generated trace, and the results of two policies on it."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make = ["--generate", "daily", "--nodes", "8", "--pods", "60", "--hours", "2", "--seed", "7"]
        run("simulate", *make, "--file", "trace.csv", directory=directory)
        policies = ["--policy", "LeastAllocated", "--policy", "TargetLoadPacking"]
        table = run("simulate", "trace.csv", *policies, "--series", "series.csv", directory=directory)
        results = run("simulate", "trace.csv", *policies, "-o", "csv", directory=directory)
        return {
            "simulate/trace-head.csv": "".join((directory / "trace.csv").read_text().splitlines(keepends=True)[:400]),
            "simulate/table.txt": table,
            "simulate/results.csv": results,
            "simulate/series.csv": (directory / "series.csv").read_text(),
        }


# --- the service on a Prometheus -------------------------------------------------------------------------------------


def prometheus(asked: Asked) -> bytes:
    """Three nodes with CPU and memory, whose values depend on the time of the sample alone."""
    base = {"instance:node_cpu:ratio": 0.25, "instance:node_memory_utilisation:ratio": 0.5}
    found = next((value for name, value in base.items() if name in asked.query), None)
    if found is None or not asked.path.endswith(("/query", "/query_range")):
        return vector()
    selected = re.search(r"\[(\d+)s\]$", asked.query)
    if asked.path.endswith("/query") and not selected:
        return vector(*({"node": node} for node in NODES))
    if selected:
        end = float(asked.parameters["time"])
        start, step = end - int(selected[1]) + 1, 15.0
    else:
        start, end, step = (float(asked.parameters[key]) for key in ("start", "end", "step"))
    first = -(-max(start, NOW - HISTORY_S) // step) * step
    if first > end:
        return matrix()
    times = [first + step * index for index in range(int((end - first) // step) + 1)]
    return matrix(
        *(
            (
                {"node": node},
                [(when, f"{found + 0.1 * number + 0.01 * (int(when) // 15 % 7):.4f}") for when in times],
            )
            for number, node in enumerate(NODES)
        )
    )


class Frozen(Service):
    """A service whose wall clock does not move."""

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **FROZEN}


HISTORY = "/api/v1/history?host=node-1&type=CPU&operator=AVG&from=1767322000&to=1767323100&step=60"
WATCHER_PATHS = (
    "/watcher",
    "/watcher?window=5m",
    "/watcher?window=10m",
    "/watcher?shape=kep",
    "/watcher?host=node-2&host=node-3",
    "/watcher?type=CPU&operator=AVG",
    "/watcher?operator=Latest&operator=MAX&operator=P50&operator=P90&operator=P95&operator=P99",
    "/watcher/node-1",
    "/watcher/node-9",
    "/watcher?window=7m",
    "/watcher/health",
    "/watchers",
    "/api/v1/columns",
    "/api/v1/columns?window=5m&type=Memory&operator=STD",
    "/api/v1/pods",
    "/api/v1/nodemetrics",
    "/api/v1/nodemetrics/node-1",
    HISTORY,
    "/api/v1/findings",
    "/api/v1/silent",
    "/api/v1/overview",
    "/healthz",
    "/readyz",
    "/openapi.json",
)


def file_name(path: str) -> str:
    return re.sub(r"[^a-zA-Z0-9.]+", "-", path).strip("-")


def answer(service: Service, path: str) -> str:
    """Status, the headers that a client reads, and the body."""
    got = service.get(path, headers={"Accept-Encoding": "identity"})
    kept = [
        f"{key}: {got.headers[key]}" for key in ("Content-Type", "Cache-Control", "Allow", "ETag") if key in got.headers
    ]
    try:
        content = json.loads(got.body.decode())
        if "findings" in content:
            content["findings"].sort(key=lambda finding: (finding["kind"], finding["node"], finding["metric"]))
        body = pretty(json.dumps(content))
    except ValueError:
        body = got.text
    if path == "/openapi.json":  # its ETag is a hash of all its texts
        kept = [line for line in kept if not line.startswith("ETag")]
    # Measured with a clock that goes on.
    body = re.sub(r'("(?:age_s|uptime_s|seconds)": )[0-9.e-]+', r"\1AGE", body)
    # The write-ahead log of the database grows and is truncated at times that vary.
    body = re.sub(r'("size_bytes": )[0-9]+', r"\1BYTES", body)
    return "\n".join([f"{got.status}", *kept, "", body])


def metric_lines(text: str) -> str:
    """Names, types, help and labels of an exposition: values depend on the speed of the machine."""
    kept = (
        line if line.startswith("#") else re.sub(r"\} \S+$| [^ }]+$", lambda found: "}" * ("}" in found[0]), line)
        for line in text.splitlines()
    )
    # The number of requests for /readyz depends on the machine.
    of_others = ("python_", "process_", 'code="503"')
    return "\n".join(sorted({line for line in kept if not any(each in line for each in of_others)})) + "\n"


def is_whole(service: Service) -> bool:
    """Whether all nodes have CPU and memory, and the backfill is complete."""
    answered, ready = service.get("/watcher"), service.get("/readyz")
    return (
        answered.status == ready.status == 200
        and service.get("/api/v1/overview").json()["error"] is None
        and all(len(node["metrics"]) >= 4 for node in answered.json()["data"]["NodeMetricsMap"].values())
    )


def settled(ask: Callable[[], Any], times: int = 10) -> Callable[[], bool]:
    """Whether the last `times` responses were equal."""
    last: deque[Any] = deque(maxlen=times)

    def is_settled() -> bool:
        last.append(ask())
        return len(last) == times and all(each == last[0] for each in last)

    return is_settled


def watcher(keep_database: Path | None = None) -> Texts:
    """Every endpoint with its parameters and encodings, the metrics, and the database that remains."""
    found: Texts = {}
    with tempfile.TemporaryDirectory() as name, FakePrometheus(prometheus) as fake:
        directory = Path(name) / "w"
        arguments = ["--provider", "prometheus", "--address", f"http://127.0.0.1:{fake.port}"]
        with Frozen(directory, *arguments, "--set", "refresh.resolution=15s") as service:
            wait_for(lambda: is_whole(service), what="windows of 15 minutes")
            wait_for(lambda: '"points"' in service.get(HISTORY).text, what="a point in the database")
            for path in WATCHER_PATHS:
                found[f"watcher/{file_name(path)}.txt"] = answer(service, path)
            found["watcher/post.txt"] = answer_to(service, "/watcher", "POST")
            for encoding in ("gzip", "zstd"):
                accepts = {"Accept-Encoding": encoding}
                with service.session.get(f"{service.url}/watcher", headers=accepts, stream=True) as got:
                    found[f"watcher/encoding-{encoding}.txt"] = f"{got.status_code} {got.headers['Content-Encoding']}\n"
            found["watcher/metrics.txt"] = metric_lines(service.get("/metrics").text)
        found["database.txt"] = schema_of(directory / "load-watcher.db")
        if keep_database is not None:
            keep_database.write_bytes(gzip.compress((directory / "load-watcher.db").read_bytes(), mtime=0))
    return found


def schema_of(path: Path) -> str:
    """The statements that made the schema."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
        return "\n\n".join(f"-- {name}\n{sql}" for name, sql in rows) + "\n"


def answer_to(service: Service, path: str, method: str) -> str:
    got = service.get(path, method=method)
    return f"{got.status}\nAllow: {got.headers.get('Allow', '')}\n\n{got.text}\n"


# --- the extender, over the simulated cluster ------------------------------------------------------------------------


DEMO_PATHS = (
    "/scheduler/plugins",
    "/watcher",
    "/api/v1/findings",
    "/api/v1/nodemetrics",
    "/api/v1/pods",
    "/api/v1/history?host=general-a-01&type=CPU&operator=AVG&from=1767322000&to=1767323100&step=60",
)


class FrozenDemo(Frozen):
    verb = "demo"


def shape(value: Any) -> Any:
    """A document with types in place of values and the first entry of each list: the load at the time of a placement,
    and so the scores and their order, differ between runs."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    return value if value is None else type(value).__name__


def extender() -> Texts:
    """The answers of the extender for one pod, and the pages of the scheduling plug-ins."""
    found: Texts = {}
    with tempfile.TemporaryDirectory() as name:
        arguments = ["--nodes", "6"]
        with FrozenDemo(Path(name) / "d", *arguments) as service:
            wait_for(lambda: service.get("/readyz").status == 200, what="the demo to be ready")
            nodes = sorted(service.get("/watcher").json()["data"]["NodeMetricsMap"])
            body = {"pod": POD_MANIFEST, "nodenames": [*nodes, "unknown"]}
            explain = f"{service.url}/scheduler/default/explain"
            wait_for(lambda: service.session.post(explain, json=body).json()["load"], what="load at the plug-ins")
            # Pods that are placed at the start change the scores.
            placed = f"{service.url}/scheduler/placements?outcome=best"
            wait_for(lambda: service.session.get(placed).json()["placements"], what="the first pod to be placed")
            wait_for(settled(lambda: service.session.post(explain, json=body).json()), what="the scores to settle")
            for path in DEMO_PATHS:
                # A Pod object may arrive before or after the only publication, and with it these two fields.
                shown = re.sub(r',\s+"priority": "[^"]*",\s+"qos": "[^"]*"', "", answer(service, path))
                if path.startswith("/api/v1/history"):  # whose last digit depends on the form in which it is stored
                    shown = re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.2f}", shown)
                found[f"demo/{file_name(path)}.txt"] = shown
            for verb in ("filter", "prioritize", "explain"):
                got = service.session.post(f"{service.url}/scheduler/default/{verb}", json=body)
                found[f"demo/{verb}.txt"] = f"{got.status_code}\n\n{json.dumps(got.json(), indent=1, sort_keys=True)}\n"
            first = service.session.get(placed).json()["placements"][-1]["pod"]
            decision = service.get(f"/scheduler/decisions?pod={first['namespace']}/{first['name']}").json()
            found["demo/decision-shape.txt"] = f"{json.dumps(shape(decision), indent=1, sort_keys=True)}\n"
            for path in ("/scheduler/decisions?pod=shop/web", "/scheduler/decisions", "/scheduler/shadow?from=x"):
                # Nothing is recorded about a pod that the cluster does not have; other pods are placed meanwhile.
                shown = re.sub(r'the log has \d+|"(count|from|to)": [\d.]+', "OTHERS", answer(service, path))
                found[f"demo/{file_name(path)}.txt"] = shown
            found["demo/metrics.txt"] = metric_lines(service.get("/metrics").text)
    return found


# --- the agent and the QoS Resource Manager --------------------------------------------------------------------------


def agent() -> Texts:
    """`agent --once` with a rule on memory, one pod that may be evicted, and nothing that changes."""
    with tempfile.TemporaryDirectory() as name, FakeKubelet() as kubelet:
        directory = Path(name)
        machine = Machine(directory)
        machine.cgroups.add(machine.path, memory=10**9)
        kubelet.pods = [POD]
        rule = a_rule(
            actionName="evict", name="memory-high", metricRule={"name": "memory_total_usage", "value": "1000000000"}
        )
        evict = an_object("AvoidanceAction", "evict", eviction={"terminationGracePeriodSeconds": 30})
        best_effort = {"matchExpressions": [{"scopeName": "QOSClass", "operator": "In", "values": ["BestEffort"]}]}
        allowed = an_object("PodQOS", "be", allowedActions=["evict"], scopeSelector=best_effort)
        write(machine.policies, all=text_of(node_qos(rule), evict, allowed))
        settings = machine.settings(kubelet=kubelet.url)
        once = run("agent", "--once", *settings, directory=directory)
        check = run("agent", "--check", str(machine.policies), *settings, directory=directory)
        return {
            "agent/once.txt": once.replace(str(directory), "DIRECTORY"),
            "agent/check.txt": check.replace(str(directory), "DIRECTORY"),
        }


def qrm() -> Texts:
    """Two pods in dry-run mode: pages, the checkpoint, and the bytes of the pod-resources API."""
    with the_seeds_machine() as world:
        return _qrm(world)


def _qrm(world: World) -> Texts:

    from agent.qrm.grpc.protos import qrm_podresources_v1_pb2, qrm_podresources_v1_pb2_grpc

    world.pod("default/pod1", "11111111-0000-4000-8000-000000000000", "storage-service", cpu="10", memory="20Gi")
    names = ("default/pod1", "default/pod2")
    # gRPC measures its deadlines with the wall clock: the clock is not frozen here, and times are masked.
    with world.run(RESERVED, NICS, mode="dry-run", env={"PYTHONPATH": str(REPOSITORY)}) as qrm:
        wait_for(lambda: given(qrm).get(names[0]), what=names[0])
        world.pod(names[1], "22222222-0000-4000-8000-000000000000", "reranker", cpu="4", memory="2Gi")
        wait_for(lambda: given(qrm).get(names[1]), what=names[1])
        socket = qrm.directory / "load-watcher-qrm" / "pod-resources.sock"
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            listed = qrm_podresources_v1_pb2_grpc.PodResourcesListerStub(channel).List(
                qrm_podresources_v1_pb2.ListPodResourcesRequest()
            )
        checkpoint = qrm.directory / "load-watcher-qrm" / "kubelet_qrm_checkpoint"

        def masked(content: Any) -> str:
            text = pretty(json.dumps(content)).replace(str(world.directory), "DIRECTORY")
            text = re.sub(r'"(time|at|seconds|rounds|last_round|skipped_rounds)": [0-9.e+-]+', r'"\1": MASKED', text)
            return re.sub(r'"applied": \[[^]]*\]', '"applied": [MASKED]', text)  # of the last round

        return {
            "qrm/state.json": masked(qrm.state()),
            "qrm/explain.json": masked(qrm.explained()),
            "qrm/checkpoint.json": pretty(checkpoint.read_bytes()),
            "qrm/pod-resources.hex": listed.SerializeToString(deterministic=True).hex() + "\n",
            "qrm/metrics.txt": metric_lines(qrm.get("/metrics").text),
        }


GROUPS: dict[str, Callable[[], Texts]] = {
    "help": helps,
    "settings": settings,
    "simulate": simulations,
    "watcher": watcher,
    "extender": extender,
    "agent": agent,
    "qrm": qrm,
}

FILES: dict[str, tuple[str, ...]] = {
    "help": ("help/",),
    "settings": ("config-", "settings.md"),
    "simulate": ("simulate/",),
    "watcher": ("watcher/", "database.txt"),
    "extender": ("demo/",),
    "agent": ("agent/",),
    "qrm": ("qrm/",),
}
"""How the names of the files of each group begin."""


def write_all(directory: Path, groups: list[str]) -> None:
    for group in groups or GROUPS:
        for name, text in sorted(GROUPS[group]().items()):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")


def main() -> None:
    """Usage: python -m tests.golden.capture [GROUP…]: writes into tests/golden/expected."""
    write_all(EXPECTED, sys.argv[1:])


if __name__ == "__main__":
    main()
