"""`load-watcher report` with servers whose valid responses no Prometheus gives. The error describes the response, and
is never the text of a Python exception."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from load_watcher.main import main
from tests.fakes.prometheus import Asked, FakePrometheus, matrix, responded, result, vector

ROWS: tuple[Mapping[str, str], ...] = ({"zone": "a"}, {"zone": "b"})
Answer = Callable[[Asked], bytes]


def of_kind(asked: Asked) -> bytes:
    """Two rows for each query, also for topk(1, …), without any label that names a node."""
    if asked.path.endswith("query_range"):
        return matrix(*((row, [(float(asked.parameters["start"]), "0.5")]) for row in ROWS))
    return vector(*ROWS)


ANSWERS: dict[str, Answer] = {
    "more rows than asked for": of_kind,
    "no labels": lambda _: vector({}, {}),
    "a scalar": lambda _: responded('{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}'),
    "a string": lambda _: responded('{"status": "success", "data": {"resultType": "string", "result": [1, "x"]}}'),
    "rows without a metric": lambda _: result("vector", [{"value": [1.0, "1"]}]),
    "values that are not pairs": lambda _: result("vector", [{"metric": {"instance": "a"}, "value": [1.0, "1", "2"]}]),
    "a matrix for a vector": lambda _: matrix(({"instance": "a:9100"}, [(1.0, "1")])),
    "null": lambda _: responded('{"status": "success", "data": null}'),
}


@pytest.mark.slow
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_the_error_describes_an_unusual_response(answer: Answer, tmp_path: Path):
    with FakePrometheus(answer, state_metrics=True) as server:
        given = ["report", "--prometheus", server.url, "--file", str(tmp_path / "r.html"), "--timeout", "5s"]
        done = CliRunner().invoke(main, given, prog_name="load-watcher")
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert not re.search(r"unpack|object|NoneType|index|Error\b", done.output), done.output
