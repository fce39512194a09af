"""Settings that the processes of a node have alike, the agent and the QoS Resource Manager: who the node is, where they
listen, and how they reach the kubelet and its control groups."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from agent.cgroups.paths import Driver
from watcher.platform.settings import values
from watcher.platform.settings.declaring import Table, about
from watcher.platform.settings.problems import Problem

ANY_PORT = values.whole(lowest=0, highest=65535)

NODE = about(values.NAME, "This node's name in Kubernetes; else NODE_NAME, else the host's.", example='"node-1"')
PORT = about(ANY_PORT, "Port of it; 0 takes any free one.")
METRICS_HOST = about(
    values.NAME,
    "Address of a second listener, like the pod's own: /metrics and /healthz, and with token_file all pages.",
    example='"0.0.0.0"',
)
METRICS_PORT = about(ANY_PORT, "Port of that listener.")
KUBELET_TOKEN = about(
    values.PATH, "Token for the kubelet.", example='"/var/run/secrets/kubernetes.io/serviceaccount/token"'
)
KUBELET_CA = about(values.PATH, "Who signed the kubelet's certificate.", example='"/var/lib/kubelet/pki/kubelet.crt"')
KUBELET_INSECURE = about(values.BOOLEAN, "Whether the kubelet's certificate is taken unchecked.")
CGROUP_DRIVER = about(
    values.choice(each.value for each in Driver),
    "The kubelet's cgroup driver; else it is found out.",
    example='"systemd"',
)
CGROUP_NEST = about(
    values.NAME,
    "The group that the kubelet's groups are in (its cgroupRoot, without slashes); else it is found out: none, or "
    "kind's.",
    example='"kubelet"',
)


def nest_problems(nest: str | None, *, section: str) -> list[Problem]:
    """What is wrong with `cgroup_nest`: the groups are looked for one level further down, not several."""
    if "/" not in (nest or ""):
        return []
    cure = f'for example {section}.cgroup_nest = "kubelet"'
    return [Problem(f"{section}.cgroup_nest", "must be the name of one group, without slashes", cure)]


class NodeTable(Table):
    """A table with `node`."""

    node: str | None

    def node_name(self, environ: Mapping[str, str] = os.environ) -> str:
        """Who this node is."""
        return self.node or environ.get("NODE_NAME", "") or socket.gethostname()
