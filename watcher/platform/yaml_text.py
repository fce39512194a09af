"""Checks of YAML before it is decoded."""

from __future__ import annotations

import yaml

MAX_DEPTH = 100
"""Maximum nesting depth of a document; a pod has about twenty levels."""
MAX_VALUES = 100_000
"""Maximum number of values of a document, with its aliases replaced by their content."""


def yaml_problem(error: Exception, *, line: int = 0) -> str:
    """Describe an error of `check_yaml` or the decoder on one line, with its place. `line`: number of lines before the
    text. The error's own text calls the text "<unicode string>"."""
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
        return f"line {line + mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def check_yaml(text: str, *, aliases: bool = True) -> None:
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
