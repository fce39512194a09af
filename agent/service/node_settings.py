"""Settings that the agent and the QoS Resource Manager share: node name, listen addresses, access to the kubelet and
control groups."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from agent.cgroups.paths import Driver
from watcher.platform.settings import values
from watcher.platform.settings.field_metadata import Setting, SettingsTable
from watcher.platform.settings.problems import Problem

ANY_PORT = values.integer(lowest=0, highest=65535)

NODE = Setting(
    values.NAME,
    "Name of this node in Kubernetes. Default: the environment variable NODE_NAME, otherwise the host name.",
    example='"node-1"',
)
PORT = Setting(ANY_PORT, "TCP port that the HTTP API listens on; 0 selects a free port.")
METRICS_HOST = Setting(
    values.NAME,
    "Address of a second listener, for example the pod's, for /metrics and /healthz; with token_file, for all pages.",
    example='"0.0.0.0"',
)
METRICS_PORT = Setting(ANY_PORT, "TCP port of the second listener (metrics_host); 0 selects a free port.")
KUBELET_TOKEN = Setting(
    values.PATH,
    "File with the bearer token for the kubelet.",
    example='"/var/run/secrets/kubernetes.io/serviceaccount/token"',
)
KUBELET_CA = Setting(
    values.PATH,
    "File with the CA certificate that signed the kubelet's certificate.",
    example='"/var/lib/kubelet/pki/kubelet.crt"',
)
KUBELET_INSECURE = Setting(values.BOOLEAN, "Whether to skip verification of the kubelet's certificate.")
CGROUP_DRIVER = Setting(
    values.choice(each.value for each in Driver),
    "Cgroup driver of the kubelet. Default: detected.",
    example='"systemd"',
)
CGROUP_NEST = Setting(
    values.NAME,
    "Parent of the kubelet's control groups (its cgroupRoot, without slashes). Default: detected "
    "automatically (none, or kubelet in a kind cluster).",
    example='"kubelet"',
)


def nest_problems(nest: str | None, *, section: str) -> list[Problem]:
    """Problems of `cgroup_nest`, which must be a single level."""
    if "/" not in (nest or ""):
        return []
    cure = f'for example {section}.cgroup_nest = "kubelet"'
    return [Problem(f"{section}.cgroup_nest", "must be the name of one group, without slashes", cure)]


class NodeTable(SettingsTable):
    """A settings table that has the key `node`."""

    node: str | None

    def node_name(self, environ: Mapping[str, str] = os.environ) -> str:
        """The node's name: the setting, otherwise NODE_NAME, otherwise the host name."""
        return self.node or environ.get("NODE_NAME", "") or socket.gethostname()
