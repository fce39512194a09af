"""The dashboards: their contents, with the variables replaced as Grafana does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.real.parts import REPOSITORY

DASHBOARDS = {path.stem: path for path in sorted((REPOSITORY / "dashboards").glob("*.json"))}
INFINITY = "yesoreyeram-infinity-datasource"


@dataclass(frozen=True)
class Target:
    """One query of a panel. `place` is the panel's title and the query's letter."""

    place: str
    query: Mapping[str, Any]

    @property
    def is_promql(self) -> bool:
        return self.query["datasource"]["type"] == "prometheus"


def read(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DASHBOARDS[name].read_text())
    return document


def panels(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels with data, in collapsed rows too."""
    for panel in document["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def targets(name: str) -> list[Target]:
    return [
        Target(f"{panel['title']} {query['refId']}", query)
        for panel in panels(read(name))
        for query in panel["targets"]
    ]


def variables(name: str) -> dict[str, dict[str, Any]]:
    """The variables of a dashboard by name."""
    return {each["name"]: each for each in read(name)["templating"]["list"]}


def label_queries(name: str) -> dict[str, tuple[str, str]]:
    """The variables that Prometheus fills: the selector of the series and the label whose values they offer."""
    found = {}
    for key, variable in variables(name).items():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert asked is not None, variable
            found[key] = (asked[1], asked[2])
    return found


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """A query as Grafana sends it: $name, ${name} and ${name:format} are replaced, unknown ones stay."""

    def value(found: re.Match[str]) -> str:
        return values.get(found["plain"] or found["braced"], found[0])

    return re.sub(r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)(?::\w+)*\})", value, text)


def used_variables(document: Mapping[str, Any]) -> set[str]:
    """The variables of a dashboard, except Grafana's own."""
    text = json.dumps([document["panels"], document["templating"]])
    found = {plain or braced for plain, braced in re.findall(r"\$(?:(\w+)|\{(\w+))", text)}
    return {name for name in found if not name.startswith("__")}
