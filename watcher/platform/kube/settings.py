"""The section [kubernetes] of the settings: access to the cluster, and the use of its node names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from watcher.core.config import values
from watcher.core.config.fields import SettingsTable


@dataclass(frozen=True, repr=False)
class KubernetesSettings(SettingsTable, section="kubernetes"):
    """Access to the Kubernetes API, for node names and for metrics-server."""

    kubeconfig: Annotated[Path | None, values.PATH.like('"/etc/load-watcher/kubeconfig"')] = None
    """Kubeconfig of the cluster. Default: provider.kubeconfig, or else the pod's service account."""
    context: Annotated[str | None, values.TEXT.like('"production"')] = None
    """Context of the kubeconfig. Default: its current context."""
    node_names: Annotated[str, values.choice(("auto", "on", "off"))] = "auto"
    """Whether the source's node names are mapped to the node names of the cluster (docs/reference/node-names.md). auto:
    on if there is a kubeconfig or the process runs in a cluster, unless the provider is host, metrics-server or
    replay."""
    node_label: Annotated[str, values.TEXT] = "kubernetes.io/hostname"
    """Node label with a further name of the node that the source may use."""
    of_provider: Path | None = None
    """provider.kubeconfig."""

    @property
    def path(self) -> Path | None:
        """Path of the kubeconfig; None for the cluster that this pod runs in."""
        return self.kubeconfig or self.of_provider

    @property
    def access(self) -> tuple[Path | None, str | None]:
        """The kubeconfig's path and context; None for the pod's cluster and for the current context."""
        return self.path, self.context
