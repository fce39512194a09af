"""Rights that the settings of the QoS Resource Manager need in the Kubernetes API; the doctor checks them.

`deploy/qrm` grants the rights of all modes, and each component in `deploy/components` the rights of what it enables;
the chart grants them by its values.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.qrm.settings import SERVER, QrmSettings
from agent.state.daemon_sets import DAEMON_SETS
from watcher.core.kubernetes.objects import EVENTS, NODES, PODS
from watcher.platform.checks.permissions import Permission

BASE = "deploy/qrm/rbac.yaml"
EVICT = "deploy/components/qrm-evict (in the chart: qrm.config.qrm.evict_inadmissible)"
PUBLISH = "deploy/components/qrm-publish (in the chart: qrm.config.qrm.publish_capacity)"


def required_rights(own: QrmSettings) -> Iterator[Permission]:
    """Yield the rights that a manager with these settings uses. In the mode server, it does not use the API."""
    if own.mode == SERVER:
        return
    for verb in ("list", "watch"):
        yield Permission(verb, PODS, "the pods of its node from the API", granted_by=BASE)
    yield Permission("get", DAEMON_SETS, "the DaemonSets that pods name as controllers", granted_by=BASE)
    yield Permission("create", EVENTS, "Events on pods that cannot be admitted", vital=False, granted_by=BASE)
    if own.evicts:
        purpose = "the eviction of pods that cannot be admitted"
        yield Permission("get", PODS, purpose, granted_by=EVICT)
        yield Permission("create", PODS, purpose, subresource="eviction", granted_by=EVICT)
    if own.publishes:
        purpose = "the resources of plug-ins in the status of its node"
        yield Permission("patch", NODES, purpose, subresource="status", name=own.node_name(), granted_by=PUBLISH)
