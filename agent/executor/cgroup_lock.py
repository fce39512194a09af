"""The claim to a kubelet's control groups: of all load-watcher agents one may change them, whatever files they keep.

It is a lock (flock) on the directory that the groups are in. So it is there for whoever sees the same groups, in a pod
or beside it, leaves nothing behind, and goes with the process that has it, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable

from agent.cgroups.detection import NoCgroups

log = logging.getLogger(__name__)

ANOTHER = "another load-watcher agent that enforces"
CURE = "`ps -ef` or `kubectl get pods -A -o wide` shows both: end one of them"


class Claim:
    """The claim to the groups in the directory that `place` finds, which raises NoCgroups where there are none. Its
    methods block, for as long as system calls take."""

    def __init__(self, place: Callable[[], str]) -> None:
        self._place = place
        self._descriptor: int | None = None
        self._path = ""
        self._told = ""

    def others(self) -> tuple[str, ...]:
        """Who has it, in words as `rivals` has them; if nobody, it is taken, and kept until it is released."""
        if self._is_ours():
            return ()
        self.release()
        try:
            self._take(self._place())
        except NoCgroups:  # there is nothing to be changed
            return ()
        except BlockingIOError:
            self._tell(f"{ANOTHER} has the control groups in {self._path}: {CURE}")
            return (ANOTHER,)
        except OSError as error:
            # Groups that cannot even be opened nobody changes; whoever wants to is told why he cannot.
            self._tell(f"whether another agent has the control groups in {self._path} is not known: {error.strerror}")
            return ()
        self._tell("")
        return ()

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _is_ours(self) -> bool:
        """Whether it was taken, and the directory is still the one that is there: a kubelet may make a new one."""
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
        """Log changes, not states."""
        if trouble and trouble != self._told:
            log.error("%s", trouble)
        elif self._told and not trouble:
            log.info("no other load-watcher agent has the control groups in %s any more", self._path)
        self._told = trouble
