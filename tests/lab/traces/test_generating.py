"""Generated traces: reproducible by their seed, valid, and with the properties of their scenarios."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.traces.files import open_writer, read_trace
from lab.traces.generating import BEGINS, SCENARIOS, generate
from lab.traces.records import LoadRecord, NodeRecord, PodRecord, Record, UsageRecord

NODES, PODS, HOURS = 10, 120, 6.0


def made(scenario: str, seed: int = 1, *, nodes: int = NODES, pods: int = PODS) -> list[Record]:
    return list(generate(scenario, nodes=nodes, pods=pods, seed=seed, hours=HOURS))


def coming(records: list[Record]) -> list[PodRecord]:
    return [each for each in records if isinstance(each, PodRecord)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_trace_has_the_requested_nodes_pods_and_time(tmp_path: Path, scenario: str):
    records = made(scenario)
    with open_writer(tmp_path / "a.csv.gz") as writer:
        for record in records:
            writer.write(record)
    assert records == list(read_trace(tmp_path / "a.csv.gz"))
    pods, nodes = coming(records), [each for each in records if isinstance(each, NodeRecord)]
    assert (NODES, PODS) == (len(nodes), len(pods))
    assert (BEGINS, BEGINS + 3600.0 * HOURS) == (records[0].time, records[-1].time)
    assert {each.uid for each in pods} == {each.uid for each in records if isinstance(each, UsageRecord)}
    assert NODES * HOURS * 12 == sum(isinstance(each, LoadRecord) for each in records)


@pytest.mark.parametrize("hours", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_trace_that_is_shorter_than_the_initial_filling(tmp_path: Path, scenario: str, hours: float):
    records = list(generate(scenario, nodes=3, pods=40, seed=1, hours=hours))
    with open_writer(tmp_path / "a.csv") as writer:
        for record in records:
            writer.write(record)
    assert 40 == len(coming(records))
    assert BEGINS + 3600.0 * hours == records[-1].time


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_seed_gives_the_same_records(scenario: str):
    assert made(scenario) == made(scenario)
    assert made(scenario) != made(scenario, seed=2)


def test_the_pods_of_a_herd_start_within_a_minute():
    minutes = [int((each.time - BEGINS) // 60.0) for each in coming(made("herd")) if each.lifetime is not None]
    together = max(minutes.count(minute) + minutes.count(minute + 1) for minute in minutes)
    assert together >= 4  # of 48 in twelve herds


def test_overcommitted_pods_use_more_than_they_request():
    def share(scenario: str) -> float:
        records = made(scenario)
        asked = {each.uid: each.cores for each in coming(records)}
        used = [each for each in records if isinstance(each, UsageRecord) and asked[each.uid]]
        return sum((each.cores or 0.0) / asked[each.uid] for each in used) / len(used)

    assert share("overcommit") > 1.5 * share("daily")


def test_services_use_half_at_weekends():
    """The trace begins on a Tuesday, so its fifth day is a Saturday. Without the factor, days are equal."""
    records = list(generate("weekly", nodes=NODES, pods=PODS, seed=1, hours=168.0))
    jobs = {each.uid for each in coming(records) if each.owner.startswith("Job/")}
    used: dict[int, dict[str, float]] = {}
    for each in records:
        if isinstance(each, UsageRecord) and each.uid not in jobs:
            used.setdefault(int(each.time // 86_400.0), {}).setdefault(each.uid, each.cores or 0.0)
    friday, saturday = (used[int(BEGINS // 86_400.0) + day] for day in (3, 4))
    both = friday.keys() & saturday.keys()
    assert len(both) > 10
    assert 0.4 < sum(saturday[uid] for uid in both) / sum(friday[uid] for uid in both) < 0.6


@pytest.mark.parametrize(("nodes", "pods"), [(1, 0), (1, 1), (3, 2)])
def test_small_clusters_have_the_requested_pods(nodes: int, pods: int):
    for scenario in SCENARIOS:
        records = made(scenario, nodes=nodes, pods=pods)
        assert pods == len(coming(records))
