"""`load-watcher compare` between real servers, as a user runs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from load_watcher.main import main
from tests.fakes.service import FakeService, Live, Protection
from tests.fakes.snapshots import publish, small_fleet, snapshot_of, steady


def compare(ours: str, theirs: str, *more: str) -> Result:
    return CliRunner().invoke(main, ["compare", "--url", ours, "--with", theirs, *more], prog_name="load-watcher")


def serving(fleet: dict[str, dict[str, list[float]]]) -> Live:
    return Live(FakeService(published=publish(snapshot_of(fleet))))


def url(live: Live) -> str:
    return f"http://127.0.0.1:{live.port}"


def test_two_services_that_agree_have_exit_code_0() -> None:
    """Also within the tolerance."""
    fleet = small_fleet()
    with serving(fleet) as ours, serving({**fleet, "node-1": {**fleet["node-1"], "CPU": steady(29)}}) as theirs:
        result = compare(url(ours), url(theirs))
    assert result.exit_code == 0, result.output
    assert "no difference in 1 comparison" in result.stdout
    assert "3.00" in result.stdout


def test_two_services_that_differ_have_exit_code_1_and_a_report() -> None:
    """One lacks a node, and one chooses another node."""
    ours_fleet = {"node-1": {"CPU": steady(26)}, "node-2": {"CPU": steady(38)}}
    theirs_fleet = {"node-1": {"CPU": steady(38)}, "node-3": {"CPU": steady(38.5)}}
    with serving(ours_fleet) as ours, serving(theirs_fleet) as theirs:
        result = compare(url(ours), url(theirs))
        reported = json.loads(compare(url(ours), url(theirs), "-o", "json").stdout)
        lenient = compare(url(ours), url(theirs), "--tolerance", "50", "--target", "60")
    assert result.exit_code == 1
    assert "different: 1 node known only to this service: node-2" in result.stdout
    assert "different: CPU AVG of 1 node differs by more than 5 points: node-1" in result.stdout
    assert reported["same"] is False
    assert reported["only_theirs"] == ["node-3"]
    assert reported["winners"] == {"ours": ["node-2"], "theirs": ["node-3"], "in_common": 0}
    assert lenient.exit_code == 1
    assert "points: node-1" not in lenient.stdout


def test_each_of_several_comparisons_is_reported() -> None:
    """Progress on standard error, the result on standard output."""
    with serving(small_fleet()) as ours, serving(small_fleet()) as theirs:
        result = compare(url(ours), url(theirs), "--for", "1s", "--every", "250ms", "-o", "json")
    reported = json.loads(result.stdout)
    assert result.exit_code == 0
    assert reported["comparisons"] >= 1
    assert result.stderr.count("3 nodes known to both") == reported["comparisons"]


@pytest.mark.parametrize("service", [FakeService(published=None), FakeService(clock=2000.0)], ids=["404", "503"])
def test_an_error_of_a_service_is_exit_code_2(service: FakeService) -> None:
    """With its message, and with the service that it is from."""
    with Live(service) as theirs, serving(small_fleet()) as ours:
        result = compare(url(ours), url(theirs))
    assert result.exit_code == 2
    assert "the other" in result.stderr
    assert "keep their cached copy" in result.stderr
    assert result.stdout == ""


def test_an_unreachable_service_is_exit_code_2() -> None:
    """With its address and a hint."""
    with serving(small_fleet()) as ours:
        result = compare(url(ours), "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "http://127.0.0.1:1/watcher" in result.stderr
    assert "watcherAddress" in result.stderr


def test_the_token_is_sent_only_to_the_service_of_url(tmp_path) -> None:
    """--token-file is for --url."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    guarded = Live(protection=Protection(token="s3cret", protect_reads=True))
    with guarded as ours, serving(small_fleet()) as theirs:
        without = compare(url(ours), url(theirs))
        assert compare(url(ours), url(theirs), "--token-file", str(token)).exit_code == 0
        swapped = compare(url(theirs), url(ours), "--token-file", str(token))
    assert (without.exit_code, swapped.exit_code) == (2, 2)
    assert "401" in without.stderr
    assert "s3cret" not in without.output + swapped.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--for", "long"], "must be a duration"), (["--target", "100"], "--target"), (["--target", "0"], "--target")],
)
def test_invalid_arguments_are_exit_code_2(arguments: list[str], said: str) -> None:
    result = compare("http://127.0.0.1:1", "http://127.0.0.1:1", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
