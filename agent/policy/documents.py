"""From the text of a file to its objects: YAML of several documents, JSON, and Lists as `kubectl get` writes them.

What YAML allows and Kubernetes does not is refused where it would hide a mistake: a key given twice (the second wins
without a word), an alias (a few lines of them unfold to gigabytes).

Pure: text in, values out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from agent.policy.problems import Complaints, Place, shown

LARGEST_FILE = 1 << 20
"""A ConfigMap cannot be larger."""


@dataclass(frozen=True, slots=True)
class Document:
    """One object as it was given, and where."""

    place: Place
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        return str(self.content.get("kind") or "")

    @property
    def api_version(self) -> str:
        return str(self.content.get("apiVersion") or "")

    @property
    def metadata(self) -> dict[str, Any]:
        metadata = self.content.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or "")


class _Loader(yaml.SafeLoader):
    """YAML as Kubernetes takes it."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not taken here; write out what it stands for",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        text = super().construct_scalar(node)
        try:
            str(text).encode()
        except UnicodeEncodeError:  # what JSON writes as \ud800 is half a character: nobody could be told of it
            raise yaml.MarkedYAMLError(problem="half a character is no text", problem_mark=node.start_mark) from None
        return text

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value} is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


# 2026-01-01 and 12:30:00 are text to Kubernetes; a date would be no JSON.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def one_value(text: str) -> Any:
    """What stands in a text of a single document, an annotation for instance. Raises ValueError, which says why not."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(_in_one_line(error)) from error


def read_text(origin: str, text: str, complaints: Complaints) -> tuple[Document, ...] | None:
    """The objects of a file; None, with a problem told, if it cannot be read as a whole."""
    if len(text) > LARGEST_FILE:
        complaints.problem(f"has {len(text):,} characters, more than {LARGEST_FILE:,}", "Split it.")
        return None
    try:
        values = (
            [msgspec.json.decode(text)]
            if text.lstrip()[:1] == "{" and _is_json(text)
            else list(yaml.load_all(text, Loader=_Loader))
        )
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        complaints.problem(f"is not YAML: {_in_one_line(error)}", "kubectl apply --dry-run=client -f FILE says it too.")
        return None
    documents: list[Document] = []
    for number, value in enumerate(values, start=1):
        complaints.place = Place(origin, number)
        documents += _objects(value, complaints)
    return tuple(documents)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False  # YAML has mappings in braces too
    return True


def _in_one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())


def _objects(value: Any, complaints: Complaints) -> Iterator[Document]:
    """The object, or those of a List."""
    if value is None:
        return
    if not isinstance(value, dict):
        complaints.problem(f"is not an object of Kubernetes but {shown(value)}")
        return
    document = Document(complaints.place, value)
    if document.kind.endswith("List") and isinstance(items := value.get("items"), list):
        for number, item in enumerate(items):
            with complaints.at("items"), complaints.at(number):
                yield from _objects(item, complaints)
        return
    origin, number, path = complaints.place.origin, complaints.place.document, complaints.place.path
    named = f"{document.kind or 'object'}/{document.name}" if document.name else document.kind
    yield Document(Place(origin, number, " ".join(filter(None, (path, named)))), value)
