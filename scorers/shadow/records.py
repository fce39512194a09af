"""What shadow mode remembers of one pod that was bound: where other profiles would have put it, and the load of both.

Kept in the decision log's store, one record a binding; `shadow_mode` makes them, `shadow_report` adds them up.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from scorers.profiles.profiles import ProfileSettings
from watcher.core.decisions import StoredShadow

MICROSECONDS = 1_000_000
LATER_S = 900.0
"""So long after the binding the load of both nodes is looked at again."""
GRACE_S = 120.0
"""By so much it may be later still; then the moment was missed."""

Candidates = Literal["asked", "estimated"]
"""Whence the nodes are among which profiles chose: those that kube-scheduler asked about, or those where we see nothing
that keeps the pod off."""

Kind = Literal["same", "tied", "other", "none"]
"""The profile's choice beside the real one: the same node; as good by the score that kube-scheduler is told; another;
or none at all, since its filters pass no node."""

Load = tuple[float | None, float | None]
"""CPU and memory of a node, mean over the longest window in percent of capacity; None where it is not known."""

LEFT_OUT = {
    "pod_unreadable": "the pod's requests are no quantities",
    "node_unknown": "the node is not known here",
    "no_load": "the node that it was bound to has no load, or most nodes have none",
    "constraints": "it has rules of affinity or spreading, and kube-scheduler did not ask us about it",
    "no_choice": "no more than one node could have it",
    "seen_late": "the binding was seen too late: the load of then is not known any more",
    "too_many": "more bindings came at once than could be looked at",
    "failed": "a plug-in failed; the log says how",
}
"""Why nothing is said of a binding."""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a profile would have done. `settings` tells its plug-ins and arguments from those it may have later."""

    settings: str
    kind: Kind
    node: str = ""


class ShadowBinding(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod was bound to `node` at `time` (unix seconds). `of` nodes were candidates. `pod_cpu` is what the pod
    requests in percent of the node's CPU. `load` is that of this node and of those chosen, then; `later` the same as it
    was observed after LATER_S, None as long as it was not, or where all chose this one. Where the binding is
    `left_out`, nothing else is said, and `count` bindings are."""

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
    def names_another(self) -> bool:
        """Whether any profile would have chosen another node, so that there is something to look at again."""
        return any(choice.kind == "other" for choice in self.choices.values())


_DECODER = msgspec.json.Decoder(ShadowBinding)


def stored(key: int, binding: ShadowBinding) -> StoredShadow:
    """As the store takes it; `key` in microseconds is its name."""
    return StoredShadow(key, msgspec.json.encode(binding))


def read(shadow: StoredShadow) -> ShadowBinding | None:
    """None for what cannot be read: a record of a version to come must not hide the others."""
    try:
        return _DECODER.decode(shadow.payload)
    except msgspec.DecodeError:
        return None


def settings_of(profile: ProfileSettings) -> str:
    """Equal for profiles that choose alike."""
    plugins = [(each.name, each.weight, each.points, dict(each.args)) for each in profile.plugins]
    text = msgspec.json.encode((plugins, profile.precise_scores), order="deterministic")
    return hashlib.sha256(text).hexdigest()[:12]
