"""Queries for the evidence of node names: the labels of series, the nodes, host names, pods and machines.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watcher.core.naming.labels import EXPORTED, NODE_LABELS, OF_TARGET
from watcher.core.naming.machines import OF_TIME
from watcher.core.queries.matchers import Matcher, label_text, narrowed

PER_DEVICE = ("cpu", "core", "mode", "device", "gpu", "UUID", "nic")
"""Labels of devices in the raw series, which do not distinguish nodes."""
PER_ZONE = ("zone", "path", "package")
"""Those of Kepler's series beside them: in other series, `zone` is a label of the target."""
PROFILE_LABELS = (*NODE_LABELS, *(EXPORTED + label for label in NODE_LABELS), EXPORTED + "instance", "instance")


def profile(evidence: str, *, labels: Iterable[str]) -> str:
    """Query that returns whether series exist, and the values of the labels that may identify nodes."""
    return f"count by ({', '.join(map(label_text, dict.fromkeys(labels)))}) ({evidence})"


def whole_profile(evidence: str) -> str:
    """Query that returns whether series exist, and all labels but those of devices."""
    devices = (*PER_DEVICE, *PER_ZONE) if "kepler_" in evidence else PER_DEVICE
    return f"count without ({', '.join(devices)}) ({evidence})"


def target_labels_query(evidence: str) -> str:
    """Query for the labels of scrapes without those of nodes and exporters: few series for any number of nodes."""
    of_target = OF_TARGET - {"__name__"}
    exported = (EXPORTED + label for label in of_target - {"job", "instance"})
    of_exporter = sorted({*of_target, *exported, *PER_DEVICE, "boot_id", "machine_id"})
    known = (label for label in PROFILE_LABELS if label == label_text(label))
    return f"group without ({', '.join(dict.fromkeys((*of_exporter, *known)))}) ({evidence})"


def targets_query(*, matchers: Sequence[Matcher] = ()) -> str:
    """Query for the clusters of machines: few series for any number of nodes."""
    return target_labels_query(narrowed("node_uname_info", *matchers))


def host_names_query(*, matchers: Sequence[Matcher] = ()) -> str:
    """Query for the host names of machines."""
    return whole_profile(narrowed("node_uname_info", *matchers))


def known_nodes_query(*, matchers: Sequence[Matcher] = ()) -> str:
    """Query for the nodes that kube-state-metrics knows, with their addresses, readiness and creation times."""
    ready = Matcher("condition", "=", "Ready"), Matcher("status", "=", "true")
    parts = (
        narrowed("kube_node_info", *matchers),
        narrowed("kube_node_status_condition", *ready, *matchers),
        narrowed("kube_node_created", *matchers),
        narrowed("kube_node_status_addresses", *matchers),
    )
    return " or ".join(parts)


def machines_query(*, matchers: Sequence[Matcher] = ()) -> str:
    """Query for the identifiers of machines, of kube-state-metrics and of cAdvisor in the kubelets, and for the idle
    seconds of the first CPU of each target with the time of the reading."""
    identifiers = (narrowed(series, *matchers) for series in ("kube_node_info", "machine_cpu_cores"))
    idle = narrowed("node_cpu_seconds_total", Matcher("cpu", "=", "0"), Matcher("mode", "=", "idle"), *matchers)
    return " or ".join((*identifiers, idle, f'label_replace(timestamp({idle}), "mode", "{OF_TIME}", "mode", ".*")'))


def exporter_pods_query(evidence: str, *, matchers: Sequence[Matcher] = ()) -> str:
    """Query for the pods of the exporters of these series, by namespace and pod, and by address."""
    pods = narrowed("kube_pod_info", *matchers)
    federated = narrowed("kube_pod_info", Matcher("exported_pod", "!=", ""), *matchers)
    address = f'label_replace({evidence}, "pod_ip", "$1", "instance", "\\\\[?([^\\\\]]*)\\\\]?:[^:]*")'
    return (
        f"({pods} and on (namespace, pod) ({evidence}))"
        f" or ({federated} and on (exported_namespace, exported_pod) ({evidence}))"
        f" or ({pods} and on (pod_ip) ({address}))"
    )
