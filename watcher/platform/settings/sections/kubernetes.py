"""The section [kubernetes] of load-watcher.toml: access to the cluster, and the use of its node names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from watcher.platform.settings import values
from watcher.platform.settings.field_metadata import SettingsTable, setting


@dataclass(frozen=True, repr=False)
class KubernetesSettings(SettingsTable):
    """Access to the Kubernetes API, for node names and for metrics-server."""

    kubeconfig: Path | None = setting(
        None,
        values.PATH,
        "Kubeconfig of the cluster. Default: provider.kubeconfig, or else the pod's service account.",
        example='"/etc/load-watcher/kubeconfig"',
    )
    context: str | None = setting(
        None, values.TEXT, "Context of the kubeconfig. Default: its current context.", example='"production"'
    )
    node_names: str = setting(
        "auto",
        values.choice(("auto", "on", "off")),
        "Whether the source's node names are mapped to the node names of the "
        "cluster (docs/reference/node-names.md). auto: "
        "on if there is a kubeconfig or the process runs in a cluster, unless the provider is host, metrics-server "
        "or replay.",
    )
    node_label: str = setting(
        "kubernetes.io/hostname", values.TEXT, "Node label with a further name of the node that the source may use."
    )
