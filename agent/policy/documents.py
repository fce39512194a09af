"""Parse the text of a file into its objects: multi-document YAML, JSON, and Lists as `kubectl get` writes them.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from agent.policy.problems import PolicyLocation, ProblemCollector, shown
from watcher.decoding.json_text import decode_json
from watcher.decoding.yaml_text import decode_strict_yaml_documents

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


def read_text(origin: str, text: str, complaints: ProblemCollector) -> tuple[PolicyDocument, ...] | None:
    """The objects of a file; None, with a problem reported, if the file as a whole cannot be read."""
    if len(text) > LARGEST_FILE:
        complaints.problem(f"has {len(text):,} characters, more than {LARGEST_FILE:,}", "Split it.")
        return None
    try:
        values = _values(text)
    except msgspec.DecodeError as error:
        complaints.problem(f"is not YAML: {error}", "Check the file with kubectl apply --dry-run=client -f FILE.")
        return None
    documents: list[PolicyDocument] = []
    for number, value in enumerate(values, start=1):
        complaints.place = PolicyLocation(origin, number)
        documents += _objects(value, complaints)
    return tuple(documents)


def _values(text: str) -> list[Any]:
    if text.lstrip()[:1] == "{":
        with suppress(msgspec.DecodeError):  # may be a YAML mapping in braces
            return [decode_json(text)]
    return decode_strict_yaml_documents(text)


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
