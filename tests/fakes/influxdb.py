"""The query APIs of InfluxDB over a real socket, with responses set by a test, in the documented format.

No InfluxDB 2.x or 3.x is available to the tests, so responses to Flux come from here: annotated CSV as in InfluxDB's
documentation and its client's tests. For InfluxQL it has the responses that a real 1.6 does not give.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.prometheus import Asked, FakePrometheus, responded


def question(asked: Asked) -> str:
    """The query, in InfluxQL or Flux; "" without one."""
    found: str = json.loads(asked.body)["query"] if asked.body else asked.parameters.get("q", "")
    return found


class FakeInfluxDB(FakePrometheus):
    """Answers each request with the result of `answer`: bytes to send, or a script for the socket."""

    @property
    def queries(self) -> list[str]:
        """The received queries."""
        return [question(asked) for asked in self.asked]


def ping(version: str) -> bytes:
    """The response to /ping of a server of this version."""
    return b"HTTP/1.1 204 No Content\r\nX-Influxdb-Version: " + version.encode() + b"\r\n\r\n"


# --- InfluxQL --------------------------------------------------------------------------------------------------------


def series(tags: Mapping[str, str], columns: Sequence[str], *rows: Sequence[float | None], **more: Any) -> bytes:
    """One line of a chunked response: one series, times in unix milliseconds."""
    one = {"name": "m", "tags": dict(tags), "columns": ["time", *columns], "values": list(map(list, rows)), **more}
    return json.dumps({"results": [{"statement_id": 0, "series": [one]}]}).encode() + b"\n"


NOTHING = b'{"results":[{"statement_id":0}]}\n'


# --- Flux ------------------------------------------------------------------------------------------------------------


def table(number: int, tags: Mapping[str, str], field: str, *rows: tuple[str, float | str]) -> list[str]:
    """The rows of one table."""
    ends = ",".join([field, "m", *(_cell(value) for value in tags.values())])
    return [f",,{number},{time},{value},{ends}" for time, value in rows]


def _cell(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(letter in text for letter in ',"\r\n') else text


def csv(tags: Sequence[str], *tables: list[str], kind: str = "double") -> bytes:
    """Tables of one schema with their annotations, ended by an empty line like each schema."""
    names = ["_time", "_value", "_field", "_measurement", *tags]
    groups = ["false", "false", "true", "true", *("true" for _ in tags)]
    types = ["dateTime:RFC3339", kind, "string", "string", *("string" for _ in tags)]
    head = [
        "#datatype,string,long," + ",".join(types),
        "#group,false,false," + ",".join(groups),
        "#default,_result,,," + "," * (len(names) - 2),
        ",result,table," + ",".join(map(_cell, names)),
    ]
    return "".join(f"{row}\r\n" for row in [*head, *(row for one in tables for row in one), ""]).encode()


def error_table(message: str) -> bytes:
    """A query that failed after the status 200 was sent."""
    return (
        "#datatype,string,string\r\n#group,true,true\r\n#default,,\r\n,error,reference\r\n"
        + f",{_cell(message)},897\r\n"
    ).encode()


def answered(content: bytes, *, status: int = 200) -> bytes:
    """A complete response of Flux or InfluxQL."""
    return responded(content, status=status, headers={"Content-Type": "text/csv; charset=utf-8"})
