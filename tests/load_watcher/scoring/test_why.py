"""`load-watcher why NAMESPACE/POD` against a running extender with a decision log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from load_watcher.main import main
from load_watcher.scoring.decisions import duration
from load_watcher.scoring.extender_client import service_time
from tests.fakes.service import Protection
from tests.scorers.decisions.test_log import NAMES, Served
from tests.scorers.simulated_cluster import NOW


@pytest.fixture
def served() -> Iterator[Served]:
    """A pod with two decisions, bound to the 14th node, and one that waits."""
    made = Served()
    with made.live:
        made.place(*NAMES)
        made.place(*NAMES, after=60)
        made.event(node="n01")
        made.clock.now = NOW + 600
        yield made


def why(served: Served, *arguments: str) -> Result:
    command = ["why", *arguments, "--url", f"http://127.0.0.1:{served.live.port}"]
    return CliRunner().invoke(main, command, prog_name="load-watcher", env={"COLUMNS": "250"})


def test_control_characters_in_names_are_escaped(served: Served) -> None:
    """Also those of a pod that only a forged request has."""
    name = "w\x1b[2Jeb\nx\x9b\u202e"
    served.place(*NAMES, pod=name)
    for arguments in (["default/" + name], ["default/" + name, "-o", "json"], ["default/no" + name]):
        result = why(served, *arguments)
        assert not set("\x1b\x9b\u202e") & set(result.output)
    lines = why(served, "default/" + name).stdout.splitlines()
    assert lines[0].startswith(r"default/w\x1b[2Jeb\x0ax\x9b\u202e, decided")
    assert json.loads(why(served, "default/" + name, "-o", "json").stdout)["pod"] == "default/" + name


def test_a_decision_is_printed_as_text(served: Served) -> None:
    """With the time, the pod, the load, the rejected nodes, the ranking with reasons, and the outcome."""
    result = why(served, "default/web")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "default/web, decided 2023-11-14T22:14:20Z, 9 min ago, by the profile p",
        "requests cpu 100m",
        "load from Test, over 15m, 72 s old at that time",
    ]
    reason = "node(s) had cpu load above the threshold with the pod"
    assert f"  HighLoadFilter rejected 1: {reason} (n00, cpu 97.5 %, above 90 %)" in lines
    assert "ranking of 14 nodes; recorded nodes:" in lines
    reported = [line.split() for line in lines if line.split()[:1] and line.split()[0].endswith(".")]
    assert [f"{rank}." for rank in (*range(1, 11), 14)] == [row[0] for row in reported]
    best, last = reported[0], reported[-1]
    assert ["n08", "92.8", "9", "72", "s"] == best[1:6]
    assert "TargetLoadPacking 98: would be at cpu 47.8 %" == " ".join(best[6:])
    (of_the_other,) = [lines[i + 1].split() for i, line in enumerate(lines) if "n08" in line and "TargetLoad" in line]
    assert of_the_other[:2] == ["LoadVariationRiskBalancing", "77:"]
    assert any(line.startswith("by TargetLoadPacking × 3, LoadVariationRiskBalancing") for line in lines)
    assert "n01" == last[1]
    assert "the pod was reserved on n08 until it was bound" in lines
    assert any(line.startswith("bound to n01 0.5 s later: ranked 14th of 14 nodes (score") for line in lines)
    assert "  2023-11-14T22:13:20Z  asked again" in lines
    assert "podDemand" not in result.stdout


def test_explain_prints_every_number(served: Served) -> None:
    """Also for the node that the pod is bound to."""
    result = why(served, "web", "--explain", "--others", "0")
    assert result.stdout.count("    podDemand: cpu 0.15 cores") == 11
    assert "    cpu load: 86.0 %" in result.stdout
    assert "other decisions" not in result.stdout


@pytest.mark.parametrize("at", ["2023-11-14T22:13:20Z", str(int(NOW)), "9.5m", "9 min 30 s ago"])
def test_at_selects_the_decision_before_a_time(served: Served, at: str) -> None:
    """A time as why prints it, unix seconds, or a duration before now."""
    result = why(served, "web", "--at", at)
    assert result.exit_code == 0, result.output
    assert "decided 2023-11-14T22:13:20Z, 10 min ago" in result.stdout
    assert (
        "not bound after this decision: kube-scheduler called the extender for it again 60.0 s later" in result.stdout
    )
    assert "  2023-11-14T22:14:20Z  bound to n01" in result.stdout


def test_json_output(served: Served) -> None:
    document = json.loads(why(served, "web", "-o", "json").stdout)
    assert document["decision"]["outcome"]["node"] == "n01"


def test_unusual_decisions_are_printed(served: Served) -> None:
    """Without load, with unknown nodes, or with a filter that rejects all nodes."""
    served.post("filter", {**_asking("n00"), "NodeNames": ["n00", "x", "y"]})
    served.table.set_load(None, now=NOW)
    served.post("prioritize", {**_asking("n00"), "NodeNames": ["n01", "x", "y"]})
    said = why(served, "odd").stdout
    assert "filter: 3 of 3 nodes passed, 2 of them unknown" in said
    assert "the pod was reserved" not in said.partition("ranking")[0]
    assert "ranking of 1 nodes, 2 of them unknown" in said
    assert "TargetLoadPacking had no load data; fallback: allocation" in said
    assert "no requests or limits" not in said


def _asking(name: str) -> dict[str, object]:
    container = {"name": "c", "resources": {"requests": {"memory": "1Gi", "nvidia.com/gpu": "2"}}}
    return {"Pod": {"metadata": {"name": "odd", "uid": "odd"}, "spec": {"containers": [container]}}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("missing",),
            "no decision about pod 'default/missing' found\n  the log has 2 decisions of the last 24 h; another",
        ),
        (("web", "--at", "soon"), "at='soon' is not a time\n  use unix seconds, a date like"),
        (("web", "--at", "1h ago"), "at or before this time\n  its first decision is from 2023-11-14T22:13:20Z"),
        (("a/b/c",), "must be NAMESPACE/POD or POD, for example shop/web, given 'a/b/c'"),
        (("web", "--url", "http://127.0.0.1:1"), "check that load-watcher runs at this address"),
    ],
)
def test_a_missing_decision_is_an_error_with_a_hint(served: Served, arguments: tuple[str, ...], said: str) -> None:
    """With exit code 2."""
    command = ["why", "--url", f"http://127.0.0.1:{served.live.port}", *arguments]
    result = CliRunner().invoke(main, command, prog_name="load-watcher")
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_token_is_sent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    made = Served(protection=Protection(token="s3cret"))
    with made.live:
        made.place(*NAMES)
        assert "a valid bearer token is required" in why(made, "web").stderr
        assert why(made, "web", "--token-file", str(tmp_path / "token")).exit_code == 0


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("10m", "-600.000s"),
        ("-10m", "-600.000s"),
        (" 10m ago ", "-600.000s"),
        ("5 minutes ago", "-300.000s"),
        ("1 Hour", "-3600.000s"),
        ("1h30m", "-5400.000s"),
        ("1 day 2 hours 3 min 4.5 sec ago", "-93784.500s"),
        ("2w", "-1209600.000s"),
        ("1700000000", "1700000000"),
        ("2023-11-14", "2023-11-14"),
        ("now", "now"),
        ("10 ago", "10 ago"),
        ("5mm", "5mm"),
        ("ago", "ago"),
    ],
)
def test_durations_before_now_are_read(said: str, asked: str) -> None:
    """The service reads or refuses other texts."""
    assert asked == service_time(said)


def test_durations_are_short() -> None:
    reported = {0.4: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 7200: "2 h", 86400: "24 h", 200_000: "2.31 d"}
    assert reported == {seconds: duration(seconds) for seconds in reported}
