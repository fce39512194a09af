"""`load-watcher simulate`, as a user runs it."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lab.traces.files import open_writer
from lab.traces.records import EndRecord
from load_watcher.main import main
from tests.lab.simulate.small import BEGUN, load, node, pod, usage

POLICIES = ("--policy", "LeastAllocated", "--policy", "TargetLoadPacking")


def simulate(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)], prog_name="load-watcher")


@pytest.fixture(name="trace", scope="module")
def _trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nodes, of which one is overloaded after ten minutes, and a pod that fits nowhere."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv.gz"
    with open_writer(path) as writer:
        for record in (node("a"), node("b"), pod("x", 20.0), pod("y"), usage("y", 2.0)):
            writer.write(record)
        writer.write(load("a", 8.0, at=600.0))
        writer.write(EndRecord(BEGUN + 1800.0))
    return path


@pytest.mark.slow
def test_policies_are_columns_of_a_table(trace: Path):
    result = simulate(trace, *POLICIES)
    assert 0 == result.exit_code, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["LeastAllocated", "20"] == lines[2][:2]
    assert ["TargetLoadPacking", "20"] == lines[3][:2]
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "simulating: 60 of 60 steps" in result.stderr


@pytest.mark.slow
def test_without_a_policy_the_default_ones_are_compared(trace: Path):
    assert 7 == len(simulate(trace).stdout.splitlines())


def test_results_per_minute_are_written_as_csv(trace: Path, tmp_path: Path):
    result = simulate(trace, *POLICIES, "--output", "csv", "--series", tmp_path / "s.csv")
    assert 0 == result.exit_code
    least, packing = csv.DictReader(result.stdout.splitlines())
    assert ("LeastAllocated", "2", "1") == (least["policy"], least["pods"], least["unschedulable"])
    assert "20" == packing["cpu_overload_node_minutes"]
    minutes = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    assert 60 == len(minutes)
    assert {"time": f"{BEGUN + 1740:.0f}", "overloaded_nodes": "1", "waiting_pods": "1"}.items() <= minutes[-1].items()


@pytest.mark.slow
def test_the_same_trace_and_seed_give_the_same_bytes_in_another_process(tmp_path: Path):
    """Also the trace itself."""
    made = []
    for run in ("first", "second"):
        here = tmp_path / run
        here.mkdir()
        for line in (
            "simulate --generate daily --nodes 3 --pods 20 --hours 0.5 --seed 7 --file trace.csv.gz",
            "simulate trace.csv.gz -o csv --series s.csv --png p.png --html h.html --policy MostAllocated",
        ):
            done = subprocess.run(
                [sys.executable, "-m", "load_watcher", *line.split()], check=True, cwd=here, stdout=subprocess.PIPE
            )
        made.append({path.name: path.read_bytes() for path in sorted(here.iterdir())} | {"printed": done.stdout})
    assert ["h.html", "p.png", "s.csv", "trace.csv.gz", "printed"] == list(made[0])
    assert made[0] == made[1]


class _Links(HTMLParser):
    """The external links of a page, and its pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []
        self.pictures: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = [value or "" for name, value in attrs if name in ("src", "href")]
        self.pictures += [tag] if tag == "svg" else []
        self.elsewhere += [each for each in found if not each.startswith(("data:", "#"))]


def test_results_as_json(trace: Path):
    result = simulate(trace, *POLICIES, "-o", "json")
    reported = json.loads(result.stdout)
    assert {
        "trace": "trace.csv.gz",
        "nodes": 2,
        "pods": 2,
        "minutes": 30,
        "refresh_s": 60.0,
    }.items() <= reported.items()
    assert ["LeastAllocated", "TargetLoadPacking"] == [each["policy"] for each in reported["policies"]]
    assert {20} == {each["cpu_overload_node_minutes"] for each in reported["policies"]}


def test_errors_as_json(tmp_path: Path):
    result = simulate(tmp_path / "none.csv", "-o", "json")
    assert (2, "") == (result.exit_code, result.stdout)
    error = json.loads(result.stderr.splitlines()[-1])["error"]
    assert "cannot be read: No such file" in error["message"]
    assert "hint" in error


