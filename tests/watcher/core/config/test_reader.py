"""Mappings read into dataclasses and structs, with every problem in them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec
import pytest

from watcher.core.config import values
from watcher.core.config.fields import Field
from watcher.core.config.reader import Report, accepted, read


class Problems(Report):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def _add(self, text: str) -> None:
        self.texts.append(f"{'.'.join(map(str, self.path))}: {text}")

    def unknown(self, name: str, known: Collection[str]) -> None:
        self._add(f"unknown, known are {', '.join(known)}")

    def missing(self, field: Field) -> None:
        self._add("missing")

    def unfit(self, accepts: str, given: Any, detail: str = "", field: Field | None = None) -> None:
        self._add(f"must be {accepts}, given {given!r}")

    def twice(self, name: str) -> None:
        self._add(f"given twice as {name}")

    def notice(self, message: str) -> None:
        self._add(f"notice: {message}")


class Inner(msgspec.Struct, frozen=True):
    size: Annotated[int, msgspec.Meta(ge=1)]
    labels: dict[str, Literal["a", "b"]] = {}


@dataclass(frozen=True)
class Outer:
    name: Annotated[str, values.TEXT] = "unnamed"
    shares: Mapping[str, Annotated[float, msgspec.Meta(gt=0, le=1)]] = field(default_factory=dict)


class Root(msgspec.Struct, frozen=True):
    inner: Inner | None = None
    inners: Annotated[tuple[Inner, ...], msgspec.Meta(min_length=1)] = ()
    quantity: str | int | float = 0
    flag: bool = False


def problems(kind: type, given: object) -> tuple[Any, list[str]]:
    report = Problems()
    return read(kind, given, report), report.texts


def test_valid_values_are_read():
    given: dict[str, Any] = {
        "inner": {"size": 2, "labels": {"x": "a"}},
        "inners": [{"size": 1}],
        "quantity": "3Gi",
        "flag": True,
    }
    assert problems(Root, given) == (Root(Inner(2, {"x": "a"}), (Inner(1),), "3Gi", True), [])
    assert problems(Outer, {"name": "web", "shares": {"x": 1}}) == (Outer("web", {"x": 1.0}), [])


def test_every_problem_is_reported_and_the_rest_is_read():
    given: dict[str, Any] = {
        "inner": {"size": 0, "labels": {"x": "c", "y": "b", 1: "a"}, "color": "red"},
        "inners": [],
        "quantity": None,
        "flag": "yes",
    }
    found, texts = problems(Root, given)
    assert found == Root()
    assert texts == [
        "inner.size: must be a whole number of at least 1, given 0",
        "inner.labels.x: must be a or b, given 'c'",
        "inner.labels.1: must be text, given 1",
        "inner.color: unknown, known are size, labels",
        "inners: must be a list of at least 1, given []",
        "flag: must be true or false, given 'yes'",
    ]
    assert problems(Root, {"inner": {"labels": {}}}) == (Root(), ["inner.size: missing"])
    assert problems(Outer, {"shares": {"x": 0.5, "y": 0}}) == (
        Outer(shares={"x": 0.5}),
        ["shares.y: must be a number above 0 and of at most 1, given 0"],
    )
    assert problems(Root, {"inners": {"size": 1}})[1] == ["inners: must be a list of at least 1, given {'size': 1}"]


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (str, "text"),
        (bool, "true or false"),
        (Literal["", "Always", "Never"], "Always or Never"),
        (Annotated[int, msgspec.Meta(ge=1, le=9)], "a whole number from 1 to 9"),
        (Annotated[int, msgspec.Meta(ge=1)], "a whole number of at least 1"),
        (Annotated[int, msgspec.Meta(le=9)], "a whole number of at most 9"),
        (Annotated[float, msgspec.Meta(gt=0, lt=1)], "a number above 0 and below 1"),
        (Annotated[str, msgspec.Meta(max_length=63)], "text of at most 63 characters"),
        (str | int | float, 'a quantity ("4500m", "3Gi", 80)'),
        (str | None, "text"),
        (str | Annotated[int, msgspec.Meta(ge=0)] | None, "text or a whole number of at least 0"),
    ],
    ids=str,
)
def test_the_values_that_a_type_accepts_are_described(hint: Any, text: str):
    assert text == accepted(hint)
