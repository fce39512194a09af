"""YAML, and checks of it before it is decoded."""

from __future__ import annotations

from typing import Any, TypeVar, overload

import msgspec
import yaml

T = TypeVar("T")

MAX_DEPTH = 100
"""Maximum nesting depth of a document; a pod has about twenty levels."""
MAX_VALUES = 100_000
"""Maximum number of values of a document, with its aliases replaced by their content."""


@overload
def decode_yaml(text: str, *, aliases: bool = True, line: int = 0) -> Any: ...
@overload
def decode_yaml(text: str, *, type: type[T], aliases: bool = True, line: int = 0) -> T: ...
def decode_yaml(text: str, *, type: Any = Any, aliases: bool = True, line: int = 0) -> Any:
    """The value of a text with one document. Raises msgspec.DecodeError with the place, and msgspec.ValidationError for
    another type. `line`: number of lines before the text, for the place."""
    try:
        check_yaml(text, aliases=aliases)
        return msgspec.yaml.decode(text, type=type)
    except msgspec.ValidationError:
        raise
    except _ERRORS as error:
        raise msgspec.DecodeError(yaml_problem(error, line=line)) from error


def decode_yaml_documents(text: str | bytes) -> list[Any]:
    """The values of all documents of a text. Raises msgspec.DecodeError with the place."""
    try:
        check_yaml(text)
        return list(yaml.safe_load_all(text))
    except _ERRORS as error:
        raise msgspec.DecodeError(yaml_problem(error)) from error


_ERRORS = (yaml.YAMLError, RecursionError, ValueError, TypeError, OverflowError)
"""ValueError has UnicodeEncodeError (a lone surrogate), integers of more than 4,300 digits and dates that do not exist;
TypeError comes for keys that cannot be hashed."""


def yaml_problem(error: Exception, *, line: int = 0) -> str:
    """Describe an error of `check_yaml` or of a decoder on one line, with its place. `line`: number of lines before the
    text. The error's own text calls the text "<unicode string>"."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
        return f"line {line + mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if "set_int_max_str_digits" in str(error):
        return "it has an integer of more than 4,300 digits"
    return " ".join(str(error).split())


def check_yaml(text: str | bytes, *, aliases: bool = True) -> None:
    """Check that the documents of a text can be decoded safely: libyaml recurses, and thirty thousand levels would end
    the process; a few lines of aliases can expand to gigabytes. Raises ValueError, and yaml.YAMLError."""
    open_values = [0]  # the values within each open collection
    anchors: list[str | None] = [None]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        size, anchor = 0, getattr(event, "anchor", None)
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                raise ValueError("YAML aliases (*name) are not allowed here: replace them by their content")
            if event.anchor in anchors:  # of a collection that is still open
                raise ValueError(f"the alias *{event.anchor} is within the value that it stands for")
            size, anchor = sizes.get(str(event.anchor), 1), None
        elif isinstance(event, yaml.CollectionStartEvent):
            open_values.append(0)
            anchors.append(anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = 1 + open_values.pop(), anchors.pop()
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
        open_values[-1] += size
        if size and anchor is not None:
            sizes[anchor] = size
        if len(open_values) - 1 > MAX_DEPTH:
            raise ValueError(f"the document is nested more than {MAX_DEPTH} levels deep")
        if open_values[-1] > MAX_VALUES:
            raise ValueError(f"the document has more than {MAX_VALUES:,} values, with its aliases expanded")


def decode_strict_yaml(text: str) -> Any:
    """The value of a text with one document, as the API server of Kubernetes reads it: dates are strings. Duplicate
    keys and aliases are refused. Raises msgspec.DecodeError with the place."""
    try:
        return yaml.load(text, Loader=_StrictYamlLoader)
    except _ERRORS as error:
        raise msgspec.DecodeError(yaml_problem(error)) from error


def decode_strict_yaml_documents(text: str) -> list[Any]:
    """The values of all documents of a text, each as `decode_strict_yaml` reads it. Raises msgspec.DecodeError."""
    try:
        return list(yaml.load_all(text, Loader=_StrictYamlLoader))
    except _ERRORS as error:
        raise msgspec.DecodeError(yaml_problem(error)) from error


class _StrictYamlLoader(yaml.SafeLoader):
    """A YAML loader with the restrictions of Kubernetes: no duplicate keys, aliases or dates."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not supported; write out the value",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        try:
            str(text).encode()
        except UnicodeEncodeError:  # a lone surrogate, such as \ud800 in JSON, cannot be encoded
            raise yaml.MarkedYAMLError(
                problem="the text contains a lone surrogate character", problem_mark=node.start_mark
            ) from None
        return text

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"duplicate key {key.value}", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


# 2026-01-01 and 12:30:00 are strings in Kubernetes; JSON has no dates.
_StrictYamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
