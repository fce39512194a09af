"""Parse the text of a file into its objects: multi-document YAML, JSON, and Lists as `kubectl get` writes them.

Two features of YAML are rejected because they would hide mistakes: duplicate keys (the second would silently replace
the first) and aliases (a few lines can expand to gigabytes).

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from agent.policy.problems import PolicyLocation, ProblemCollector, shown

LARGEST_FILE = 1 << 20
"""Characters; a ConfigMap cannot be larger."""


@dataclass(frozen=True, slots=True)
class PolicyDocument:
    """One object as written in the file, with its location."""

    place: PolicyLocation
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.content.get("kind") or "")

    @property
    def api_version(self) -> str:
        return str(self.content.get("apiVersion") or "")

    @property
    def group(self) -> str:
        return self.api_version.partition("/")[0]

    @property
    def metadata(self) -> dict[str, Any]:
        metadata = self.content.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or "")


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


def one_value(text: str) -> Any:
    """The value of a text with a single YAML document, such as an annotation. Raises ValueError with the reason if it
    is invalid."""
    try:
        return yaml.load(text, Loader=_StrictYamlLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(_in_one_line(error)) from error


def read_text(origin: str, text: str, complaints: ProblemCollector) -> tuple[PolicyDocument, ...] | None:
    """The objects of a file; None, with a problem reported, if the file as a whole cannot be read."""
    if len(text) > LARGEST_FILE:
        complaints.problem(f"has {len(text):,} characters, more than {LARGEST_FILE:,}", "Split it.")
        return None
    try:
        values = (
            [msgspec.json.decode(text)]
            if text.lstrip()[:1] == "{" and _is_json(text)
            else list(yaml.load_all(text, Loader=_StrictYamlLoader))
        )
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        complaints.problem(
            f"is not YAML: {_in_one_line(error)}", "Check the file with kubectl apply --dry-run=client -f FILE."
        )
        return None
    documents: list[PolicyDocument] = []
    for number, value in enumerate(values, start=1):
        complaints.place = PolicyLocation(origin, number)
        documents += _objects(value, complaints)
    return tuple(documents)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False  # may be a YAML mapping in braces
    return True


def _in_one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return "nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def _objects(value: Any, complaints: ProblemCollector) -> Iterator[PolicyDocument]:
    """The object itself, or the items if it is a List."""
    if value is None:
        return
    if not isinstance(value, dict):
        complaints.problem(f"must be a Kubernetes object, and is {shown(value)}")
        return
    document = PolicyDocument(complaints.place, value)
    if document.kind.endswith("List") and isinstance(items := value.get("items"), list):
        for number, item in enumerate(items):
            with complaints.at("items"), complaints.at(number):
                yield from _objects(item, complaints)
        return
    origin, number, path = complaints.place.origin, complaints.place.document, complaints.place.path
    named = f"{document.kind or 'object'}/{document.name}" if document.name else document.kind
    yield PolicyDocument(PolicyLocation(origin, number, " ".join(filter(None, (path, named)))), value)
