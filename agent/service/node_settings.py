"""Settings that the agent and the QoS Resource Manager share: node name, listen addresses, access to the kubelet and
control groups."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

from agent.cgroups.detection import Layout, find_layout
from agent.cgroups.paths import Driver
from watcher.core.config import values
from watcher.core.config.fields import SettingsTable
from watcher.core.config.problems import Problem

NODE = values.NAME.like('"node-1"')
PORT = values.integer(lowest=0, highest=65535)
METRICS_HOST = values.NAME.like('"0.0.0.0"')
KUBELET_TOKEN = values.PATH.like('"/var/run/secrets/kubernetes.io/serviceaccount/token"')
KUBELET_CA = values.PATH.like('"/var/lib/kubelet/pki/kubelet.crt"')
CGROUP_DRIVER = values.choice(Driver).like('"systemd"')
CGROUP_NEST = values.NAME.like('"kubelet"')


def nest_problems(nest: str | None, *, section: str) -> list[Problem]:
    """Problems of `cgroup_nest`, which must be a single level."""
    if "/" not in (nest or ""):
        return []
    cure = f'for example {section}.cgroup_nest = "kubelet"'
    return [Problem(f"{section}.cgroup_nest", "must be the name of one group, without slashes", cure)]


class NodeTable(SettingsTable):
    """A settings table of a process on each node, with the keys that the agent and the QoS Resource Manager share.
    `metrics_host` None means no second listener."""

    node: str | None
    host: str
    port: int
    token_file: Path | None
    metrics_host: str | None
    metrics_port: int
    cgroup: Path
    cgroup_driver: Driver | None
    cgroup_nest: str | None

    def node_name(self, environ: Mapping[str, str] = os.environ) -> str:
        """The node's name: the setting, otherwise NODE_NAME, otherwise the host name."""
        return self.node or environ.get("NODE_NAME", "") or socket.gethostname()

    def find_layout(self) -> Layout:
        """The layout of the kubelet's control groups, detected at each call, because the kubelet may start after this
        process. Raises NoCgroups."""
        return find_layout(str(self.cgroup), driver=self.cgroup_driver, nest=self.cgroup_nest)
