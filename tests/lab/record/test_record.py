"""Recording of a running service: which data become records, and that the file stays valid after any failure."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web
from click.testing import CliRunner

from lab.record.builder import TraceBuilder
from lab.record.file import RecordingFile
from lab.record.recorder import RecordError, Recording, RecordingProgress, record
from lab.traces.files import read_trace
from lab.traces.parsing import TraceError
from lab.traces.pattern import pattern_of
from lab.traces.records import (
    Begin,
    BindRecord,
    EndRecord,
    LoadRecord,
    NodeRecord,
    PodRecord,
    Record,
    RemoveRecord,
    UsageRecord,
)
from load_watcher.main import main
from tests.fakes.pods import publish_pods
from tests.fakes.service import FakeService, Live
from tests.fakes.snapshots import END, publish, snapshot_of, steady
from tests.service import Service
from tests.waiting import wait_for
from watcher.client import Columns, PodColumns
from watcher.core.pods.observed import ClusterSnapshot, SnapshotNode, SnapshotPod
from watcher.model import Operator
from watcher.platform.http.openapi import Operation, ResponseSpec
from watcher.platform.http.routing import Access, ApiError, Route

T = 1_700_000_000.0
GIB = 2**30
CPU, MEMORY = "instance:node_cpu:ratio", "instance:node_memory_utilisation:ratio"


def node(name: str = "a", *, cores: float = 10.0) -> SnapshotNode:
    return SnapshotNode(name, cores, 100, cores, 90)


def pod(name: str = "p", *, on: str = "a", bound: float = T - 100, **more: Any) -> SnapshotPod:
    defaults: dict[str, Any] = {"uid": f"u-{name}", "created": bound - 5, "cores": 2.0, "bytes": 20}
    return SnapshotPod(namespace="d", name=name, node=on, bound=bound, **(defaults | more))


def cluster(
    at: float, *, nodes: Sequence[SnapshotNode] = (node(),), pods: Sequence[SnapshotPod] = ()
) -> ClusterSnapshot:
    return ClusterSnapshot(at, list(nodes), list(pods))


def load(values: dict[str, tuple[float, float]], *, at: float) -> Columns:
    """CPU and memory in percent, by node."""
    names = tuple(values)
    columns = {
        (name, Operator.LATEST): np.array([each[i] for each in values.values()]) for i, name in enumerate((CPU, MEMORY))
    }
    return Columns(
        timestamp=int(at),
        window_end=int(at),
        source="Test",
        nodes=names,
        row={name: row for row, name in enumerate(names)},
        values=columns,
        rollup={},
        types={CPU: "CPU", MEMORY: "Memory"},
        units={},
        sampled={name: np.full(len(names), at) for name in (CPU, MEMORY)},
        smoothing_s={},
        age_s=np.zeros(len(names)),
        received=0.0,
        age_at_receipt=0.0,
    )


def usage(values: dict[str, tuple[float, float]], *, at: float, on: str = "a") -> PodColumns:
    """Cores and bytes, by pod."""
    keys = tuple(("d", name) for name in values)
    return PodColumns(
        timestamp=int(at),
        source="Test",
        every_s=60.0,
        cores_span_s=0.0,
        memory_kind="rss",
        pods=keys,
        nodes=(on,) * len(keys),
        row={key: row for row, key in enumerate(keys)},
        on_node={},
        sampled=np.full(len(keys), at),
        cores=np.array([each[0] for each in values.values()]),
        memory=np.array([each[1] for each in values.values()]),
        average={},
        received=0.0,
        age_at_receipt=0.0,
    )


# --- records ---------------------------------------------------------------------------------------------------------


def test_the_first_poll_records_all_nodes_and_pods_and_their_usage() -> None:
    """The usage of a node beside its pods is the remainder; a pod without a known usage counts with its request."""
    changes = TraceBuilder("a test")
    seen = cluster(T, pods=[pod(cores_limit=4.0, owner="ReplicaSet/x", priority=7), pod("q", cores=1.0, bytes=10)])
    found = changes.add(seen, load({"a": (80.0, 50.0)}, at=T), usage({"p": (0.5, 5.0)}, at=T - 10))
    assert [
        Begin(T, "a test, samples from Test"),
        NodeRecord(T, "a", 10.0, 100, None, 90),
        PodRecord(T, "u-p", "d/p", 2.0, 20, 4.0, owner="ReplicaSet/x", priority=7),
        PodRecord(T, "u-q", "d/q", 1.0, 10),
        BindRecord(T, "u-p", "a"),
        BindRecord(T, "u-q", "a"),
        UsageRecord(T, "u-p", 0.5, 5),
        LoadRecord(T, "a", 6.5, 35),
    ] == found


def test_changes_between_two_polls_are_recorded_in_the_order_of_time() -> None:
    """With their own times if known: a new node precedes the pod that was bound to it."""
    changes = TraceBuilder("a test")
    changes.add(cluster(T, pods=[pod("old"), pod("moved")]), None, None)
    late = pod("late", on="b", bound=T + 30)
    waited = pod("waited", bound=T + 40, created=T - 500)
    seen = cluster(T + 60, nodes=[node(), node("b")], pods=[late, waited, pod("moved", on="b", bound=T + 50)])
    assert [
        PodRecord(T, "u-waited", "d/waited", 2.0, 20),
        PodRecord(T + 25, "u-late", "d/late", 2.0, 20),
        NodeRecord(T + 30, "b", 10.0, 100, None, 90),
        BindRecord(T + 30, "u-late", "b"),
        BindRecord(T + 40, "u-waited", "a"),
        BindRecord(T + 50, "u-moved", "b"),
        RemoveRecord(T + 60, uid="u-old"),
    ] == changes.add(seen, None, None)
    assert (2, 3, 3) == (changes.nodes, changes.pods, changes.bindings)
    gone = changes.add(cluster(T + 120, nodes=[node(cores=20.0)], pods=[waited]), None, None)
    assert NodeRecord(T + 120, "a", 20.0, 100, None, 90) == gone[0]
    assert RemoveRecord(T + 120, node="b") == gone[-1]


def test_repeated_and_unknown_values_are_not_recorded() -> None:
    """Neither the same sample twice, nor a zero for a node or a pod without a value."""
    changes = TraceBuilder("a test")
    seen = cluster(T, nodes=[node(), node("b")], pods=[pod()])
    first = load({"a": (50.0, float("nan")), "b": (float("nan"), float("nan"))}, at=T)
    found = changes.add(seen, first, usage({"p": (float("nan"), float("nan"))}, at=T))
    assert [LoadRecord(T, "a", 3.0, None)] == [each for each in found if isinstance(each, LoadRecord | UsageRecord)]
    later = ClusterSnapshot(T + 60, seen.nodes, seen.pods)
    assert [] == changes.add(later, first, usage({"p": (0.5, 5.0)}, at=T - 200))  # of another pod with this name
    assert [] == changes.add(ClusterSnapshot(T + 120, seen.nodes, seen.pods), None, None)
    again = changes.add(ClusterSnapshot(T + 180, seen.nodes, seen.pods), load({"a": (10.0, 10.0)}, at=T + 170), None)
    assert [LoadRecord(T + 180, "a", 0.0, 0)] == again  # less than its pods request, and never below zero


def test_a_pod_that_returns_has_another_uid_in_the_trace() -> None:
    changes = TraceBuilder("a test")
    records: list[Record] = []
    for i, pods in enumerate(([pod()], [], [pod()], [], [pod()])):
        records += changes.add(cluster(T + 60 * i, pods=pods), None, None)
    assert ["u-p", "u-p#2", "u-p#3"] == [each.uid for each in records if isinstance(each, PodRecord)]


def test_a_clock_that_is_set_back_leaves_a_sorted_trace() -> None:
    changes = TraceBuilder("a test")
    changes.add(cluster(T), None, None)
    assert [LoadRecord(T, "a", 5.0, 50)] == changes.add(cluster(T - 900), load({"a": (50.0, 50.0)}, at=T), None)


def test_any_sequence_of_polls_gives_a_valid_trace(tmp_path: Path) -> None:
    """Pods and nodes that appear, disappear, move and return, at random times in the past and the future."""
    chance = np.random.default_rng(11)
    changes, path = TraceBuilder("chance"), tmp_path / "a.csv.gz"
    with RecordingFile(path) as file:
        for i in range(120):
            now = T + 60 * i + float(chance.integers(-90, 90))
            nodes = [node(f"n{k}", cores=float(chance.integers(1, 3))) for k in range(6) if chance.random() < 0.8]
            pods = [
                pod(f"p{k}", on=f"n{chance.integers(0, 6)}", bound=now - float(chance.integers(-100, 500)))
                for k in range(30)
                if chance.random() < 0.7
            ]
            values = {each.name: (float(chance.integers(0, 100)), 40.0) for each in nodes}
            used = {each.name: (float(chance.random()), 10.0) for each in pods}
            seen = cluster(now, nodes=nodes, pods=pods)
            file.append(changes.add(seen, load(values, at=now), usage(used, at=now)))
    found = list(read_trace(path))
    assert file.records == len(found)
    assert changes.bindings > 100


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_file_is_readable_after_each_append(tmp_path: Path, name: str) -> None:
    """While it is open, for example after a kill of its writer."""
    with RecordingFile(tmp_path / name) as file:
        for i in range(3):
            file.append([NodeRecord(T + i, f"n{i}", 1.0, 1)])
            assert [f"n{k}" for k in range(i + 1)] == [
                each.node for each in read_trace(tmp_path / name) if isinstance(each, NodeRecord)
            ]


def test_a_minute_that_does_not_fit_is_rolled_back(tmp_path: Path) -> None:
    """In a separate process with a limit on the size of files."""
    script = """
