"""From one object as it was given to what the agent knows of it, with Crane's own rules of validation and ours.

The rules are those of Crane's webhook (pkg/webhooks/ensurance) and of its CRDs' schemas. Where they leave a way to hit
pods by accident (an empty scopeSelector is every pod of the node), ours are stricter.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from agent import model
from agent.policy import schema
from agent.policy.avoidance_action import _avoidance_action
from agent.policy.documents import Document
from agent.policy.metadata import _check_annotations, _check_name
from agent.policy.node_qos import NodeQos, _node_qos
from agent.policy.pod_qos import _pod_qos
from agent.policy.problems import Complaints, Place, near, shown
from agent.policy.schema import AVOIDANCE_ACTION, NODE_QOS, OLDER_NODE_QOS, POD_QOS

KINDS = (NODE_QOS, OLDER_NODE_QOS, AVOIDANCE_ACTION, POD_QOS)
INERT_KINDS = {
    "PodQOSEnsurancePolicy": "it never had a controller",
    "ServicePolicy": "nothing ever read it",
}


Parsed = NodeQos | model.AvoidanceAction | model.PodQos


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """One object that could be read, and where it stood."""

    place: Place
    kind: str
    value: Parsed

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name, the older name of NodeQOS being another one."""
        return self.kind, self.value.name


def read_object(document: Document, *, metrics: Collection[str], complaints: Complaints) -> PolicyObject | None:
    """The policy in a document, so far as it can be read; None for what is none. `metrics` are the names that rules may
    have. Problems and notices go to `complaints`."""
    complaints.place = document.place
    kind = _kind_of(document, complaints)
    if not kind:
        return None
    _check_name(document, kind, complaints)
    _check_annotations(document, kind, complaints)
    for field in document.content.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        with complaints.at(str(field)):
            complaints.problem("there is no such field", near(str(field), ("metadata", "spec", "kind", "apiVersion")))
    value: Parsed
    if kind == AVOIDANCE_ACTION:
        value = _avoidance_action(document, complaints)
    elif kind == POD_QOS:
        value = _pod_qos(document, complaints)
    else:
        value = _node_qos(document, metrics, complaints)
    return PolicyObject(document.place, kind, value)


def _kind_of(document: Document, complaints: Complaints) -> str:
    """Which of KINDS it is, "" for another; told, if somebody may have meant one of them."""
    kind, group = document.kind, document.api_version.partition("/")[0]
    if group == schema.GROUP and kind in INERT_KINDS:
        complaints.notice(f"is passed over: {INERT_KINDS[kind]}")
    elif group == schema.GROUP and kind not in KINDS:
        with complaints.at("kind"):
            complaints.problem(f"{kind or 'nothing'} is no kind of {schema.GROUP}", near(kind, KINDS))
    elif kind in KINDS and document.api_version != schema.API_VERSION:
        with complaints.at("apiVersion"):
            given = document.api_version
            complaints.problem(f"must be {schema.API_VERSION}, and is {shown(given) if given else 'missing'}")
    elif kind not in KINDS:
        complaints.notice("is passed over: it is no policy" if kind else "is passed over: it has no kind")
    else:
        return kind
    return ""


# --- AvoidanceAction -------------------------------------------------------------------------------------------------


# --- NodeQOS ---------------------------------------------------------------------------------------------------------


# --- PodQOS ----------------------------------------------------------------------------------------------------------


# --- what several have -----------------------------------------------------------------------------------------------


def as_document(kind: str, item: Any, *, origin: str) -> Document:
    """An object of the Kubernetes API (with `metadata` and `spec`) as a document."""
    metadata = {"name": item.metadata.name, "annotations": dict(item.metadata.annotations)}
    place = Place(origin, object=f"{kind}/{item.metadata.name}")
    content = {"apiVersion": schema.API_VERSION, "kind": kind, "metadata": metadata, "spec": item.spec}
    return Document(place, msgspec.to_builtins(content))
