"""Detects other agents that manage the control groups of pods, and locks the groups for this agent."""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from agent.cgroups.detection import NoCgroups
from agent.cgroups.paths import read_pod
from agent.model import PodState

log = logging.getLogger(__name__)


ANOTHER = "another enforcing load-watcher agent"
CURE = "find both with `ps -ef` or `kubectl get pods -A -o wide`, and stop one of them"


class CgroupLock:
    """The lock on the groups in the directory that `place()` returns; `place` raises NoCgroups if there are none. Its
    methods block for the duration of a few system calls."""

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place
        self._descriptor: int | None = None
        self._path = ""
        self._reported = ""

    def acquire(self) -> tuple[str, ...]:
        """Take the lock and hold it until `release`. If another process holds it, return a description of the holder,
        in the form of `conflicting_agents`; otherwise return ()."""
        if self._is_ours():
            return ()
        self.release()
        try:
            self._take(self._place())
        except NoCgroups:  # there are no groups to protect
            return ()
        except BlockingIOError:
            self._tell(f"{ANOTHER} holds the lock on the control groups in {self._path}: {CURE}")
            return (ANOTHER,)
        except OSError as error:
            # If the directory cannot be opened, this agent cannot change the groups either; the log has the reason.
            self._tell(f"cannot check the lock of other agents on control groups in {self._path}: {error.strerror}")
            return ()
        self._tell("")
        return ()

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_ours(self) -> bool:
        """Whether the lock is held on the current directory, which a kubelet may have replaced."""
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except OSError:
            return False

    def _take(self, path: str) -> None:
        self._path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def _tell(self, trouble: str) -> None:
        """Log `trouble` if it changed since the last call; "" means that there is none."""
        if trouble and trouble != self._reported:
            log.error("%s", trouble)
        elif self._reported and not trouble:
            log.info("acquired the lock on the control groups in %s", self._path)
        self._reported = trouble


RIVALS = ("koordlet", "crane-agent")
LABELS = {
    ("koord-app", "koordlet"),
    ("app", "koordlet"),
    ("app", "crane-agent"),
    ("app.kubernetes.io/name", "koordlet"),
    ("app.kubernetes.io/name", "crane-agent"),
}


def conflicting_agents(pods: Collection[PodState] | None, proc: Path) -> tuple[str, ...]:
    """Descriptions of the detected agents, for example "koordlet (pod koordinator-system/koordlet-x2x4z)". Any pod may
    have their labels and process names; only one that mounts a directory of the host can manage control groups. If the
    pods are unknown (None), each process with the name of an agent counts. It reads `proc`, the host's /proc, which
    takes a few milliseconds."""
    able = sorted((pod for pod in pods or () if pod.host_paths and not pod.ended), key=lambda pod: pod.key)
    found = [f"{name} (pod {pod.key})" for pod in able if (name := _rival(pod)) is not None]
    uids, running = {"", *(pod.uid for pod in able)}, set[str]()
    for path in proc.glob("[0-9]*/comm"):
        with suppress(OSError):  # it ended meanwhile
            name = path.read_text("utf-8", "replace").strip()
            if name in RIVALS and (_pod_of(path.with_name("cgroup")) in uids or pods is None):
                running.add(name)
    in_pods = {each.partition(" ")[0] for each in found}
    return (*found, *(f"{name} (process)" for name in sorted(running - in_pods)))


def _rival(pod: PodState) -> str | None:
    labelled = next((value for key, value in pod.labels.items() if (key, value) in LABELS), None)
    if labelled is not None:
        return labelled
    return next((name for name in RIVALS if pod.owner == f"DaemonSet/{name}"), None)


def _pod_of(file: Path) -> str:
    """The uid of the pod in whose control group a process is; "" if it is in none."""
    try:
        names = re.split("[/\n]", file.read_text("utf-8", "replace"))
    except FileNotFoundError:
        return ""
    return next((uid for name in names if (uid := read_pod(name)) is not None), "")
