"""Recordings as a source: the values of a trace or of a stored history, at any speed, with current times."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from lab.replay import ReplayProvider, TraceEnded
from lab.traces.files import open_writer
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
from tests.fetches import sections
from tests.service import Service
from tests.waiting import wait_for
from tests.watcher.store.ticks import CPU, FIVE, MEMORY, START, minute, opened, save, tick
from watcher.core.config.problems import SettingsError
from watcher.core.koordinator.report import Capacity
from watcher.model import Operator
from watcher.service.settings.loading import load
from watcher.sources.base import Fetch
from watcher.sources.errors import ProviderError, ProviderMalformed, ProviderUnreachable

NOW = 1_800_000_000.0  # a multiple of 15
T = 1_700_000_000.0
GIB = 2**30


def two_nodes() -> list[Record]:
    """An hour: n1 uses 1, then 4 of its 8 cores, n2 uses 10 of 20 GiB and has no CPU values."""
    records: list[Record] = [Begin(T, "a test"), NodeRecord(T, "n2", 4.0, 20 * GIB), NodeRecord(T, "n1", 8.0, 16 * GIB)]
    records.append(LoadRecord(T, "n2", None, 10 * GIB))
    records += [LoadRecord(T + 60 * i, "n1", 1.0 + 3.0 * i / 60, 4 * GIB) for i in range(60)]
    return [*records, EndRecord(T + 3600)]


def written(path: Path, records: Sequence[Record]) -> Path:
    with open_writer(path) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return written(tmp_path / "trace.csv.gz", two_nodes())


def asked(file: Path, *ranges: tuple[float, float], **options: Any) -> list[Fetch]:
    """The responses of a provider to successive fetches of these times."""

    async def run() -> list[Fetch]:
        provider = ReplayProvider(*sections(trace=file, **options))
        await provider.start()
        try:
            return [await provider.fetch(since, until) for since, until in ranges]
        finally:
            await provider.close()

    return asyncio.run(run())


def series(fetch: Fetch, node: str, key: str = "CPU") -> dict[float, float]:
    """Time -> value."""
    (batch,) = (batch for batch in fetch.batches if batch.metric.key == key)
    mine = batch.series == batch.nodes.index(node)
    return dict(zip(batch.time[mine].tolist(), batch.value[mine].tolist(), strict=True))


def at(records: Sequence[Record], key: str, *positions: float) -> list[list[float | None]]:
    """Values by node, in the order of the names."""
    found = pattern_of(records).at(key, np.array(positions))
    return [[None if np.isnan(value) else round(value, 6) for value in row] for row in found.tolist()]


# --- times and speed -------------------------------------------------------------------------------------------------


def test_samples_have_current_times_and_recorded_values(trace: Path) -> None:
    """The replay begins with the first fetch; one sample per slot, in percent of the capacity."""
    (fetch,) = asked(trace, (NOW, NOW), resolution=15)
    assert {NOW: 12.5} == series(fetch, "n1")
    assert {NOW: 50.0} == series(fetch, "n2", "Memory")
    assert {} == series(fetch, "n2")  # without a recorded value: not zero
    first, second = asked(trace, (NOW, NOW), (NOW, NOW + 60))
    assert [NOW + i * 15 for i in range(5)] == list(series(second, "n1"))
    assert series(second, "n1")[NOW + 60] == pytest.approx(100 * 1.05 / 8)
    assert first.plans == second.plans


@pytest.mark.parametrize("speed", [0.5, 1.0, 24.0])
def test_another_speed_changes_the_values_and_not_the_times(trace: Path, speed: float) -> None:
    _, fetch = asked(trace, (NOW, NOW), (NOW, NOW + 75), speed=speed)
    found = series(fetch, "n1")
    assert [NOW + i * 15 for i in range(6)] == list(found)
    for time, value in found.items():
        then = (time - NOW) * speed
        assert value == pytest.approx(100 * (1.0 + 3.0 * min(then, 59 * 60) / 3600) / 8)


def test_the_load_between_records_is_interpolated(trace: Path) -> None:
    """So that a node does not look frozen if the recording is coarser than the slots."""
    _, fetch = asked(trace, (NOW, NOW), (NOW, NOW + 600))
    assert 41 == len(set(series(fetch, "n1").values()))


# --- the end ---------------------------------------------------------------------------------------------------------


def test_at_its_end_the_replay_restarts_and_logs_it(trace: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It also continues before its begin, so windows are complete at once."""
    caplog.set_level(logging.INFO)
    _, before, after = asked(trace, (NOW, NOW), (NOW - 900, NOW - 15), (NOW + 3600, NOW + 3615))
    assert 60 == len(series(before, "n1"))
    assert series(before, "n1")[NOW - 900] == pytest.approx(100 * (1.0 + 3.0 * 0.75) / 8)
    assert {NOW + 3600: 12.5, NOW + 3615: pytest.approx(12.65625)} == series(after, "n1")
    reported = [record.message for record in caplog.records if "restarts" in record.message]
    assert [f"recording {trace} ended and restarts"] == reported


