"""The closed loop of benchmarks: traces from the load of VMs, and differences of the same trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.closed_loop import POLICIES, ClosedLoopOptions, as_csv, difference, read_runs, run
from benchmarks.vm_pods import BEGINS, vm_trace
from lab.backtest.layouts import read_bitbrains
from lab.traces.files import open_writer, read_trace
from lab.traces.records import PodRecord, Record, UsageRecord
from tests.lab.backtest.traces import vms, write_bitbrains


def made(folder: Path, *, seed: int = 1) -> list[Record]:
    grid = read_bitbrains(*write_bitbrains(folder, vms(3, days=4, seed=5)))
    return list(vm_trace(grid, nodes=2, seed=seed, days=2))


def test_pods_of_vms_are_a_trace_that_a_seed_determines(tmp_path: Path):
    records = made(tmp_path)
    with open_writer(tmp_path / "trace.csv") as writer:
        for record in records:
            writer.write(record)
    assert records == list(read_trace(tmp_path / "trace.csv"))
    assert records == made(tmp_path)
    assert records != made(tmp_path, seed=2)
    assert BEGINS + 2 * 86_400.0 == records[-1].time


def test_pods_request_about_the_mean_use_of_their_vm(tmp_path: Path):
    """And exceed it at times."""
    records = made(tmp_path)
    asked = {each.uid: each.cores for each in records if isinstance(each, PodRecord)}
    shares = [(each.cores or 0.0) / asked[each.uid] for each in records if isinstance(each, UsageRecord)]
    assert 0.9 < sum(shares) / len(shares) < 1.1
    assert max(shares) > 1.2


def test_a_difference_is_of_pairs():
    """-1, -2 and -3: mean -2, standard error 1 / sqrt(3), times 4.303."""
    found = difference([(10.0, 9.0), (20.0, 18.0), (30.0, 27.0)])
    assert (-2.0, 2.484, 0) == (found.mean, round(found.interval, 3), found.worse)
    assert 1 == difference([(1.0, 2.0), (2.0, 1.0)]).worse


def test_runs_are_continued_from_their_file(tmp_path: Path):
    found = run((1, ["Random", "Packing"]), ClosedLoopOptions("weekly", 2, 1, None))
    path = tmp_path / "runs.csv"
    path.write_text(as_csv(found[:1]) + as_csv(found[1:], header=False))
    assert found == read_runs(path)
    assert [] == read_runs(tmp_path / "missing.csv")


@pytest.mark.slow
def test_all_policies_run_on_the_same_trace():
    options = ClosedLoopOptions("weekly", 2, 1, None)
    found = run((1, POLICIES), options)
    assert list(POLICIES) == [each.policy for each in found]
    assert found == run((1, POLICIES), options)
