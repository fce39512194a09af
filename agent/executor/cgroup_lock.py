"""The lock on a kubelet's control groups: only one load-watcher agent may change them, whichever audit file it uses.

It is an flock on the directory of the groups. It works for all processes that see the same groups, in a pod or on the
host, leaves no file behind, and is released when the process ends, even after a crash.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable

from agent.cgroups.detection import NoCgroups

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
        self._told = ""

    def others(self) -> tuple[str, ...]:
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
        if trouble and trouble != self._told:
            log.error("%s", trouble)
        elif self._told and not trouble:
            log.info("acquired the lock on the control groups in %s", self._path)
        self._told = trouble