@pytest.mark.slow
def test_a_page_is_one_file(trace: Path, tmp_path: Path):
    name = tmp_path / "<b>.csv.gz"
    name.write_bytes(trace.read_bytes())
    assert (
        0
        == simulate(
            name, *POLICIES, "--html", tmp_path / "h.html", "--png", tmp_path / "p.png", "--place-existing"
        ).exit_code
    )
    page, links = (tmp_path / "h.html").read_text(), _Links()
    links.feed(page)
    assert not links.elsewhere
    assert 1 == len(links.pictures)
    chart = page[page.index("<svg") : page.index("</svg>")]
    assert "currentColor" in chart  # readable on a dark background
    assert not re.search(r"#000000|#ffffff|DejaVu", chart)
    assert "LeastAllocated" in chart
    assert "are placed too" in page
    assert "&lt;b&gt;.csv.gz" in page
    assert "<b>" not in page
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_scenario_becomes_a_trace(tmp_path: Path):
    path = tmp_path / "t.csv"
    result = simulate("--generate", "herd", "--nodes", 3, "--pods", 20, "--hours", 1, "--file", path)
    assert 0 == result.exit_code, result.output
    count = len(path.read_text().splitlines()) - 1
    assert f"{count:,} records" in result.stdout
    assert [path] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "need exactly one of TRACE and --generate"),
        (["TRACE", "--generate", "daily"], "need exactly one of TRACE and --generate"),
        (["--generate", "daily"], "the file for the trace is missing: add --file FILE"),
        (["--generate", "dayly", "--file", "x.csv"], "known scenarios: steady, burst, daily, weekly, herd, overcommit"),
        (["--generate", "daily", "--file", "x.csv", "--policy", "LeastAllocated"], "create the trace first"),
        (["--generate", "daily", "--file", "x.csv", "--png", "x.png"], "create the trace first"),
        (["--generate", "daily", "--file", "none/x.csv"], "No such file or directory"),
        (["TRACE", "--file", "x.csv"], "--file is the trace that --generate creates"),
        (["--generate", "daily", "-o", "x.csv"], "to name a file, use --file x.csv"),
        (["--generate", "daily", "--file", "x.csv", "-o", "csv"], "-o csv is only for the results of a simulation"),
        (["TRACE", "--policy", "TargetLoadPackin"], "did you mean TargetLoadPacking?"),
        (["TRACE", "--policy", "LeastAllocated", "--policy", "LeastAllocated"], "is given twice"),
        (["TRACE", "--policy", "x.yaml"], "cannot be read"),
        (["TRACE", "--refresh", "90s"], "it must be whole minutes"),
        (["TRACE", "--refresh", "0s"], "it must be whole minutes"),
        (["TRACE", "--series", "none/a.csv"], "directory none does not exist"),
        (["TRACE", "--series", "TRACE"], "would overwrite the trace"),
        (["TRACE", "--png", "a.png", "--html", "./a.png"], "would overwrite --png"),
        (["none.csv"], "cannot be read: No such file"),
        (["bad.csv"], "bad.csv, line 3, column cpu: 'x' is not a number"),
        (["empty.csv"], "the trace is empty"),
        (["units.csv"], "units.csv covers 19,676 days"),
    ],
)
def test_an_error_has_a_remedy(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], what: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("time,record,node,cpu,memory\n5,node,n,1,1\n6,load,n,x,\n")
    (tmp_path / "units.csv").write_text("time,record,node,cpu,memory\n5,node,n,1,1\n1700000000,end,,,\n")
    (tmp_path / "empty.csv").write_text("time,record\n")
    before = sorted(tmp_path.iterdir())
    result = simulate(*(str(trace) if each == "TRACE" else each for each in arguments))
    assert 2 == result.exit_code, result.output
    assert what in result.stderr
    assert "Traceback" not in result.output
    assert before == sorted(tmp_path.iterdir())


@pytest.mark.slow
def test_without_matplotlib_pictures_are_an_error_before_the_simulation(trace: Path, tmp_path: Path):
    """All other output works without it."""
    hidden = "import sys; sys.modules['matplotlib'] = None; from load_watcher.main import main; main()"
    for more, code in ((["--png", "p.png"], 2), (["--series", "a.csv"], 0)):
        done = subprocess.run(
            [sys.executable, "-c", hidden, "simulate", str(trace), "--policy", "LeastAllocated", *more],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert code == done.returncode, done.stderr
        assert ("pip install '.[simulate]' in a clone" in done.stderr) == (code == 2)
    assert ["a.csv"] == [path.name for path in tmp_path.iterdir()]
