"""Datadog's timeseries query over a real socket, in the form of its API reference: POST /api/v2/query/timeseries
(https://docs.datadoghq.com/api/latest/metrics/query-timeseries-data-across-multiple-products/), rate limits
(https://docs.datadoghq.com/api/latest/rate-limits/) and errors ({"errors": ["Forbidden"]}).

It keeps points with tags, and evaluates of the query language what load-watcher uses: an aggregation over space, a
scope with wildcards, groups, and a rollup over time. It was never compared with the real service.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from tests.fakes.prometheus import Asked, FakePrometheus, Script, responded

API_KEY, APP_KEY = "an-api-key-0123456789", "an-app-key-0123456789"
QUERY = re.compile(
    r"(?P<over>avg|max|sum):(?P<name>[\w.]+)\{(?P<scope>[^}]*)\} by \{(?P<by>[^}]*)\}\.rollup\(avg, (?P<s>\d+)\)"
)

Points = dict[tuple[tuple[str, str], ...], dict[float, float]]


class FakeDatadog(FakePrometheus):
    """Responds with the points of `put`; `fault` may respond instead."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.metrics: dict[str, Points] = {}
        self.fault: Callable[[Asked], bytes | Script | None] = lambda _: None

    @property
    def queries(self) -> list[str]:
        """The received queries."""
        return [query["query"] for asked in self.asked for query in attributes(asked)["queries"]]

    def put(self, name: str, tags: Mapping[str, str], times: Iterable[float], value: float) -> None:
        """The same value of a metric at these times (unix seconds)."""
        points = self.metrics.setdefault(name, {}).setdefault(tuple(sorted(tags.items())), {})
        points.update((time, value) for time in times)

    def _answer(self, asked: Asked) -> bytes | Script:
        instead = self.fault(asked)
        if instead is not None:
            return instead
        if (asked.method, asked.path) != ("POST", "/api/v2/query/timeseries"):
            return refused("Not found", status=404)
        if (asked.headers.get("dd-api-key"), asked.headers.get("dd-application-key")) != (API_KEY, APP_KEY):
            return refused("Forbidden", status=403)
        wanted = attributes(asked)
        heads, rows = [], []
        step = wanted["interval"]
        times = list(range(step * math.ceil(wanted["from"] / step), wanted["to"] + 1, step))
        for number, query in enumerate(wanted["queries"]):
            match = QUERY.fullmatch(query["query"])
            if match is None or int(match["s"]) * 1000 != step:
                return refused(f"Error parsing query: unable to parse {query['query']}", status=400)
            for group, buckets in self._evaluate(match, step=step).items():
                row = [buckets.get(time) for time in times]
                if any(value is not None for value in row):
                    heads.append({"group_tags": [f"{k}:{v}" for k, v in group], "query_index": number, "unit": None})
                    rows.append(row)
        return answered(heads, times, rows)

    def _evaluate(self, query: re.Match[str], *, step: int) -> dict[tuple[tuple[str, str], ...], dict[int, float]]:
        """The mean of a bucket for each group, first over time and then over the series."""
        by = query["by"].split(",")
        together: dict[tuple[tuple[str, str], ...], dict[int, list[float]]] = {}
        for tags, points in self.metrics.get(query["name"], {}).items():
            named = dict(tags)
            if not all(in_scope(named, each) for each in query["scope"].split(",")):
                continue
            group = tuple((key, named.get(key, "N/A")) for key in by)
            buckets: dict[int, list[float]] = {}
            for time, value in points.items():
                buckets.setdefault(step * math.floor(time * 1000 / step), []).append(value)
            for time_ms, values in buckets.items():
                together.setdefault(group, {}).setdefault(time_ms, []).append(fmean(values))
        aggregations: dict[str, Callable[[list[float]], float]] = {"avg": fmean, "max": max, "sum": sum}
        over = aggregations[query["over"]]
        return {group: {time: over(values) for time, values in buckets.items()} for group, buckets in together.items()}


def in_scope(tags: Mapping[str, str], condition: str) -> bool:
    """Whether tags fulfil `*` or `key:value`, the value with wildcards."""
    key, colon, value = condition.partition(":")
    return fnmatchcase(tags.get(key, ""), value) if colon else condition == "*"


def attributes(asked: Asked) -> Any:
    """What is asked."""
    return json.loads(asked.body)["data"]["attributes"]


def answered(heads: list[dict[str, Any]], times: list[int], rows: list[list[Any]]) -> bytes:
    """The response with these series; times in unix milliseconds."""
    content = {"series": heads, "times": times, "values": rows}
    return responded(json.dumps({"data": {"id": "0", "type": "timeseries_response", "attributes": content}}))


def refused(*errors: str, status: int, headers: Mapping[str, str] | None = None) -> bytes:
    """An error in the format of Datadog."""
    return responded(json.dumps({"errors": list(errors)}), status=status, headers=headers)
