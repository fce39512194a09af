"""SignalFx over a real socket: GET /v1/timeserieswindow in the form of Splunk's API reference
(https://dev.splunk.com/observability/reference/api/retrieve_timeserieswindow/latest) and of the Go load-watcher's test,
GET /v2/metrictimeseries in the form of the latter, with pages.

It keeps points by time series and evaluates of the search language what load-watcher uses. It was never held against
the real service.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any

from tests.fakes.prometheus import Asked, FakePrometheus, Script, told

TOKEN = "an-access-token-0123456789"
RESOLUTIONS = (1000, 60000, 300000, 3600000)


class FakeSignalFx(FakePrometheus):
    """Answers what it was given by `put`; `fault` may answer in its place."""

    def __init__(self, *, largest_page: int = 10_000) -> None:
        super().__init__(self._answer)
        self.dimensions: dict[str, Mapping[str, str]] = {}
        self.points: dict[str, dict[float, float]] = {}
        self.largest_page = largest_page
        self.fault: Callable[[Asked], bytes | Script | None] = lambda _: None

    def put(self, name: str, dimensions: Mapping[str, str], times: Iterable[float], value: float) -> str:
        """The same value of a metric at these times (unix seconds); returns the id of the time series."""
        whole = {**dimensions, "sf_metric": name}
        number = next((key for key, known in self.dimensions.items() if known == whole), f"E{len(self.dimensions):03}A")
        self.dimensions[number] = whole
        self.points.setdefault(number, {}).update((time, value) for time in times)
        return number

    def _answer(self, asked: Asked) -> bytes | Script:
        instead = self.fault(asked)
        if instead is not None:
            return instead
        if asked.headers.get("x-sf-token") != TOKEN:
            return refused("Unauthorized", status=401)
        if asked.path not in ("/v1/timeserieswindow", "/v2/metrictimeseries"):
            return refused("HTTP 404 Not Found", status=404)
        found = [number for number, known in self.dimensions.items() if matches(known, asked.query)]
        if asked.path == "/v2/metrictimeseries":
            start = int(asked.parameters.get("offset", 0))
            page = found[start : start + min(int(asked.parameters.get("limit", 50)), self.largest_page)]
            return names(((number, self.dimensions[number]) for number in page), count=len(found))
        step = int(asked.parameters["resolution"])
        if step not in RESOLUTIONS:
            return refused("invalid resolution", status=400)
        begin, end = int(asked.parameters["startMs"]), int(asked.parameters["endMs"])
        return points({number: _rolled_up(self.points[number], step, begin, end) for number in found})


def _rolled_up(given: Mapping[float, float], step: int, begin: int, end: int) -> list[list[float]]:
    """Means of the buckets that begin between the two, unix milliseconds."""
    buckets: dict[int, list[float]] = {}
    for time, value in given.items():
        buckets.setdefault(step * math.floor(1000 * time / step), []).append(value)
    return [[time, fmean(values)] for time, values in sorted(buckets.items()) if begin <= time <= end]


def matches(dimensions: Mapping[str, str], query: str) -> bool:
    """Whether a time series fulfils `key:value AND …`, values with wildcards and perhaps in quotes."""
    pairs = (condition.partition(":")[::2] for condition in query.split(" AND "))
    return all(fnmatchcase(dimensions.get(key, ""), value.strip('"')) and dimensions.get(key) for key, value in pairs)


def points(data: Mapping[str, list[list[Any]]], *, errors: list[str] | None = None) -> bytes:
    """The answer with these points by id; times in unix milliseconds."""
    return told(json.dumps({"data": {key: rows for key, rows in data.items() if rows}, "errors": errors or []}))


def names(series: Iterable[tuple[str, Mapping[str, Any]]], *, count: int, partial: bool = False) -> bytes:
    """A page of what time series are."""
    results = [
        {
            "active": True,
            "created": 1614534848000,
            "creator": None,
            "dimensions": {**known, "sf_metric": None},
            "id": number,
            "lastUpdated": 0,
            "metric": known.get("sf_metric"),
        }
        for number, known in series
    ]
    return told(json.dumps({"count": count, "partialCount": partial, "results": results}))


def refused(message: str, *, status: int, headers: Mapping[str, str] | None = None) -> bytes:
    """An error as SignalFx has it."""
    return told(json.dumps({"code": status, "message": message}), status=status, headers=headers)
