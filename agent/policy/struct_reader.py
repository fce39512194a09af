"""Convert a mapping into a struct and report every problem in it, not only the first.

msgspec stops at the first error. The mapping is therefore walked along the struct's fields, and each value at the end
of a path is converted separately. Values that cannot be read are omitted from the result, and the field's default
applies.

Pure.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from agent.policy.problems import ProblemCollector, near, shown
from agent.policy.schema import OTHER_SPELLINGS, NoEffect

StructT = TypeVar("StructT", bound=msgspec.Struct)
_ABSENT: Any = object()
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def read(kind: type[StructT], given: object, complaints: ProblemCollector) -> StructT:
    """`given` as a `kind`: all readable fields, with defaults for the rest. Null counts as absent, as in Kubernetes."""
    value = {} if given is None else _readable(kind, given, complaints)
    return msgspec.convert({} if value is _ABSENT else value, kind)


def _readable(kind: Any, given: Any, complaints: ProblemCollector) -> Any:
    """The part of a value that fits its type, as plain values."""
    if typing.get_origin(kind) is Annotated:
        base, *marks = typing.get_args(kind)
        for mark in marks:
            if isinstance(mark, NoEffect):
                complaints.notice(f"has no effect here: {mark.why}")
                return _ABSENT
        if base not in _WORDS:
            return _readable(base, given, complaints)
    kind = _without_none(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _readable_fields(kind, given, complaints)
    if typing.get_origin(kind) is tuple:
        return _readable_list(typing.get_args(kind)[0], given, complaints)
    if typing.get_origin(kind) is dict:
        return _readable_map(typing.get_args(kind)[1], given, complaints)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError:
        complaints.problem(f"must be {_accepted(kind)}, and is {shown(given)}", _quoting(kind, given))
        return _ABSENT


def _readable_fields(kind: type[msgspec.Struct], given: Any, complaints: ProblemCollector) -> Any:
    if not isinstance(given, Mapping):
        complaints.problem(f"must be a mapping, and is {shown(given)}")
        return _ABSENT
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {field.encode_name: hints[field.name] for field in msgspec.structs.fields(kind)}
    result: dict[str, Any] = {}
    for key, value in given.items():
        spelled = key if key in known else OTHER_SPELLINGS.get(str(key), "")
        with complaints.at(str(key)):
            if spelled not in known:
                complaints.problem("unknown field", near(str(key), known))
            elif spelled in result or (spelled != key and spelled in given):
                complaints.problem(f"is another spelling of {spelled}, which is also given", "Remove one of them.")
            elif value is None:
                _note_null(known[spelled], complaints)
            elif (readable := _readable(known[spelled], value, complaints)) is not _ABSENT:
                result[spelled] = readable
    return result


def _note_null(kind: Any, complaints: ProblemCollector) -> None:
    """Report a null struct: `eviction:` without a value looks like an eviction but is not one."""
    if isinstance(bare := _without_none(kind), type) and issubclass(bare, msgspec.Struct):
        complaints.notice("is null, which is the same as absent; write {} for an empty mapping")


def _readable_list(kind: Any, given: Any, complaints: ProblemCollector) -> Any:
    if not isinstance(given, list):
        complaints.problem(f"must be a list, and is {shown(given)}")
        return _ABSENT
    result = []
    for number, item in enumerate(given):
        with complaints.at(number):
            readable = _readable(kind, item, complaints)
        if readable is not _ABSENT:
            result.append(readable)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            result.append({})  # keeps the indices of the following items
    return result


def _readable_map(kind: Any, given: Any, complaints: ProblemCollector) -> Any:
    if not isinstance(given, Mapping):
        complaints.problem(f"must be a mapping, and is {shown(given)}")
        return _ABSENT
    result = {}
    for key, value in given.items():
        with complaints.at(str(key)):
            if not isinstance(key, str):
                complaints.problem(f"the key must be text, and is {shown(key)}", f'Put it in quotes: "{key}".')
            elif (readable := _readable(kind, value, complaints)) is not _ABSENT:
                result[key] = readable
    return result


def _without_none(kind: Any) -> Any:
    """`X` if the type is `X | None`; other types unchanged."""
    if not isinstance(kind, types.UnionType) and typing.get_origin(kind) is not typing.Union:
        return kind
    left = [each for each in typing.get_args(kind) if each is not type(None)]
    return left[0] if len(left) == 1 else typing.Union[tuple(left)]  # noqa: UP007  # built at run time


def _accepted(kind: Any) -> str:
    """A description of the values that a type accepts."""
    if typing.get_origin(kind) is Literal:
        return " or ".join(each for each in typing.get_args(kind) if each)
    if typing.get_origin(kind) is not Annotated:
        return _WORDS.get(kind, 'a quantity ("4500m", "3Gi", 80)')
    base, *marks = typing.get_args(kind)
    metas = [mark for mark in marks if isinstance(mark, msgspec.Meta)]
    words = [_WORDS[base]]
    for meta in metas:
        words += [f"from {meta.ge} to {meta.le}"] if meta.ge is not None else []
        words += [f"of at most {meta.max_length} characters"] if meta.max_length is not None else []
    return " ".join(words)


def _quoting(kind: Any, given: object) -> str:
    """The fix for a string that YAML parsed as another type."""
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    if bare is not str or not isinstance(given, (bool, int, float)):
        return ""
    return f"YAML reads it as {'true or false' if isinstance(given, bool) else 'a number'}: put it in quotes."
