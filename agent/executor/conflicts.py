"""Detects other agents on the node that manage the same control groups, with which changes would conflict.

It knows koordlet (Koordinator), which suppresses BestEffort pods by quota and cpuset, and crane-agent (Crane), which
reads the same policies. It detects them by their pods on this node (labels of their Helm charts, or a DaemonSet of that
name), and by their processes, for agents that run without a pod.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agent.model import PodState

RIVALS = ("koordlet", "crane-agent")
LABELS = {
    ("koord-app", "koordlet"),
    ("app", "koordlet"),
    ("app", "crane-agent"),
    ("app.kubernetes.io/name", "koordlet"),
}
LABELS |= {("app.kubernetes.io/name", "crane-agent")}
ENDED = ("Succeeded", "Failed")


def conflicting_agents(pods: Iterable[PodState], processes: Iterable[str] = ()) -> tuple[str, ...]:
    """Descriptions of the detected agents, for example "koordlet (pod koordinator-system/koordlet-x2x4z)". `processes`
    are process names."""
    found = [
        f"{name} (pod {pod.key})" for pod in sorted(pods, key=lambda pod: pod.key) if (name := _rival(pod)) is not None
    ]
    told = {each.partition(" ")[0] for each in found}
    found += [f"{name} (process)" for name in sorted(set(processes) & set(RIVALS) - told)]
    return tuple(found)


def _rival(pod: PodState) -> str | None:
    if pod.phase in ENDED:
        return None
    labelled = next((value for key, value in pod.labels.items() if (key, value) in LABELS), None)
    if labelled is not None:
        return labelled
    return next((name for name in RIVALS if pod.owner == f"DaemonSet/{name}"), None)


def process_names(proc: Path = Path("/proc")) -> frozenset[str]:
    """The names (`comm`) of all visible processes. It blocks for a few milliseconds."""
    names = set()
    for path in proc.glob("[0-9]*/comm"):
        try:
            names.add(path.read_text("utf-8", "replace").strip())
        except OSError:  # it ended meanwhile
            continue
    return frozenset(names)
