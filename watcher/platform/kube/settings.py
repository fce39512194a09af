"""The sections [kubernetes] and [marks] of the settings: access to the cluster, the use of its node names, and what is
written to its nodes."""

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


@dataclass(frozen=True, repr=False)
class MarksSettings(SettingsTable, section="marks"):
    """Soft taints, a score and the pressure of nodes, for schedulers and balancers without code of load-watcher
    (docs/concepts/marks.md)."""

    taints: Annotated[bool, values.BOOLEAN] = False
    """Write taints with the effect PreferNoSchedule to nodes that are hot compared with the other nodes."""
    annotation: Annotated[bool, values.BOOLEAN] = False
    """Write the annotation load-watcher.io/node-score to nodes, for the plug-in NodeMetadata of scheduler-plugins."""
    pressure: Annotated[bool, values.BOOLEAN] = False
    """Serve load_watcher_node_pressure on /metrics, for balancers such as the descheduler. Pods are watched for it."""
    preview: Annotated[bool, values.BOOLEAN] = False
    """Compute and show the taints and the annotation without writing them; no right to change nodes is needed."""
    forecast: Annotated[bool, values.BOOLEAN] = False
    """Whether the bound over forecast.horizon counts as well as the window."""
    tainted_share: Annotated[float, values.FRACTION] = 0.25
    """Share of the nodes of the cluster that may have a taint at the same time; one always may."""

    @property
    def is_on(self) -> bool:
        """Whether the service needs the module of the marks."""
        return self.taints or self.annotation or self.pressure

    @property
    def writes(self) -> bool:
        """Whether the service changes nodes; not in preview."""
        return (self.taints or self.annotation) and not self.preview