import resource, signal, sys
from pathlib import Path
from lab.record.file import RecordingFile
from lab.traces.records import NodeRecord
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with RecordingFile(Path("a.csv")) as file:
    file.append([NodeRecord(1.0, "n", 1.0, 1)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    try:
        file.append([NodeRecord(2.0, "m" * 50 + str(i), 1.0, 1) for i in range(1000)])
    except OSError as error:
        print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert ["n"] == [each.node for each in read_trace(tmp_path / "a.csv") if isinstance(each, NodeRecord)]


# --- recording a service ---------------------------------------------------------------------------------------------


class Recorded:
    """A service with a load and pods, whose cluster is set by the test; and its recording."""

    def __init__(self) -> None:
        self.time = END
        self.seen: ClusterSnapshot | int = ClusterSnapshot(END, [node("n0"), node("n1")], [])
        self.service = FakeService()
        operation = Operation("the cluster", {200: ResponseSpec("it", ClusterSnapshot)})
        route = Route("/scheduler/cluster", "scheduler_cluster", self._cluster, operation, access=Access.DETAIL)
        self.live = Live(self.service, routes=[route])
        self.progress: list[RecordingProgress] = []

    async def _cluster(self, _request: web.Request, _captured: Sequence[str]) -> web.Response:
        if isinstance(self.seen, int):
            raise ApiError(self.seen, "not_ready", "not now", "later")
        return web.Response(body=msgspec.json.encode(self.seen))

    def publish(self, after: float, **cpu: float) -> None:
        """A tick this many seconds later."""
        self.time = END + after
        self.seen = ClusterSnapshot(self.time, [node(name) for name in cpu], [])
        nodes = {name: {"CPU": steady(value - 1), "Memory": steady(40)} for name, value in cpu.items()}  # at its end
        self.service.published = publish(snapshot_of(nodes, end=self.time), tag=f"after-{after}")
        self.service.time = self.time + 1

    def record(self, path: Path, *steps: Callable[[], None]) -> RecordingProgress:
        """One poll, and one after each step."""
        rest = list(steps)
        recording = Recording(f"http://127.0.0.1:{self.live.port}", every=0.01)

        async def run() -> RecordingProgress:
            stop = asyncio.Event()

            def tell(progress: RecordingProgress) -> None:
                self.progress.append(progress)
                if rest:
                    rest.pop(0)()
                else:
                    stop.set()

            with RecordingFile(path) as file:
                return await record(recording, file, stop=stop, on_progress=tell)

        return asyncio.run(run())


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    made = Recorded()
    with made.live:
        yield made


def loads_in(path: Path) -> list[tuple[float, str, float | None]]:
    return [(each.time, each.node, each.cores) for each in read_trace(path) if isinstance(each, LoadRecord)]


def test_a_service_is_recorded_until_the_recorder_is_stopped(recorded: Recorded, tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    recorded.publish(0, n0=20.0, n1=30.0)
    recorded.service.pods = publish_pods({("default", "p"): ("n0", 0.25, 2.0**30)})
    done = recorded.record(path)
    records = list(read_trace(path))
    assert isinstance(records[0], Begin)
    assert "127.0.0.1" in records[0].note
    assert EndRecord(END) == records[-1]
    assert [(END, "n0", 2.0), (END, "n1", 3.0)] == loads_in(path)
    assert (1, 0, 2, len(records), "") == (done.polls, done.missed, done.nodes, done.records, done.trouble)


def test_an_unavailable_empty_or_stale_service_leaves_a_gap(recorded: Recorded, tmp_path: Path) -> None:
    """And no zeros: afterwards, new data are recorded. A service that starts does not know its nodes yet, which does
    not mean that they were removed."""
    path = tmp_path / "a.csv"
    recorded.publish(0, n0=20.0)

    def say(what: ClusterSnapshot | int) -> Callable[[], None]:
        return lambda: setattr(recorded, "seen", what)

    def without_load() -> None:
        recorded.publish(120, n0=50.0)
        recorded.service.published = None

    done = recorded.record(
        path, say(503), say(ClusterSnapshot(END + 60, [], [])), without_load, lambda: recorded.publish(300, n0=30.0)
    )
    assert [(END, "n0", 2.0), (END + 300, "n0", 3.0)] == loads_in(path)
    assert [] == [each for each in read_trace(path) if isinstance(each, RemoveRecord)]
    assert (5, 3) == (done.polls, done.missed)
    troubles = [each.trouble for each in recorded.progress]
    assert ["", ""] == [troubles[0], troubles[-1]]
    assert "returned status 503" in troubles[1]
    assert "has no nodes" in troubles[2]
    assert "no load" in troubles[3]


def test_pods_without_a_measurement_are_reported(recorded: Recorded, tmp_path: Path) -> None:
    recorded.publish(0, n0=20.0)
    recorded.service.no_pods = "the source has no usage of pods"
    done = recorded.record(tmp_path / "a.csv")
    assert "the source has no usage of pods" in done.usage


def test_a_service_that_cannot_be_recorded_is_an_error_at_once(recorded: Recorded, tmp_path: Path) -> None:
    for number, (seen, says) in enumerate(((404, "does not provide pods"), (401, "token"))):
        recorded.seen = seen
        with pytest.raises(RecordError, match=says):
            recorded.record(tmp_path / f"{number}.csv")
    recorded.live.port = 1
    with pytest.raises(RecordError, match="the connection failed: Connection refused"):
        recorded.record(tmp_path / "x.csv")


def test_later_failures_do_not_end_the_recording(recorded: Recorded, tmp_path: Path) -> None:
    """Also if the paths are not found, as while a service restarts."""
    recorded.publish(0, n0=20.0)

    def not_found() -> None:
        recorded.seen = 404

    done = recorded.record(tmp_path / "a.csv", not_found, lambda: recorded.publish(60, n0=30.0))
    assert (3, 1, "") == (done.polls, done.missed, done.trouble)
    assert 2 == len(loads_in(tmp_path / "a.csv"))


def test_invalid_arguments_of_the_command_are_errors(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")
    run = CliRunner()
    nobody = ["--url", "http://127.0.0.1:1"]
    reported = run.invoke(main, ["record", *nobody, "--file", str(there)])
    assert (2, "mine") == (reported.exit_code, there.read_text())
    assert "already exists" in reported.stderr
    reported = run.invoke(main, ["record", *nobody, "--file", str(tmp_path / "new.csv")])
    assert (2, False) == (reported.exit_code, (tmp_path / "new.csv").exists())
    assert "check that load-watcher is running at this address; --url URL selects another service" in reported.stderr
    reported = run.invoke(main, ["record", "--file", str(tmp_path / "no" / "a.csv")])
    assert 2 == reported.exit_code
    assert "check the path; nothing recorded" in reported.stderr
    assert 2 == run.invoke(main, ["record", "--file", str(tmp_path / "a.csv"), "--every", "0s"]).exit_code
    assert 2 == run.invoke(main, ["record", "--file", str(tmp_path / "a.csv"), "--for", "soon"]).exit_code


class Demo(Service):
    verb = "demo"


@pytest.mark.slow
def test_a_recording_of_the_demo_is_valid_after_a_kill_and_after_a_stop(running: Any, tmp_path: Path) -> None:
    """After a kill, it has the data up to then; after a stop, the recorder prints a summary; the file can be
    replayed."""
    demo = running(Demo(tmp_path / "demo", "--nodes", "6", "--interval", "1s", "--set", "refresh.resolution=1s"))
    demo.launch()
    demo.wait_ready()
    wait_for(lambda: demo.get("/scheduler/cluster").status == 200, what="the cluster")
    wait_for(lambda: demo.get("/watcher").status == 200, what="load")

    def recording(path: Path) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "load_watcher",
            "record",
            "--url",
            demo.url,
            "--file",
            str(path),
            "--every",
            "1s",
        ]
        environment = {**os.environ, **demo.environment()}
        return subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def has(path: Path, kind: type[Any], *, more_than: int = 0) -> bool:
        return (
            path.exists() and path.stat().st_size > 0 and sum(isinstance(r, kind) for r in read_trace(path)) > more_than
        )

    killed, stopped = tmp_path / "killed.csv.gz", tmp_path / "stopped.csv.gz"
    with recording(killed) as one, recording(stopped) as other:
        try:
            for path in (killed, stopped):
                # a poll may occur while a minute is written
                seen = partial(wait_for, ignoring=(TraceError,))
                seen(partial(has, path, LoadRecord, more_than=6), what="load in the file")
                seen(partial(has, path, UsageRecord), what="pods in the file")
            one.kill()
            other.send_signal(signal.SIGTERM)
            reported, warned = other.communicate(timeout=60)
        finally:
            one.kill()
            other.kill()
    assert 0 == other.returncode, warned
    assert "records in" in reported
    assert isinstance(list(read_trace(stopped))[-1], EndRecord)
    for path in (killed, stopped):
        pattern = pattern_of(read_trace(path))
        assert 6 == len(pattern.nodes)
        values = pattern.at("CPU", np.array([pattern.length_s]))
        assert np.all(values[~np.isnan(values)] > 0)
    document = json.loads(demo.get("/scheduler/cluster").body)
    assert 6 == len(document["nodes"])
    assert 0 == demo.stop()
    assert "Traceback" not in demo.log()
