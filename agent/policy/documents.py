"""Parse the text of a file into its objects: multi-document YAML, JSON, and Lists as `kubectl get` writes them; check
the name and the annotations of an object.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from agent.policy import schema
from agent.policy.problems import PolicyLocation, ProblemCollector, near, shown
from agent.policy.schema import NODE_QOS, OLDER_NODE_QOS
from watcher.decoding.json_text import decode_json
from watcher.decoding.yaml_text import decode_strict_yaml_documents

LARGEST_FILE = 1 << 20
"""Characters; a ConfigMap cannot be larger."""
_DNS_1123 = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


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
            with complaints.at("items", number):
                yield from _objects(item, complaints)
        return
    origin, number, path = complaints.place.origin, complaints.place.document, complaints.place.path
    named = f"{document.kind or 'object'}/{document.name}" if document.name else document.kind
    yield PolicyDocument(PolicyLocation(origin, number, " ".join(filter(None, (path, named)))), value)


# --- metadata --------------------------------------------------------------------------------------------------------


def check_name(document: PolicyDocument, kind: str, complaints: ProblemCollector) -> None:
    name = document.metadata.get("name")
    with complaints.at("metadata", "name"):
        if not name:
            complaints.problem("is missing")
        elif kind in (NODE_QOS, OLDER_NODE_QOS):
            if not isinstance(name, str) or not _DNS_1035.fullmatch(name):
                complaints.problem(
                    f"{shown(name)} is not a valid name of a {kind}",
                    "Lowercase letters, digits and -, a letter first, at most 63.",
                )
        else:
            check_label(name, complaints)


def check_label(name: Any, complaints: ProblemCollector) -> None:
    if not isinstance(name, str) or not _DNS_1123.fullmatch(name):
        complaints.problem(
            f"{shown(name)} is not a valid name", "Lowercase letters, digits and -, at most 63 (a DNS-1123 label)."
        )


def _annotations(document: PolicyDocument) -> Mapping[str, Any]:
    found = document.metadata.get("annotations")
    return found if isinstance(found, dict) else {}


def check_annotations(document: PolicyDocument, kind: str, complaints: ProblemCollector) -> None:
    known = schema.ANNOTATIONS[NODE_QOS if kind == OLDER_NODE_QOS else kind]
    with complaints.at("metadata", "annotations"):
        for name, value in _annotations(document).items():
            if str(name).partition("/")[0] != "load-watcher.io":
                continue
            with complaints.at(str(name)):
                if name not in known:
                    complaints.problem(f"unknown annotation of a {kind}", near(str(name), known))
                elif not isinstance(value, str):
                    complaints.problem(f"must be text, and is {shown(value)}", "Put it in quotes.")


def annotation(document: PolicyDocument, name: str) -> str:
    value = _annotations(document).get(name)
    return value if isinstance(value, str) else ""
