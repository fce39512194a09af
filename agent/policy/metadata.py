"""Names, labels and annotations of policy objects: reading and checking."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agent.policy import schema
from agent.policy.documents import PolicyDocument
from agent.policy.problems import ProblemCollector, near, shown
from agent.policy.schema import NODE_QOS, OLDER_NODE_QOS

_DNS_1123 = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_DNS_1035 = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_PRIORITY = re.compile(r"\s*(-?\d{1,10})\s*(?:-\s*(-?\d{1,10})\s*)?", re.ASCII)


def _check_name(document: PolicyDocument, kind: str, complaints: ProblemCollector) -> None:
    name = document.metadata.get("name")
    with complaints.at("metadata"), complaints.at("name"):
        if not name:
            complaints.problem("is missing")
        elif kind in (NODE_QOS, OLDER_NODE_QOS):
            if not isinstance(name, str) or not _DNS_1035.fullmatch(name):
                complaints.problem(
                    f"{shown(name)} is not a valid name of a {kind}",
                    "Lowercase letters, digits and -, a letter first, at most 63.",
                )
        else:
            _check_label(name, complaints)


def _check_label(name: Any, complaints: ProblemCollector) -> None:
    if not isinstance(name, str) or not _DNS_1123.fullmatch(name):
        complaints.problem(
            f"{shown(name)} is not a valid name", "Lowercase letters, digits and -, at most 63 (a DNS-1123 label)."
        )


def _annotations(document: PolicyDocument) -> Mapping[str, Any]:
    found = document.metadata.get("annotations")
    return found if isinstance(found, dict) else {}


def _check_annotations(document: PolicyDocument, kind: str, complaints: ProblemCollector) -> None:
    known = schema.ANNOTATIONS[NODE_QOS if kind == OLDER_NODE_QOS else kind]
    with complaints.at("metadata"), complaints.at("annotations"):
        for name, value in _annotations(document).items():
            if str(name).partition("/")[0] != "load-watcher.io":
                continue
            with complaints.at(str(name)):
                if name not in known:
                    complaints.problem(f"unknown annotation of a {kind}", near(str(name), known))
                elif not isinstance(value, str):
                    complaints.problem(f"must be text, and is {shown(value)}", "Put it in quotes.")


def _annotation(document: PolicyDocument, name: str) -> str:
    value = _annotations(document).get(name)
    return value if isinstance(value, str) else ""
