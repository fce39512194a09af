"""Record of one binding in shadow mode: the placements by other profiles, and the load of all nodes involved.

`mode` creates the records, `report` aggregates them.
"""

from __future__ import annotations

import hashlib
from typing import ClassVar, Literal

import msgspec

from scorers.profiles.profiles import ProfileSettings
from watcher.core.decisions import DecisionKind
from watcher.decoding.json_text import JsonDecoder

LATER_S = 900.0
"""Seconds after the binding at which the load of the nodes is read again."""
GRACE_S = 120.0
"""Maximum delay of that reading in seconds; after that it is skipped."""

Candidates = Literal["asked", "estimated"]
"""Origin of the candidate nodes: "asked", kube-scheduler's request to the extender; "estimated", all nodes where known
rules allow the pod."""

Kind = Literal["same", "tied", "other", "none"]
"""The profile's choice compared with the actual node: "same"; "tied", the actual node has the same score as sent to
kube-scheduler; "other", another node; "none", its filters reject all nodes."""

Load = tuple[float | None, float | None]
"""CPU and memory load of a node, mean over the longest window in percent of capacity; None if unknown."""

LEFT_OUT = {
    "pod_unreadable": "the pod's requests are invalid",
    "node_unknown": "the node is unknown to the extender",
    "no_load": "load is unknown for the actual node or for most nodes",
    "constraints": "the pod has affinity or spreading rules, and kube-scheduler did not call the extender for it",
    "no_choice": "only one node was possible",
    "seen_late": "the binding was observed too late: the load at that time is unknown",
    "too_many": "too many bindings at once",
    "failed": "a plug-in failed; see the log",
}
"""Reasons why a binding is not evaluated, with their descriptions."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A profile's choice. `settings` is the hash of its plug-ins and arguments at that time."""

    settings: str
    kind: Kind
    node: str = ""


class ShadowBinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod was bound to `node` at `time` (unix seconds). `of` is the number of candidates. `pod_cpu` is the pod's CPU
    request in percent of the node's CPU capacity. `load` is the load of this node and of the chosen nodes at that time;
    `later` is their load after LATER_S, None if not read yet or if no profile chose another node. If `left_out` is set,
    the other fields are mostly empty and `count` bindings are summarized."""

    kind: ClassVar[DecisionKind] = "shadow"

    time: float
    namespace: str = ""
    name: str = ""
    uid: str = ""
    node: str = ""
    left_out: str = ""
    count: int = 1
    candidates: Candidates = "estimated"
    of: int = 0
    pod_cpu: float | None = None
    choices: dict[str, Choice] = {}
    load: dict[str, Load] = {}
    later: dict[str, Load] | None = None

    @property
    def has_other_choice(self) -> bool:
        """Whether any profile chose another node; then the load is read again later."""
        return any(choice.kind == "other" for choice in self.choices.values())

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


_DECODER = JsonDecoder(ShadowBinding)


def decode(payload: bytes) -> ShadowBinding | None:
    """Decode a stored record; None if it cannot be decoded, since records of a newer version must not hide the
    others."""
    try:
        return _DECODER.decode(payload)
    except msgspec.DecodeError:
        return None


def settings_of(profile: ProfileSettings) -> str:
    """Return a hash that is equal for profiles with equal plug-ins, weights, arguments, and score scale."""
    plugins = [(each.name, each.weight, each.points, dict(each.args)) for each in profile.plugins]
    text = msgspec.json.encode((plugins, profile.precise_scores), order="deterministic")
    return hashlib.sha256(text).hexdigest()[:12]
