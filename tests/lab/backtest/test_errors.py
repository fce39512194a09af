"""Errors of `load-watcher forecast backtest`: the problem, its place and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.backtest.test_backtest import backtest
from tests.lab.backtest.traces import BEGUN, DAY, vms, write_bitbrains, write_planetlab, write_recording

SIZES = "vm,cpus,capacity_mhz\n1,4,10000\n"


def bitbrains(folder: Path, usage: str, sizes: str = SIZES) -> str:
    """The error for these files."""
    (folder / "usage.csv").write_text(usage)
    (folder / "vms.csv").write_text(sizes)
    result = backtest(folder / "usage.csv", "--layout", "bitbrains", "--vms", folder / "vms.csv")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    return result.stderr.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ("", "usage.csv, line 1: missing column vm\n  the first line must name the columns vm, unix_s, cpu_mhz"),
        ("vm,unix_s,cpu_mhz\n", "usage.csv: no rows after the header"),
        ("vm,unix_s,vm,cpu_mhz\n", "usage.csv, line 1: duplicate column vm"),
        ("vm,unix_s,cpu_mhz\n1,300\n", "usage.csv, line 2: 2 values, but the header has 3 columns"),
        ("vm,unix_s,cpu_mhz\n1,300,x\n", "usage.csv, line 2, column cpu_mhz: 'x' is not a number"),
        ("vm,unix_s,cpu_mhz\n1,300,nan\n", "usage.csv, line 2, column cpu_mhz: 'nan' is out of range"),
        ("vm,unix_s,cpu_mhz\n1,300,-1\n", "column cpu_mhz: '-1' is out of range\n  use a number from 0 to"),
        ("vm,unix_s,cpu_mhz\n1,,1\n", "usage.csv, line 2, column unix_s: is empty"),
        ("vm,unix_s,cpu_mhz\n2,300,1\n", "line 2, column vm: VM 2 is not in vms.csv\n  add a row for it"),
        (f"vm,unix_s,cpu_mhz\n1,300,1\n1,{BEGUN},1\n", "line 3, column unix_s: more than 366 days from another row"),
        (f"vm,unix_s,cpu_mhz\n1,{BEGUN}000,1\n", "column unix_s: 1400000100000 is out of range\n  use unix seconds"),
        ('vm,unix_s,cpu_mhz\n"1,300,1\n', "usage.csv, line 2: invalid CSV"),
        (f"vm,unix_s,cpu_mhz\n{'9' * 200_000}", "usage.csv, line 2: longer than 100,000 characters"),
        (f"vm,unix_s,cpu_mhz\n1,{BEGUN},0\n", "the trace has 0 usable VMs of 1, too few for one machine"),
        (f"vm,unix_s,cpu_mhz\n1,{BEGUN},9\n", "the trace has 0 usable VMs of 1, too few for one machine"),
    ],
)
def test_an_invalid_usage_names_its_place(tmp_path: Path, usage: str, expected: str):
    assert expected in bitbrains(tmp_path, usage)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("vm,cpus\n", "vms.csv, line 1: missing column capacity_mhz"),
        ("vm,cpus,capacity_mhz\n", "vms.csv: no rows after the header"),
        ("vm,cpus,capacity_mhz\n1,0,9\n", "vms.csv, line 2, column cpus: '0' is out of range"),
        ("vm,cpus,capacity_mhz\n1,1,0\n", "vms.csv, line 2, column capacity_mhz: the capacity cannot be 0"),
        (f"{SIZES}1,4,10000\n", "vms.csv, line 3, column vm: VM 1 has a row already"),
    ],
)
def test_an_invalid_size_names_its_place(tmp_path: Path, sizes: str, expected: str):
    assert expected in bitbrains(tmp_path, "vm,unix_s,cpu_mhz\n1,300,1\n", sizes)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("1;2", "line 2, column cpu_percent_5min_x288: 2 values instead of 288"),
        (";".join(["1"] * 287 + ["x"]), "line 2, column cpu_percent_5min_x288: 'x' is not a number"),
    ],
)
def test_an_invalid_day_names_its_place(tmp_path: Path, values: str, expected: str):
    path = tmp_path / "day.csv"
    path.write_text(f"day,vm,cpu_percent_5min_x288\n20110303,0,{values}\n")
    result = backtest(path, "--layout", "planetlab")
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_a_day_is_too_short_for_a_week(tmp_path: Path):
    path = write_planetlab(tmp_path / "day.csv", {"20110303": {str(i): [30] * DAY for i in range(8)}})
    result = backtest(path, "--layout", "planetlab")
    assert result.exit_code == 2
    assert "the trace has 24.0 h; --start and --horizon need 168 h + 6 h\n  use a longer trace, or" in result.stderr


@pytest.mark.slow
def test_too_many_values_are_refused_before_they_need_memory(tmp_path: Path):
    path, sizes = write_bitbrains(tmp_path, vms(2, days=8, seed=1))
    result = backtest(path, "--layout", "bitbrains", "--vms", sizes, "--per-machine", 1, "--deals", 1000)
    wider = sizes.read_text() + "".join(f"x{i},1,3000,1\n" for i in range(9000))
    sizes.write_text(wider)
    refused = backtest(path, "--layout", "bitbrains", "--vms", sizes)
    assert (result.exit_code, refused.exit_code) == (0, 2)
    assert "9,002 series of 2,304 slots are 20,740,608 values, at most 20,000,000 are possible" in refused.stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda data: data[:-20], "the compressed file is truncated"),
        (lambda data: data[:10] + b"\xff" * 40, "invalid gzip data"),
        (lambda _: b"vm,unix_s,cpu_mhz\n\xff\xfe", "invalid UTF-8"),
    ],
)
def test_the_error_names_a_damaged_file(tmp_path: Path, change: Callable[[bytes], bytes], expected: str):
    path, sizes = write_bitbrains(tmp_path, vms(1, days=1, seed=1), name="usage.csv.gz")
    path.write_bytes(change(path.read_bytes()))
    result = backtest(path, "--layout", "bitbrains", "--vms", sizes)
    assert result.exit_code == 2
    assert f"{path}: {expected}" in result.stderr


def test_the_error_names_a_missing_file(tmp_path: Path):
    path = tmp_path / "none.csv"
    for layout, more in (("planetlab", ()), ("record", ()), ("bitbrains", ("--vms", path))):
        result = backtest(path, "--layout", layout, *more)
        assert result.exit_code == 2
        assert "none.csv" in result.stderr
        assert "No such file or directory" in result.stderr


def test_the_error_names_the_line_of_an_invalid_recording(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("time,record,node,cpu,memory\n1,node,a,x,1\n")
    result = backtest(path, "--layout", "record")
    assert result.exit_code == 2
    assert f"{path}, line 2, column cpu: 'x' is not a number" in result.stderr
    short = write_recording(tmp_path / "short.csv", {"a": [50.0]}, every=0)
    result = backtest(short, "--layout", "record")
    assert (result.exit_code, "all records have the same time" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--horizon", "90m"), "--horizon is 90 min\n  it must be whole hours, from 1h to 24h"),
        (("--horizon", "2d"), "--horizon is 2 d"),
        (("--history", "10m"), "--history is 10 min"),
        (("--history", "29d"), "--history is 29 d\n  it must be whole hours, from 1h to 28d"),
        (("--horizon", "24h", "--start", "24h"), "first bound\n  with this --history it must be at least 72h"),
        (("--start", "6h"), "--start is before the first bound\n  with this --history it must be at least 24h"),
        (("--level", "1"), "Invalid value for '--level'"),
        (("--level", "nan"), "Invalid value for '--level'"),
        (("--png", "/none/x.png"), "--png: directory /none does not exist"),
        (("--vms", "x.csv"), "--vms is only for the layout bitbrains, not planetlab"),
    ],
)
def test_the_error_names_an_invalid_option(tmp_path: Path, arguments: tuple[str, str], expected: str):
    path = write_planetlab(tmp_path / "day.csv", {"20110303": {"0": [30] * DAY}})
    result = backtest(path, "--layout", "planetlab", *arguments)
    assert (result.exit_code, expected in result.stderr) == (2, True), result.stderr


def test_no_output_overwrites_another_file(tmp_path: Path):
    path = write_planetlab(tmp_path / "day.csv", {"20110303": {"0": [30] * DAY}})
    result = backtest(path, "--layout", "planetlab", "--predictions", path)
    assert "would overwrite the trace" in result.stderr
    both = tmp_path / "x"
    result = backtest(path, "--layout", "planetlab", "--png", both, "--predictions", both)
    assert "would overwrite --png" in result.stderr
    assert backtest(path, "--layout", "bitbrains").stderr == (
        "load-watcher: the sizes of the VMs are missing\n  add --vms FILE\n"
    )
