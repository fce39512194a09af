"""[kubernetes] of load-watcher.toml."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from watcher.platform.settings import values
from watcher.platform.settings.declaring import Table, about


@dataclass(frozen=True, repr=False)
class KubernetesSettings(Table):
    """The Kubernetes API: for the names of nodes, and for metrics-server."""

    kubeconfig: Path | None = field(
        default=None,
        metadata=about(
            values.PATH,
            "Kubernetes configuration that says which cluster. Not set: provider.kubeconfig, else the pod's service "
            "account.",
            example='"/etc/load-watcher/kubeconfig"',
        ),
    )
    context: str | None = field(
        default=None,
        metadata=about(values.TEXT, "Context of the kubeconfig. Not set: its current one.", example='"production"'),
    )
    node_names: str = field(
        default="auto",
        metadata=about(
            values.choice(("auto", "on", "off")),
            "Whether the source's names of nodes become those of the cluster (docs/node-names.md). auto: if a cluster "
            "is known, by a kubeconfig or because this runs in one, and the provider is neither host nor "
            "metrics-server.",
        ),
    )
    node_label: str = field(
        default="kubernetes.io/hostname",
        metadata=about(values.TEXT, "Label of nodes by which they are known too, beside their name and addresses."),
    )