def test_with_at_end_stop_the_replay_ends(trace: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    _, before, last = asked(trace, (NOW, NOW), (NOW - 900, NOW - 15), (NOW + 3540, NOW + 3700), at_end="stop")
    assert {} == series(before, "n1")
    assert NOW + 3600 == max(series(last, "n1"))
    assert [f"recording {trace} ended"] == [r.message for r in caplog.records if "ended" in r.message]
    with pytest.raises(TraceEnded, match="ended 120 s ago") as raised:
        asked(trace, (NOW, NOW), (NOW + 3615, NOW + 3720), at_end="stop")
    assert "at_end" in raised.value.hint


# --- records of a trace ----------------------------------------------------------------------------------------------


def node(name: str = "n", at: float = T, **more: Any) -> NodeRecord:
    return NodeRecord(at, name, 10.0, 100, **more)


def test_a_node_has_its_load_and_that_of_its_pods() -> None:
    """While pods start, change their usage, end after their lifetime, move, and are removed; without usage they count
    with their requests. Steps here are further apart than the smoothing."""
    hour = 3600.0
    records: list[Record] = [
        *(node("a"), node("b"), LoadRecord(T, "a", 1.0, 10)),
        *(PodRecord(T, "u", "d/u", cores=2.0, bytes=20), BindRecord(T + hour, "u", "a")),
        UsageRecord(T + 2 * hour, "u", cores=0.5),
        *(PodRecord(T + 2 * hour, "v", "d/v", cores=3.0, bytes=5, lifetime=hour), BindRecord(T + 3 * hour, "v", "b")),
        BindRecord(T + 5 * hour, "u", "b"),
        RemoveRecord(T + 6 * hour, uid="u"),
        EndRecord(T + 8 * hour),
    ]
    moments = [hour / 2 + i * hour for i in range(8)]
    a, b = at(records, "CPU", *moments)
    assert [10.0, 30.0, 15.0, 15.0, 15.0, 10.0, 10.0, 10.0] == a
    assert [None, None, None, 30.0, None, 5.0, None, None] == b
    assert [10.0, 30.0, 30.0, 30.0, 30.0, 10.0, 10.0, 10.0] == at(records, "Memory", *moments)[0]


def test_a_removed_node_is_unknown_and_may_return() -> None:
    """With another capacity, and without the earlier load."""
    records: list[Record] = [
        *(node("a"), node("b"), LoadRecord(T, "a", 5.0, 50)),
        RemoveRecord(T + 3600, node="a"),
        NodeRecord(T + 7200, "a", 20.0, 100),
        LoadRecord(T + 9000, "a", 5.0, 50),
        EndRecord(T + 10800),
    ]
    assert [50.0, None, None, 25.0] == at(records, "CPU", 1800, 5400, 8000, 10000)[0]


def test_a_load_above_the_capacity_is_100_percent() -> None:
    assert [[100.0]] == at([node(), LoadRecord(T, "n", 11.0, 50), EndRecord(T + 60)], "CPU", 30.0)


def test_the_values_of_many_nodes_are_found_by_one_search() -> None:
    """Compared with a plain lookup."""
    chance = np.random.default_rng(3)
    names = [f"n{i:02d}" for i in range(12)]
    records: list[Record] = [node(name) for name in names]
    steps: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for time in sorted(chance.integers(0, 86400, 200).tolist()):
        name = names[int(chance.integers(0, 11))]  # the last one has none
        cores = float(chance.integers(1, 10))
        records.append(LoadRecord(T + time, name, cores, 1))
        steps[name] = [step for step in steps[name] if step[0] != time] + [(float(time), 10 * cores)]
    positions = chance.integers(0, 86400, 50).astype(float)
    found = pattern_of([*records, EndRecord(T + 86400)]).at("CPU", positions)
    for row, name in enumerate(names):
        for column, position in enumerate(positions.tolist()):
            before = [step for step in steps[name] if step[0] <= position]
            after = [step for step in steps[name] if step[0] > position]
            expected = before[-1][1] if before else np.nan
            if before and after and after[0][0] - before[-1][0] <= 600:
                (t0, v0), (t1, v1) = before[-1], after[0]
                expected = v0 + (v1 - v0) * (position - t0) / (t1 - t0)
            assert np.isclose(found[row, column], expected, equal_nan=True), (name, position)


async def test_capacities_of_nodes_are_those_of_the_trace(trace: Path) -> None:
    provider = ReplayProvider(*sections(trace=trace))
    assert {} == await provider.capacities()
    await provider.fetch(NOW, NOW)
    await provider.close()
    assert {"n1": Capacity(8000, 16 * GIB), "n2": Capacity(4000, 20 * GIB)} == dict(await provider.capacities())


# --- the history of a store ------------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Two hours, of which the first is compacted, with a gap of ten minutes; node-b has CPU values only at times."""
    path = tmp_path / "load-watcher.db"
    columns = ((CPU, Operator.AVG), (CPU, Operator.STD), (MEMORY, Operator.AVG))

    async def fill() -> None:
        async with opened(path) as store:
            for i in range(80):
                if not 20 <= i < 30:
                    record = minute(i / 2, when=START + 60 * i, window=FIVE, columns=columns)
                    if i % 2:
                        record.values[0, 1] = np.nan
                    await save(store, tick(START + 60 * i, records=[record]))

    asyncio.run(fill())
    return path


@pytest.mark.slow
def test_the_history_of_a_store_is_replayed_with_its_gaps(history: Path) -> None:
    (_, fetch) = asked(history, (NOW, NOW), (NOW, NOW + 80 * 60 - 15))
    cpu = series(fetch, "node-a")
    for i in (0, 5, 19, 30, 61, 79):
        assert cpu[NOW + 60 * i] == pytest.approx(i / 2, abs=1e-4)
    assert cpu[NOW + 60 * 5 + 30] == pytest.approx(2.75, abs=1e-4)
    assert {NOW + 60 * 19 + 15 * i for i in range(11)} == {t for t in cpu if NOW + 60 * 19 <= t < NOW + 60 * 30}
    other = series(fetch, "node-b")
    assert NOW + 60 * 3 not in other
    assert NOW + 60 * 4 in other
    assert series(fetch, "node-c", "Memory")[NOW] == pytest.approx(0.375)
    plan = fetch.plans[CPU]
    assert (300.0, "percent") == (plan.smoothing_s, plan.unit)
    assert "the history of a load-watcher database: 1.333 h of 3 nodes" in plan.reason


@pytest.mark.slow
def test_at_a_higher_speed_shorter_times_are_averaged(history: Path) -> None:
    assert 30.0 == asked(history, (NOW, NOW), speed=10.0)[0].plans[CPU].smoothing_s


# --- errors ----------------------------------------------------------------------------------------------------------


def an_empty_store(path: Path) -> None:
    async def make() -> None:
        async with opened(path) as store:
            await save(store, tick(START, records=[]))

    asyncio.run(make())


def foreign(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE t (x)")
    database.close()


def cut_off(path: Path) -> None:
    written(path, two_nodes())
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("name", "make", "kind", "says"),
    [
        ("none.csv", lambda path: None, ProviderUnreachable, "No such file"),
        ("a.csv", lambda path: path.write_text("time,record\n1,nothing\n"), ProviderMalformed, "line 2, column record"),
        ("a.csv", lambda path: path.write_text("hello"), ProviderMalformed, "column hello"),
        ("a.csv.gz", lambda path: path.write_text("hello"), ProviderMalformed, "invalid gzip data"),
        ("a.csv.gz", cut_off, ProviderMalformed, "truncated"),
        ("a.csv", lambda path: written(path, [node()]), ProviderMalformed, "all records have the same time"),
        ("a.db", an_empty_store, ProviderMalformed, "no history yet"),
        ("a.db", foreign, ProviderMalformed, "a.db"),
        ("a.db", lambda path: path.write_bytes(b"SQLite format 3\0" + b"x" * 4096), ProviderMalformed, "a.db"),
    ],
    ids=["missing", "record", "header", "gzip", "cut", "moment", "empty", "foreign", "broken"],
)
def test_an_invalid_recording_is_an_error_with_its_place(
    tmp_path: Path, name: str, make: Any, kind: type[ProviderError], says: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(kind) as raised:
        asked(tmp_path / name, (NOW, NOW))
    assert says in str(raised.value)
    assert raised.value.hint
    assert "store.url" not in raised.value.hint  # the database of the service itself


async def test_a_repaired_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("nonsense")

    async def run() -> Fetch:
        provider = ReplayProvider(*sections(trace=path))
        await provider.start()
        with pytest.raises(ProviderMalformed):
            await provider.fetch(NOW, NOW)
        written(path, two_nodes())
        try:
            return await provider.fetch(NOW, NOW)
        finally:
            await provider.close()

    assert {NOW: 12.5} == series(await run(), "n1")


def problems(tmp_path: Path, **flags: str) -> list[tuple[str, str]]:
    given = {"provider.name": "replay", **{key.replace("__", "."): value for key, value in flags.items()}}
    with pytest.raises(SettingsError) as raised:
        load(flags=given, environ={}, file=None, cwd=tmp_path)
    return [(each.key, each.message) for each in raised.value.problems]


@pytest.mark.slow
def test_settings_that_cannot_be_replayed_are_errors(tmp_path: Path, history: Path) -> None:
    assert [("provider.trace", "is not set, and replay needs a recording")] == problems(tmp_path)
    (missing,) = problems(tmp_path, provider__trace=str(tmp_path / "none.csv"))
    assert "does not exist" in missing[1]
    (own,) = problems(tmp_path, provider__trace=str(history), store__url=f"sqlite:///{history}")
    assert "own database" in own[1]
    for key, value in (("speed", "0"), ("speed", "fast"), ("speed", "nan"), ("at_end", "explode")):
        (found,) = problems(tmp_path, provider__trace=str(history), **{f"provider__{key}": value})
        assert f"provider.{key}" == found[0]


# --- in a service ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_service_replays_with_complete_windows_and_doctor_names_the_recording(run_service: Any, trace: Path) -> None:
    """A day within an hour: in the API like any other source, under its own name."""
    service: Service = run_service("--provider", "replay", "--trace", str(trace), "--speed", "24")

    def average() -> dict[str, Any] | None:
        answer = service.get("/watcher")
        if answer.status != 200:
            return None
        document = answer.json()
        assert "Replay" == document["source"]
        metrics = document["data"]["NodeMetricsMap"]["n1"]["metrics"]
        of_cpu = [each for each in metrics if (each["type"], each["operator"]) == ("CPU", "AVG")]
        return next((each for each in of_cpu if each["rollup"] == "15m"), None)

    found = wait_for(average, what="the window of 15 minutes")
    assert found is not None
    assert 12.0 < found["value"] < 50.0
    reported = CliRunner().invoke(
        main, ["doctor", "--provider", "replay", "--trace", str(trace), "--store-url", "sqlite:///d.db"]
    )
    assert "a recording, not current data" in " ".join(reported.output.split()), reported.output
    assert 0 == service.stop()
    assert "Traceback" not in service.log()
