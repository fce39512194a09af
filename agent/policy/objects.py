"""Convert one object into the agent's model, with Crane's validation rules and some stricter ones.

The rules come from Crane's webhook (pkg/webhooks/ensurance) and CRD schemas. They are stricter where Crane's rules can
select pods by accident (an empty scopeSelector selects every pod of the node).

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
from agent.policy.documents import PolicyDocument
from agent.policy.metadata import _check_annotations, _check_name
from agent.policy.node_qos import NodeQos, _node_qos
from agent.policy.pod_qos import _pod_qos
from agent.policy.problems import PolicyLocation, ProblemCollector, near, shown
from agent.policy.schema import AVOIDANCE_ACTION, NODE_QOS, OLDER_NODE_QOS, POD_QOS

KINDS = {
    schema.GROUP: (NODE_QOS, AVOIDANCE_ACTION, POD_QOS),
    schema.CRANE_GROUP: (NODE_QOS, OLDER_NODE_QOS, AVOIDANCE_ACTION, POD_QOS),
}
"""Kinds by API group; the group of load-watcher does not have the older name of NodeQOS."""
INERT_KINDS = {
    "PodQOSEnsurancePolicy": "no controller ever supported it",
    "ServicePolicy": "no component ever read it",
}


Parsed = NodeQos | model.AvoidanceAction | model.PodQos


@dataclass(frozen=True, slots=True)
class PolicyObject:
    """One successfully read object, with its location and its API group."""

    place: PolicyLocation
    kind: str
    value: Parsed
    group: str = schema.GROUP

    @property
    def key(self) -> tuple[str, str]:
        """Kind and name, without the API group. The older name of NodeQOS counts as a separate kind."""
        return self.kind, self.value.name


def read_object(
    document: PolicyDocument, *, metrics: Collection[str], complaints: ProblemCollector
) -> PolicyObject | None:
    """The policy in a document, as far as it can be read; None if the document does not contain a policy. `metrics` are
    the metric names that rules may use. Problems and notices are added to `complaints`."""
    complaints.place = document.place
    kind = _kind_of(document, complaints)
    if not kind:
        return None
    _check_name(document, kind, complaints)
    _check_annotations(document, kind, complaints)
    for field in document.content.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        with complaints.at(str(field)):
            complaints.problem("unknown field", near(str(field), ("metadata", "spec", "kind", "apiVersion")))
    value: Parsed
    if kind == AVOIDANCE_ACTION:
        value = _avoidance_action(document, complaints)
    elif kind == POD_QOS:
        value = _pod_qos(document, complaints)
    else:
        value = _node_qos(document, metrics, complaints)
    return PolicyObject(document.place, kind, value, document.group)


def _kind_of(document: PolicyDocument, complaints: ProblemCollector) -> str:
    """The document's kind if it is one of the KINDS of its group, otherwise "". Reports a problem or notice for other
    kinds."""
    kind, group = document.kind, document.group
    if group == schema.CRANE_GROUP and kind in INERT_KINDS:
        complaints.notice(f"is ignored: {INERT_KINDS[kind]}")
    elif group in KINDS and kind not in KINDS[group]:
        with complaints.at("kind"):
            complaints.problem(f"{kind or 'nothing'} is not a kind of {group}", near(kind, KINDS[group]))
    elif kind in KINDS[schema.CRANE_GROUP] and document.api_version not in schema.API_VERSIONS:
        with complaints.at("apiVersion"):
            given = document.api_version
            wanted = " or ".join(schema.API_VERSIONS)
            complaints.problem(f"must be {wanted}, and is {shown(given) if given else 'missing'}")
    elif group not in KINDS:
        complaints.notice("is ignored: it is not a policy" if kind else "is ignored: it has no kind")
    else:
        return kind
    return ""


def as_document(kind: str, item: Any, *, group: str, origin: str) -> PolicyDocument:
    """An object of the Kubernetes API (with `metadata` and `spec`) as a document."""
    metadata = {"name": item.metadata.name, "annotations": dict(item.metadata.annotations)}
    place = PolicyLocation(origin, object=f"{kind}/{item.metadata.name}")
    content = {"apiVersion": f"{group}/{schema.VERSION}", "kind": kind, "metadata": metadata, "spec": item.spec}
    return PolicyDocument(place, msgspec.to_builtins(content))
