"""The benchmarks run: each prints its table at a tiny size. The numbers are not tested; a test machine is not a
quiet machine."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence

import pytest

from benchmarks.__main__ import DOCUMENT, QUICK, available, section, written
from benchmarks.report import Table, amount, at_least, at_most
from tests.real.kube import find_kube_program
from tests.real.parts import REPOSITORY

ALL = "LOAD_WATCHER_BENCHMARKS"
"""`all`: each benchmark (make bench-quick)."""
SHORT = {"provider", "qrm", "size"}
CELLS = re.compile(r"^\|.*\|$", re.MULTILINE)


def output_of(*arguments: str, timeout: float = 230.0) -> str:
    """The output of `python -m benchmarks …`, which must succeed."""
    if SHORT.isdisjoint(arguments) and os.environ.get(ALL) != "all":
        pytest.skip(f"takes seconds: make bench-quick, or {ALL}=all")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def rows(text: str) -> Sequence[str]:
    return CELLS.findall(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lines"),
    [("agent", 6), ("kube", 3), ("pods", 28), ("qrm", 10), ("scoring", 38), ("simulate", 9), ("size", 4)],
)
def test_a_benchmark_that_needs_only_python_prints_its_table(name: str, lines: int) -> None:
    """They run everywhere. Each is a separate test: on a busy machine one may take a minute."""
    assert len(rows(output_of("--quick", name))) == lines


@pytest.mark.slow
def test_the_benchmark_of_the_store_prints_the_size_of_a_day() -> None:
    assert "MB per 1,000 nodes and day" in output_of("--quick", "store")


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("dashboard", 7),
        ("engines", 6),
        ("extender", 8),
        ("nri", 3),
        ("provider", 4),
        ("report", 3),
        ("serving", 18),
        ("start", 10),
        ("tick", 14),
    ],
)
def test_a_benchmark_against_real_parts_prints_its_table(name: str, lines: int) -> None:
    """Each line of each table: a header, a rule, and results."""
    assert len(rows(output_of("--quick", name))) == lines


@pytest.mark.slow
@pytest.mark.real_apiserver
def test_the_benchmark_of_the_scheduler_prints_its_tables() -> None:
    """Two tables of four configurations. Without the programs, the test is skipped."""
    find_kube_program("kube-scheduler")
    assert len(rows(output_of("--quick", "scheduler"))) == 12


@pytest.mark.parametrize("name", available())
def test_a_benchmark_can_be_imported(name: str) -> None:
    """With all that it uses of the program; the types of both are checked by mypy."""
    assert callable(importlib.import_module(f"benchmarks.bench_{name}").main)


def test_each_benchmark_has_a_tiny_size_and_a_place_in_the_document() -> None:
    """Otherwise it is never run or read."""
    document = DOCUMENT.read_text()
    assert available() == sorted(QUICK)
    assert [name for name in available() if f"<!-- benchmark: {name} -->" not in document] == []


def test_tables_replace_the_text_between_the_markers() -> None:
    """Repeatedly, without other changes of the document."""
    before = "a\n<!-- benchmark: one -->\nold\n<!-- /benchmark -->\nb\n<!-- benchmark: two -->\n<!-- /benchmark -->\n"
    once = written(before, "one", r"new \1")
    expected = (
        "a\n<!-- benchmark: one -->\n\nnew \\1\n<!-- /benchmark -->\nb\n<!-- benchmark: two -->\n<!-- /benchmark -->\n"
    )
    assert once == expected
    assert written(once, "one", r"new \1") == once


def test_tables_in_the_document_have_short_rows() -> None:
    """The terminal gets aligned columns, the document no padding, and a unit of all cells in the header."""
    rows = ["| what | CPU     | time |      | goal |", "|------|--------:|-----:|-----:|------|"]
    rows += ["| a b  |  1 ms   |  1 s |  2 s | ≤ 3 s |", "| c    | 2.50 ms | 1 ms |    – |      |"]
    text = section("tick", [], "\n".join(["**T**", "", *rows, "", "a note | b", ""]))
    tight = ["|what|CPU, ms|time|s|goal|", "|---|---:|---:|---:|---|", "|a b|1|1 s|2|≤ 3 s|", "|c|2.50|1 ms|–||"]
    assert text.splitlines()[2:] == ["**T**", "", *tight, "", "a note | b"]


def test_text_that_is_not_a_table_is_fenced() -> None:
    """A document shows columns of plain text as they were printed."""
    assert "```text\nbytes 1\n```" in section("store", [], "bytes 1\n")
    assert "```" not in section("tick", ["--nodes", "5"], "**T**\n\n| a |\n|---|\n")


def test_a_table_states_whether_its_goals_were_reached() -> None:
    table = Table("T", ["what", "ratio", "goal"])
    table.add("quick", amount(12.34, "×"), at_least(12.34, 10))
    table.add("slow", amount(1234.5, "ms"), at_most(1234.5, 1000, "ms"))
    table.add("unknown", amount(None), at_least(None, 10))
    assert table.markdown().splitlines() == [
        "**T**",
        "",
        "| what    |    ratio |                  goal |",
        "|---------|---------:|----------------------:|",
        "| quick   |   12.3 × |        ≥ 10×: reached |",
        "| slow    | 1,234 ms | ≤ 1000 ms: **missed** |",
        "| unknown |        – |                 ≥ 10× |",
    ]
