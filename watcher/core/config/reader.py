"""Read a mapping into a dataclass or struct, and report every problem in it, not only the first.

The mapping is walked along the fields. A leaf is read by the kind of value in the annotation of its field, or else by
msgspec. Values that cannot be read are omitted from the result, so that the default of the field applies.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from watcher.core.config.fields import Field, NoEffect, fields_of, kind_in
from watcher.core.config.values import InvalidValue, ValueKind

ReadT = TypeVar("ReadT")
_ABSENT: Any = object()
_QUANTITY = 'a quantity ("4500m", "3Gi", 80)'
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


class Report:
    """What a reader found. `path` leads to the current value: names of fields, and indices of lists. Each user words
    the problems for its place."""

    spellings: Mapping[str, str] = {}
    """Other spellings of fields, with the fields."""

    def __init__(self) -> None:
        self.path: tuple[str | int, ...] = ()

    @contextmanager
    def at(self, part: str | int) -> Iterator[None]:
        """Inside the context, problems and notices refer to this field or element."""
        outer = self.path
        self.path = (*outer, part)
        try:
            yield
        finally:
            self.path = outer

    def read(self, kind: ValueKind, given: Any) -> Any:
        """Return the value of a leaf. Raises InvalidValue."""
        return kind.read(given)

    def unknown(self, name: str, known: Collection[str]) -> None:
        """Report the field at the current place, which is not one of `known`."""
        raise NotImplementedError

    def missing(self, field: Field) -> None:
        """Report that the field at the current place is required."""
        raise NotImplementedError

    def unfit(self, accepts: str, given: Any, detail: str = "", field: Field | None = None) -> None:
        """Report a value that must be what `accepts` describes. `detail` says more about it, or is empty; `field` is
        the field that the whole value is for."""
        raise NotImplementedError

    def twice(self, name: str) -> None:
        """Report the field at the current place, which is another spelling of the given field `name`."""
        raise NotImplementedError

    def notice(self, message: str) -> None:
        """Report a likely mistake that does not make the mapping invalid."""
        raise NotImplementedError


def read(kind: type[ReadT], given: object, report: Report) -> ReadT:
    """`given` as a `kind` without required fields, without what cannot be read. Null counts as absent, as in
    Kubernetes."""
    return made(kind, {} if given is None else _readable_fields(kind, given, report) or {})


def readable(kind: type, given: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """Return the values of the fields that can be read, by the name in the mapping, for `made`."""
    return _readable_fields(kind, given, report) or {}


def made(kind: type[ReadT], values: Mapping[str, Any]) -> ReadT:
    """Return the dataclass or struct with these values of `readable`, which must have all required fields."""
    return kind(**values) if is_dataclass(kind) else msgspec.convert(values, kind)


def lacks(kind: type, values: Mapping[str, Any]) -> bool:
    """Whether a required field is missing."""
    return any(field.default is MISSING and name not in values for name, field in fields_of(kind).items())


def _readable(hint: Any, given: Any, report: Report, field: Field | None = None) -> Any:
    """The part of a value that fits its type: plain values for structs, the value itself for kinds of values."""
    if (kind := kind_in(hint)) is not None:
        return _leaf(kind, given, report, field)
    marks: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        bare, *rest = typing.get_args(hint)
        marks = tuple(rest)
        for mark in marks:
            if isinstance(mark, NoEffect):
                report.notice(f"has no effect here: {mark.why}")
                return _ABSENT
    else:
        bare = _without_none(hint)
        if typing.get_origin(bare) is Annotated:
            return _readable(bare, given, report)
    origin = typing.get_origin(bare)
    if _is_record(bare):
        values = _readable_fields(bare, given, report)
        if values is None or lacks(bare, values):
            return _ABSENT
        return values if issubclass(bare, msgspec.Struct) else made(bare, values)
    if origin is tuple:
        return _readable_list(typing.get_args(bare)[0], given, report, marks)
    if origin in (dict, Mapping):
        return _readable_map(typing.get_args(bare)[1], given, report)
    return _converted(Annotated[(bare, *marks)] if marks else bare, given, report)


def _is_record(hint: Any) -> bool:
    """Whether a type is a struct or a dataclass."""
    return isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or is_dataclass(hint))


def _leaf(kind: ValueKind, given: Any, report: Report, field: Field | None) -> Any:
    try:
        return report.read(kind, given)
    except InvalidValue as invalid:
        report.unfit(kind.accepts, given, str(invalid), field)
        return _ABSENT


def _converted(hint: Any, given: Any, report: Report) -> Any:
    try:
        return msgspec.convert(given, hint)
    except msgspec.ValidationError:
        report.unfit(accepted(hint), given)
        return _ABSENT


def _readable_fields(kind: type, given: Any, report: Report) -> dict[str, Any] | None:
    """The readable fields of a mapping by name; None for another value."""
    if not isinstance(given, Mapping):
        report.unfit("a mapping", given)
        return None
    known = fields_of(kind)
    result: dict[str, Any] = {}
    for key, value in given.items():
        spelled = key if key in known else report.spellings.get(str(key), "")
        with report.at(str(key)):
            if spelled not in known:
                report.unknown(str(key), known)
            elif spelled in result or (spelled != key and spelled in given):
                report.twice(spelled)
            elif value is None:
                _note_null(known[spelled].hint, report)
            elif (read := _readable(known[spelled].hint, value, report, known[spelled])) is not _ABSENT:
                result[spelled] = read
    for name, field in known.items():
        if field.default is MISSING and given.get(name) is None:
            with report.at(name):
                report.missing(field)
    return result


def _note_null(hint: Any, report: Report) -> None:
    """Report a null struct: `eviction:` without a value looks like an eviction but is not one."""
    if _is_record(_without_none(hint)):
        report.notice("is null, which is the same as absent; write {} for an empty mapping")


def _readable_list(hint: Any, given: Any, report: Report, marks: tuple[Any, ...]) -> Any:
    least = next((mark.min_length for mark in marks if isinstance(mark, msgspec.Meta)), None) or 0
    if not isinstance(given, list) or len(given) < least:
        report.unfit("a list" + (f" of at least {least}" if least else ""), given)
        return _ABSENT
    result = []
    for number, item in enumerate(given):
        with report.at(number):
            read = _readable(hint, item, report)
        if read is not _ABSENT:
            result.append(read)
        elif _is_record(hint) and not lacks(hint, {}):
            result.append({})  # keeps the indices of the following items
    return result


def _readable_map(hint: Any, given: Any, report: Report) -> Any:
    if not isinstance(given, Mapping):
        report.unfit("a mapping", given)
        return _ABSENT
    result = {}
    for key, value in given.items():
        with report.at(str(key)):
            if not isinstance(key, str):
                report.unfit("text", key, f'the key must be in quotes: "{key}"')
                continue
            if (read := _readable(hint, value, report)) is not _ABSENT:
                result[key] = read
    return result


def _without_none(hint: Any) -> Any:
    """`X` if the type is `X | None`; other types unchanged."""
    if not isinstance(hint, types.UnionType) and typing.get_origin(hint) is not typing.Union:
        return hint
    left = [each for each in typing.get_args(hint) if each is not type(None)]
    return left[0] if len(left) == 1 else typing.Union[tuple(left)]  # noqa: UP007  # built at run time


def _any_of(texts: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(texts[:-1]), *texts[-1:])))


def accepted(hint: Any) -> str:
    """A description of the values that a type accepts."""
    base, *marks = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if typing.get_origin(base) is Literal:
        return _any_of([each for each in typing.get_args(base) if each])
    if base not in _WORDS:
        parts = [each for each in typing.get_args(base) if each is not type(None)]
        return _QUANTITY if set(parts) == {str, int, float} else _any_of([accepted(each) for each in parts])
    words = [_WORDS[base]]
    for meta in (mark for mark in marks if isinstance(mark, msgspec.Meta)):
        ends = {"above": meta.gt, "of at least": meta.ge, "below": meta.lt, "of at most": meta.le}
        if meta.ge is not None and meta.le is not None:
            words.append(f"from {meta.ge} to {meta.le}")
        else:
            words.append(" and ".join(f"{word} {end}" for word, end in ends.items() if end is not None))
        words += [f"of at most {meta.max_length} characters"] if meta.max_length is not None else []
    return " ".join(filter(None, words))
