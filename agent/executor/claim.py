"""The claim to the control groups of a node: of all load-watcher agents one may change them, whatever files they keep.

It is a lock (flock) on the directory that the groups are in. So it is there for whoever sees the same groups, in a pod
or beside it, leaves nothing behind, and goes with the process that has it, however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

ANOTHER = "another load-watcher agent that enforces"
CURE = "`ps -ef` or `kubectl get pods -A -o wide` shows both: end one of them"


class Claim:
    """The claim to the groups below `root`; its methods block, for as long as a system call takes."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptor: int | None = None
        self._told = ""

    def others(self) -> tuple[str, ...]:
        """Who has it, in words as `rivals` has them; if nobody, it is taken, and kept until it is released."""
        if self._descriptor is not None:
            return ()
        try:
            self._take()
        except BlockingIOError:
            self._tell(f"{ANOTHER} has the control groups of {self._root}: {CURE}")
            return (ANOTHER,)
        except OSError as error:
            # Groups that cannot even be opened nobody changes; whoever wants to is told why he cannot.
            self._tell(f"whether another agent has the control groups of {self._root} is not known: {error.strerror}")
            return ()
        self._tell("")
        return ()

    def release(self) -> None:
        """Let others have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _take(self) -> None:
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
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
            log.info("no other load-watcher agent has the control groups of %s any more", self._root)
        self._told = trouble
