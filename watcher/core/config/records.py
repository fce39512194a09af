"""Values that are tables themselves, like { selector = "app=agent", port = 80 }: dataclasses whose fields have kinds.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from watcher.core.config.fields import Field, Setting, fields_of
from watcher.core.config.reader import Report, made, readable
from watcher.core.config.values import InvalidValue, describe
from watcher.core.messages import nearest
from watcher.decoding.json_text import decode_json

RecordT = TypeVar("RecordT")


class _RecordReport(Report):
    """The problems of a record, as one text."""

    def __init__(self, called: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._called = called

    def unknown(self, name: str, known: Collection[str]) -> None:
        near = nearest(name, known)
        cure = f"did you mean {near}?" if near else f"known keys: {', '.join(known)}"
        self.texts.append(f"{self._called} has the unknown key {name!r}; {cure}")

    def missing(self, field: Field) -> None:
        self.texts.append(f"{self._called} has no {field.name}")

    def unfit(self, accepts: str, given: Any, detail: str = "", field: Field | None = None) -> None:
        said = detail or f"given {describe(given)}"
        self.texts.append(f"{self.path[0]} of {self._called} must be {accepts}; {said}")


def read_record(record: type[RecordT], given: Any, *, called: str) -> RecordT:
    """Return the record; `called` names it in messages. Raises InvalidValue with all problems."""
    if not isinstance(given, Mapping):
        raise InvalidValue
    report = _RecordReport(called)
    values = readable(record, given, report)
    if report.texts:
        raise InvalidValue("; ".join(report.texts))
    return made(record, values)


def text_of_json(read: Callable[[Any], Any]) -> Callable[[str], Any]:
    """Return the parser of the same value as JSON, for the environment and flags."""

    def read_text(text: str) -> Any:
        try:
            return read(decode_json(text))
        except ValueError as error:
            raise InvalidValue(str(error) if isinstance(error, InvalidValue) else f"invalid JSON: {error}") from None

    return read_text


def write_record(record: Any, **defaults: Any) -> str:
    """Format the fields that have other values than their defaults as a TOML table."""
    known = {name: each for name, each in fields_of(type(record)).items() if isinstance(each, Setting)}
    values = {name: getattr(record, name) for name in known}
    changed = (
        f"{name} = {known[name].kind.write(value)}"
        for name, value in values.items()
        if value != defaults.get(name, known[name].default)
    )
    return f"{{ {', '.join(changed)} }}"


def schema_of(record: type) -> dict[str, Any]:
    """Return the JSON schema of the table."""
    kinds = {name: each.kind for name, each in fields_of(record).items() if isinstance(each, Setting)}
    properties = {name: kind.schema for name, kind in kinds.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}
