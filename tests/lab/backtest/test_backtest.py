"""`load-watcher forecast backtest`, as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from load_watcher.main import main
from tests.lab.backtest.traces import CAPACITY, DAY, vms, write_bitbrains, write_planetlab, write_recording

DAYS = 9
ROW = {
    *("predictor", "history_s", "horizon_s", "level"),
    *("violations", "mean_severity", "p99_severity", "savings"),
}


def backtest(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["forecast", "backtest", *map(str, arguments)], prog_name="load-watcher")


def results(*arguments: object) -> dict[str, Any]:
    result = backtest(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.fixture(name="trace", scope="module")
def _trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """The arguments for a trace of ten VMs."""
    path, sizes = write_bitbrains(tmp_path_factory.mktemp("trace"), vms(10, days=DAYS, seed=1), name="usage.csv.gz")
    return path, "--layout", "bitbrains", "--vms", sizes, "--per-machine", 4, "--deals", 3


@pytest.mark.slow
def test_json_has_a_row_per_predictor_and_the_chosen_one(trace: tuple[object, ...]):
    found = results(*trace)
    assert all(row.keys() == ROW for row in found["rows"])
    assert found["chosen"].keys() == ROW | {"stated_coverage", "lowest_machine_coverage"}
    assert [(row["predictor"], row["history_s"], row["level"]) for row in found["rows"]] == [
        ("limits", None, None),
        ("mean", 900, None),
        ("mean_plus_sigma", 900, None),
        *(("maximum", history, None) for history in (900, 7200, 86400, 604800)),
        ("three_sigma", 86400, None),
        *(("quantile", 604800, level) for level in (0.5, 0.8, 0.9, 0.95)),
        ("oracle", None, None),
    ]
    assert (found["series"], found["usable"], found["machines"]) == (10, 10, 6)
    assert found["predictions"] == 6 * (1 + (2 * 24 - 6) // 2)


@pytest.mark.slow
def test_the_rows_agree_with_the_predictions(trace: tuple[object, ...], tmp_path: Path):
    """Violations, severity and savings, computed from the file of --predictions."""
    made = tmp_path / "predictions.csv"
    found = results(*trace, "--predictions", made)
    rows = list(csv.DictReader(made.read_text().splitlines()))
    capacity = 4 * CAPACITY
    for row in (*found["rows"], found["chosen"]):
        key = [str("" if row[name] is None else row[name]) for name in ("predictor", "history_s", "level")]
        pairs = [
            (float(each["bound"]), float(each["peak"]))
            for each in rows
            if [each["predictor"], each["history_s"], each["level"]] == key
        ]
        assert len(pairs) == found["predictions"]
        severities = [max(0.0, peak - bound) / peak for bound, peak in pairs]
        assert row["p99_severity"] == pytest.approx(float(np.quantile(severities, 0.99)), abs=1e-5)
        exceeded = sum(peak > bound + 1e-5 for bound, peak in pairs)
        assert row["violations"] == pytest.approx(exceeded / len(pairs), abs=1e-5)
        assert row["mean_severity"] == pytest.approx(sum(severities) / len(pairs), abs=1e-5)
        saved = [1.0 - min(bound, capacity) / capacity for bound, _ in pairs]
        assert row["savings"] == pytest.approx(sum(saved) / len(pairs), abs=1e-5)


@pytest.mark.slow
def test_the_chosen_predictor_states_its_coverage(trace: tuple[object, ...]):
    chosen = results(*trace, "--start", "8d")["chosen"]
    assert chosen["predictor"] == "calibrated_quantile"
    assert chosen["stated_coverage"] == pytest.approx(0.95, abs=0.05)
    assert chosen["lowest_machine_coverage"] <= 1.0 - chosen["violations"]


@pytest.mark.slow
def test_a_lower_level_saves_more(trace: tuple[object, ...]):
    low, high = (results(*trace, "--level", level)["chosen"] for level in (0.5, 0.99))
    assert low["savings"] > high["savings"]
    assert low["violations"] > high["violations"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes(trace: tuple[object, ...], tmp_path: Path):
    outputs: list[list[str]] = []
    files: list[list[bytes]] = []
    for name in ("a", "b"):
        paths = tmp_path / f"{name}.png", tmp_path / f"{name}.csv"
        arguments = (*trace, "--png", paths[0], "--predictions", paths[1])
        outputs.append([backtest(*arguments, "-o", output).stdout for output in ("text", "json", "csv")])
        files.append([path.read_bytes() for path in paths])
    assert outputs[0] == outputs[1]
    assert files[0] == files[1]
    assert files[0][0].startswith(b"\x89PNG")
    assert backtest(*trace, "--seed", 2, "-o", "json").stdout != outputs[0][1]


@pytest.mark.slow
def test_the_table_fits_a_terminal_and_ends_with_the_shipped_predictor(trace: tuple[object, ...]):
    result = backtest(*trace)
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-3].startswith("calibrated quantile")
    assert lines[-1].startswith("shipped predictor: coverage ")
    assert "predicting: 22 of 22 steps" in result.stderr


@pytest.mark.slow
def test_csv_has_the_chosen_predictor_last(trace: tuple[object, ...]):
    rows = list(csv.DictReader(backtest(*trace, "-o", "csv").stdout.splitlines()))
    assert rows[-1]["predictor"] == "calibrated_quantile"
    assert rows[0]["stated_coverage"] == ""
    assert float(rows[-1]["stated_coverage"]) > 0.5


@pytest.mark.slow
def test_plain_and_compressed_traces_give_the_same_result(tmp_path: Path):
    usage = vms(2, days=8, seed=5)
    found = []
    for name in ("plain.csv", "packed.csv.gz"):
        path, sizes = write_bitbrains(tmp_path, usage, name=name)
        found.append(results(path, "--layout", "bitbrains", "--vms", sizes, "--per-machine", 2))
    assert found[0] | {"trace": ""} == found[1] | {"trace": ""}


def test_idle_vms_and_vms_with_gaps_are_not_dealt(tmp_path: Path):
    usage = vms(4, days=8, seed=6)
    usage["3"] = [None if i % 4 == 0 else value for i, value in enumerate(usage["3"])]
    usage["4"] = [0.001 * CAPACITY] * len(usage["4"])
    path, sizes = write_bitbrains(tmp_path, usage)
    found = results(path, "--layout", "bitbrains", "--vms", sizes, "--per-machine", 2)
    assert (found["series"], found["usable"]) == (4, 2)


@pytest.mark.slow
def test_a_small_capacity_is_that_of_one_cpu(tmp_path: Path):
    """A capacity_mhz of up to 2,000 is that of one CPU, and is multiplied by the CPUs; the highest use is a lower
    limit."""
    usage = {"1": [3000.0] * 8 * DAY}
    path, sizes = write_bitbrains(tmp_path, usage)
    found = []
    for capacity in ("4,8000", "4,8001", "1,2500"):
        sizes.write_text(f"vm,cpus,capacity_mhz\n1,{capacity}\n")
        rows = results(path, "--layout", "bitbrains", "--vms", sizes, "--per-machine", 1)["rows"]
        found.append(next(row["savings"] for row in rows if row["predictor"] == "oracle"))
    assert found == pytest.approx([1 - 3000 / 32000, 1 - 3000 / 8001, 0.0], abs=1e-6)


def test_days_of_planetlab_are_separate(tmp_path: Path):
    """VMs of different days never share a machine. With two hours of history the maximum of these hours is the
    bound."""
    days = {
        "20110303": {str(i): [10 + (slot + i) % 7 for slot in range(DAY)] for i in range(3)},
        "20110306": {str(i): [50] * DAY for i in range(2)},
    }
    path, made = write_planetlab(tmp_path / "planetlab.csv", days), tmp_path / "predictions.csv"
    arguments = ("--history", "2h", "--start", "2h", "--per-machine", 2, "--deals", 2, "--predictions", made)
    found = results(path, "--layout", "planetlab", *arguments)
    assert (found["usable"], found["machines"]) == (5, 4)
    assert (found["chosen"]["predictor"], found["chosen"]["stated_coverage"]) == ("quantile", None)
    assert {row["history_s"] for row in found["rows"]} == {None, 900, 7200}
    rows = list(csv.DictReader(made.read_text().splitlines()))
    assert {row["peak"] for row in rows if row["machine"].startswith("20110306/")} == {"100.0"}
    assert {row["machine"] for row in rows} == {f"{day}/{deal}/1" for day in days for deal in (1, 2)}
    maxima = [row["bound"] for row in rows if (row["predictor"], row["history_s"]) == ("maximum", "7200")]
    assert maxima == [row["bound"] for row in rows if (row["predictor"], row["level"]) == ("quantile", "0.5")]


def test_nodes_of_a_recording_are_machines(tmp_path: Path):
    """A peak of one minute is the maximum of its slot; an idle node is not used."""
    minutes = 8 * 60
    nodes = {"a": [20.0] * minutes, "b": [40.0] * minutes, "idle": [0.1] * minutes}
    nodes["a"][7 * 60 + 33] = 70.0
    path, made = write_recording(tmp_path / "trace.csv.gz", nodes), tmp_path / "predictions.csv"
    arguments = ("--history", "2h", "--start", "2h", "--horizon", "1h", "--predictions", made)
    found = results(path, "--layout", "record", *arguments)
    assert (found["series"], found["machines"], found["predictions"]) == (3, 2, 6)
    rows = [row for row in csv.DictReader(made.read_text().splitlines()) if row["predictor"] == "oracle"]
    peaks = {(row["machine"], int(row["at_s"])): float(row["peak"]) for row in rows}
    assert peaks == {(name, at * 3600): value for name, value in (("a", 20.0), ("b", 40.0)) for at in (2, 4, 6)}
    late = ("--history", "1h", "--start", "7h", "--horizon", "1h", "--predictions", made)
    results(path, "--layout", "record", *late)
    rows = [row for row in csv.DictReader(made.read_text().splitlines()) if row["predictor"] == "oracle"]
    assert {row["machine"]: float(row["peak"]) for row in rows} == {"a": 70.0, "b": 40.0}
