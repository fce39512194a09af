"""Paths that a user names as output: a device, a pipe and the standard output are written in place, a symbolic link is
followed, and a regular file is replaced as a whole."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.record.file import RecordingFile
from lab.report import command as report_command
from lab.traces.records import NodeRecord
from load_watcher.main import main
from tests.lab.backtest.traces import write_planetlab
from tests.lab.report.histories import history
from tests.lab.report.test_page import report_of
from tests.lab.simulate.small import GIB

DAY_SLOTS = 288


def run(*arguments: object) -> None:
    result = CliRunner().invoke(main, [*map(str, arguments)], prog_name="load-watcher")
    assert result.exit_code == 0, result.output


def generated(path: Path) -> None:
    run("simulate", "--generate", "daily", "--nodes", 2, "--pods", 3, "--hours", 0.1, "--file", path)


def series(path: Path) -> None:
    trace = path.with_name("trace.csv")
    generated(trace)
    run("simulate", trace, "--policy", "LeastAllocated", "--series", path)


def predictions(path: Path) -> None:
    rows = {"20110303": {str(i): [10 + (slot + i) % 7 for slot in range(DAY_SLOTS)] for i in range(2)}}
    trace = write_planetlab(path.with_name("planetlab.csv"), rows)
    given = ("--history", "2h", "--start", "2h", "--per-machine", 2, "--deals", 1)
    run("forecast", "backtest", trace, "--layout", "planetlab", *given, "--predictions", path)


def report(path: Path) -> None:
    report_command.write(report_of(history()), path, report_command.check_file(path))


def recorded(path: Path) -> None:
    with RecordingFile(path) as file:
        file.append([NodeRecord(60.0, "node-a", 8.0, GIB)])


Write = Callable[[Path], None]
WRITERS: dict[str, Write] = {
    "--file of simulate": generated,
    "--series of simulate": series,
    "--predictions of forecast backtest": predictions,
    "--file of report": report,
    "--file of record": recorded,
}
writers = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


@writers
def test_a_device_stays_a_device(write: Write, tmp_path: Path):
    null = tmp_path / "null"
    os.mknod(null, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    write(null)
    assert stat.S_ISCHR(null.stat().st_mode)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".unfinished", "null."))]


@writers
def test_a_pipe_is_written(write: Write, tmp_path: Path):
    pipe, read = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write(pipe)
    reader.join()
    write(tmp_path / "file")
    assert read == [(tmp_path / "file").read_bytes()]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@writers
@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_is_followed(write: Write, exists: bool, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link", tmp_path / "elsewhere" / "target"
    if exists and write is not recorded:  # which refuses an existing file
        target.write_text("old")
        target.chmod(0o640)
    link.symlink_to(target)
    write(link)
    assert link.is_symlink()
    assert target.stat().st_size > 10
    assert not exists or write is recorded or stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in target.parent.iterdir()) == ["target"]


def test_a_recording_replaces_no_file_behind_a_symbolic_link(tmp_path: Path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(FileExistsError):
        RecordingFile(tmp_path / "link")
    assert (tmp_path / "target").read_text() == "old"


@pytest.mark.slow
def test_a_dash_means_the_standard_output(tmp_path: Path):
    command = [sys.executable, "-m", "load_watcher", "simulate", "--generate", "daily", "--nodes", "2", "--pods", "3"]
    done = subprocess.run([*command, "--hours", "0.1", "--file", "-"], cwd=tmp_path, capture_output=True, check=True)
    generated(tmp_path / "file")
    assert done.stdout == (tmp_path / "file").read_bytes()
    assert b"records" in done.stderr
    assert ["file"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("verb", ["generated", "recorded"])
def test_a_redirected_descriptor_is_appended_to(path: str, verb: str, tmp_path: Path):
    """As with `--file /dev/stdout >> FILE`: the shell opened the file."""
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "file").write_bytes(b"old\n")
    script = "from pathlib import Path; from tests.lab import test_output_file as t; "
    script += f"t.{verb}(Path({str(tmp_path / path)!r}))"
    with (tmp_path / "file").open("ab") as file:
        subprocess.run([sys.executable, "-c", script], stdout=file, check=True)
    assert (tmp_path / "file").read_bytes().startswith(b"old\n")
    assert (tmp_path / "file").stat().st_size > 20
    assert ["file", "link"] == sorted(each.name for each in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--series", "-", "-o", "json"], "--series - and -o json"),
        (["--series", "-", "--html", "-"], "--series - and --html -"),
    ],
)
def test_two_results_cannot_both_be_written_to_the_standard_output(arguments: list[str], words: str, tmp_path: Path):
    generated(tmp_path / "trace.csv")
    result = CliRunner().invoke(main, ["simulate", str(tmp_path / "trace.csv"), *arguments])
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
