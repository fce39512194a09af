"""Flux without an InfluxDB 2.x: the real compiler, and a small engine of the tests behind it.

No server that runs Flux is available to the tests. So a query goes through libflux, the real compiler, which refuses
invalid ones. Valid ones are evaluated here as far as the provider's queries need it (from, range, filter, drop), over
points in line protocol, and answered as annotated CSV. The engine is an emulation: its results are compared with those
of a real InfluxDB 1.6 over the same points.
"""

import json
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from tests.fakes.influxdb import answered, csv, ping, question, table
from tests.fakes.prometheus import Asked, responded
from tests.real.parts import find_node_package

PACKAGE = "@influxdata/flux-lsp-node"
HELPER = """
const flux = require(process.argv[1]);
require('readline').createInterface({input: process.stdin}).on('line', (line) => {
  const text = JSON.parse(line);
  const valid = flux.is_valid_flux(text);
  const tree = flux.parse(text);
  console.log(JSON.stringify({valid, tree: typeof tree === 'string' ? JSON.parse(tree) : tree}));
});
"""


class FluxCompiler:
    """libflux in a node process, called line by line, from any thread."""

    def __init__(self) -> None:
        command = ["node", "-e", HELPER, str(find_node_package(PACKAGE))]
        self._one_at_a_time = threading.Lock()
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process as process:
            process.kill()

    def compile(self, text: str) -> dict[str, Any] | None:
        """The syntax tree of a query, None if it does not parse or its types do not match."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(text) + "\n")
            self._process.stdin.flush()
            outcome = json.loads(self._process.stdout.readline())
        tree: dict[str, Any] = outcome["tree"]
        return tree if outcome["valid"] else None


def calls_of(tree: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The pipe of the only expression of a query: each function's name and its arguments, as syntax trees."""
    (statement,) = tree["body"]
    found = []
    expression = statement["expression"]
    while expression["type"] == "PipeExpression":
        found.append(_call(expression["call"]))
        expression = expression["argument"]
    return [_call(expression), *reversed(found)]


def _call(tree: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    arguments = tree["arguments"][0]["properties"] if tree["arguments"] else []
    return tree["callee"]["name"], {each["key"]["name"]: each["value"] for each in arguments}


@dataclass
class FluxServer:
    """The responses of an InfluxDB 2.7 with one bucket, for FakeInfluxDB. `series` is (measurement, tags, field) ->
    (time in unix milliseconds, value)."""

    compiler: FluxCompiler
    bucket: str
    token: str
    series: dict[tuple[str, tuple[tuple[str, str], ...], str], list[tuple[int, str]]] = field(default_factory=dict)

    def write(self, lines: Iterable[str]) -> None:
        """Store points in line protocol, without escaped letters, with times in unix milliseconds."""
        for line in lines:
            head, fields, time = line.split(" ")
            measurement, *tags = head.split(",")
            named = tuple(tuple(tag.split("=", 1)) for tag in tags)
            for one in fields.split(","):
                name, value = one.split("=", 1)
                self.series.setdefault((measurement, named, name), []).append((int(time), value))  # type: ignore[arg-type]

    def __call__(self, asked: Asked) -> bytes:
        if asked.path == "/ping":
            return ping("v2.7.1")
        if asked.headers.get("authorization") != f"Token {self.token}":
            return responded('{"code":"unauthorized","message":"unauthorized access"}', status=401)
        tree = self.compiler.compile(question(asked))
        if tree is None:
            return responded('{"code":"invalid","message":"compilation failed"}', status=400)
        return self._evaluate(calls_of(tree))

    def _evaluate(self, calls: list[tuple[str, dict[str, Any]]]) -> bytes:
        assert ["from", "range", "filter", "drop"] == [name for name, _ in calls], "no other functions are emulated"
        bucket, span, condition = calls[0][1]["bucket"]["value"], calls[1][1], calls[2][1]["fn"]["body"]
        if bucket != self.bucket:
            return responded(
                json.dumps({"code": "not found", "message": f'could not find bucket "{bucket}"'}), status=404
            )
        start, stop = (_milliseconds(span[name]["value"]) for name in ("start", "stop"))
        schemas: dict[tuple[tuple[str, ...], str], list[list[str]]] = {}
        for (measurement, tags, name), points in self.series.items():
            record = {"_measurement": measurement, "_field": name, **dict(tags)}
            inside = [(_rfc3339(time), value.removesuffix("i")) for time, value in points if start <= time < stop]
            if inside and _holds(condition, record):
                schema = (tuple(dict(tags)), "long" if points[0][1].endswith("i") else "double")
                tables = schemas.setdefault(schema, [])
                tables.append(table(len(tables), dict(tags), name, *inside))
        return answered(b"".join(csv(tags, *tables, kind=kind) for (tags, kind), tables in schemas.items()) or b"\r\n")


def _holds(tree: dict[str, Any], record: Mapping[str, str]) -> bool:
    if tree["type"] == "ParenExpression":
        return _holds(tree["expression"], record)
    if tree["type"] == "LogicalExpression":
        sides = (_holds(tree["left"], record), _holds(tree["right"], record))
        return all(sides) if tree["operator"] == "and" else any(sides)
    assert tree["type"] == "BinaryExpression", tree["type"]
    assert tree["left"]["type"] == "MemberExpression", tree["left"]["type"]
    member = tree["left"]["property"]
    found = record.get(member.get("name") or member.get("value"))
    if found is None:
        return False  # a comparison with a missing field is null, and null filters the row out
    same: bool = found == tree["right"]["value"]
    return same if tree["operator"] == "==" else not same


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(text: str) -> int:
    return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)


def _rfc3339(milliseconds: int) -> str:
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
