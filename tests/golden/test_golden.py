"""The outputs that users and programs depend on equal the captured ones: see capture.py. A change of an output changes
its file here in the same commit (`python -m tests.golden.capture GROUP`), or is one line in RENAMES."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.golden import capture
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

RENAMES = Path(__file__).with_name("RENAMES")


def renames() -> Iterator[tuple[str, str]]:
    """Pairs of old and new text."""
    for line in RENAMES.read_text("utf-8").splitlines():
        if line and not line.startswith("# "):
            old, _, new = line.partition(" -> ")
            yield old, new


def expected(group: str) -> dict[str, str]:
    names = capture.FILES[group]
    found = {}
    for path in sorted(capture.EXPECTED.rglob("*")):
        name = path.relative_to(capture.EXPECTED).as_posix()
        if path.is_file() and name.startswith(names):
            text = path.read_text("utf-8")
            for old, new in renames():
                text = text.replace(old, new)
            if name.endswith("/metrics.txt"):  # its lines are sorted
                text = "".join(sorted(text.splitlines(keepends=True)))
            found[name] = text
    return found


@pytest.mark.parametrize("group", capture.GROUPS)
def test_outputs_are_as_captured(group: str):
    found, wanted = capture.GROUPS[group](), expected(group)
    assert sorted(wanted) == sorted(found)
    for name, text in wanted.items():
        assert text == found[name], name


def test_a_database_of_the_release_before_opens(tmp_path: Path):
    """Its last windows are served without any source, and its history can be read."""
    directory = tmp_path / "w"
    directory.mkdir()
    (directory / "load-watcher.db").write_bytes(gzip.decompress(capture.DATABASE.read_bytes()))
    source = ["--provider", "prometheus", "--address", "http://127.0.0.1:9"]
    with capture.Frozen(directory, *source, "--set", "refresh.resolution=15s") as service:
        answer = wait_for(lambda: service.get("/watcher"), what="an answer")
        assert answer.status == 200, answer.text
        nodes = answer.json()["data"]["NodeMetricsMap"]
        assert sorted(nodes) == list(capture.NODES)
        captured = (capture.EXPECTED / "watcher" / "watcher.txt").read_text("utf-8")
        for node in nodes.values():
            for metric in node["metrics"]:
                assert f'"value": {metric["value"]}' in captured
        query = "host=node-1&type=CPU&operator=AVG&from=1767322000&to=1767323100&step=60"
        assert service.get(f"/api/v1/history?{query}").status == 200
