"""Arguments of the plug-ins that add newly assigned pods to the measured load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from scorers.cluster.unmeasured_pods import UPSTREAM_S, UnmeasuredShare
from scorers.plugin_api.arguments import Arguments


class AssignedPodArguments(Arguments, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Additions of load-watcher. A pod is added to the load of its node until the newest sample of the node is
    `assignedPodSeconds` younger than the assignment (upstream: 60). With `assignedPodDecay`, the added amount falls
    evenly from the whole demand to 0 within this time."""

    removed: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("use", "horizon"),
        "remove it: placement by forecasts overloads more nodes than by windows (docs/concepts/forecast.md)",
    )

    assigned_pod_seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = UPSTREAM_S
    assigned_pod_decay: bool = False

    @property
    def unmeasured(self) -> UnmeasuredShare:
        """The part of a new pod's demand that is added to the load of its node."""
        return UnmeasuredShare(self.assigned_pod_seconds, self.assigned_pod_decay)

    def problems(self) -> list[str]:
        """Report a decay without a time."""
        found = super().problems()
        if self.assigned_pod_decay and not self.assigned_pod_seconds:
            found.append("assignedPodDecay: needs assignedPodSeconds above 0 (given: 0)")
        return found
