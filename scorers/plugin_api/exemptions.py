"""Pods that pass every filter plug-in: the pods of a node itself, which cannot run on another one.

A DaemonSet's pod is bound to one node by its affinity; if a filter rejects the node, the network or log daemon of the
node does not come back after an update. A mirror pod is the image in the API of a static pod, which the kubelet runs
already; the API has static pods in no other form.
"""

from __future__ import annotations

from watcher.core.kubernetes.objects import Pod
from watcher.core.kubernetes.pod_origin import mirrored_uid

DAEMON_EXEMPT = "pods of DaemonSets are not filtered"
MIRROR_EXEMPT = "static pods are not filtered"


def of_daemon_set(pod: Pod) -> bool:
    """Whether the pod names a DaemonSet of any API group (OpenKruise has its own) as an owner, as in Koordinator. The
    extender reads no DaemonSets, so a user who may create pods can name one (docs/concepts/trust.md)."""
    return any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)


def exemption(pod: Pod) -> str:
    """Return why filter plug-ins do not apply to the pod, "" if they do."""
    if of_daemon_set(pod):
        return DAEMON_EXEMPT
    return MIRROR_EXEMPT if mirrored_uid(pod.metadata, pod.spec.node_name) else ""
