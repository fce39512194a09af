"""The one interface to control groups, whatever version the machine has, and what it is made of.

A `Tree` opens groups by their path ("/kubepods/besteffort/podUID"), a `Group` reads and writes. A group is open like a
file: use it as a context manager. Whether it is there shows when it is first asked. All that fails is a CgroupError.

Directories are entered one by one, and none that is a symbolic link: what a path says is what is opened.

Units: CPU time in nanoseconds, quotas and periods in microseconds, memory in bytes. Unlimited is None.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypeVar

from agent.cgroups import errors

T = TypeVar("T")

Resource = Literal["cpu", "memory", "io"]

_READ_BYTES = 1 << 13
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_EVERY_GROUP = "cgroup.procs"


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quota:
    """How much CPU a group may use: `quota` microseconds in each `period`; None is as much as there is."""

    quota: int | None
    period: int = 100_000

    @property
    def cores(self) -> float:
        """As cores; infinite without a limit."""
        return float("inf") if self.quota is None else self.quota / self.period


@dataclass(frozen=True, slots=True)
class Cpu:
    """What a group used since it was made, and how often it was held back: periods in which it ran, those of them in
    which its quota was used up, and for how long. None where the cpu controller is not enabled for it."""

    usage_ns: int
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What a group has now. The working set is without the file cache that was not used of late, as the kubelet counts
    it for its evictions."""

    usage: int
    working_set: int


@dataclass(frozen=True, slots=True)
class Averages:
    """Percent of time that was lost to waiting, over 10, 60 and 300 seconds, and its total in microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """Of one resource: time in which some tasks waited for it, and in which all did (None: not told)."""

    some: Averages
    full: Averages | None


# --- directories and files -------------------------------------------------------------------------------------------


class Directory:
    """A directory that is open, with its path for messages."""

    __slots__ = ("_fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self.path = path

    @classmethod
    def at(cls, path: str) -> Directory:
        """The root of a tree; it alone may be reached through symbolic links (/sys/fs/cgroup/cpu is one, often)."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)
        except OSError as error:
            raise errors.of_read(error, path=path) from error

    def close(self) -> None:
        """Once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def child(self, name: str) -> Directory:
        """A directory in this one."""
        path = f"{self.path}/{name}"
        if not name or "/" in name or name in (".", ".."):
            raise errors.CgroupDenied("is no name of a group", path=path)
        try:
            return Directory(os.open(name, _DIRECTORY, dir_fd=self._fd), path)
        except OSError as error:
            if os.path.islink(path):
                raise errors.CgroupDenied("is a symbolic link, which is not followed", path=path) from error
            raise errors.of_read(error, path=path) from error

    def walk(self, path: str) -> Directory:
        """The directory at a path from here."""
        here, names = self, [name for name in path.split("/") if name]
        for name in names:
            try:
                there = here.child(name)
            finally:
                if here is not self:
                    here.close()
            here = there
        return here if names else Directory(os.dup(self._fd), self.path)

    def directories(self) -> list[str]:
        """The names of the directories in this one, sorted."""
        try:
            with os.scandir(self._fd) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            raise errors.of_read(error, path=self.path) from error

    def parse(self, name: str, parser: Callable[[bytes], T], *, expected: str, whole: bool = False) -> T:
        """What a file says. One read brings all of it, but for lists of processes: those want `whole`."""
        try:
            fd = os.open(name, _READ, dir_fd=self._fd)
            try:
                content = os.read(fd, _READ_BYTES)
                while whole and (more := os.read(fd, _READ_BYTES)):
                    content += more
            finally:
                os.close(fd)
        except OSError as error:
            raise self._told(error, name) from error
        try:
            return parser(content)
        except (ValueError, KeyError) as error:
            raise errors.garbled(content, path=f"{self.path}/{name}", expected=expected) from error

    def write(self, name: str, value: str, *, hint: str = "") -> None:
        """Write a value in one piece."""
        try:
            fd = os.open(name, _WRITE, dir_fd=self._fd)
            try:
                os.write(fd, value.encode("ascii"))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _MISSING:
                raise self._told(error, name) from error
            raise errors.of_write(error, path=f"{self.path}/{name}", value=value, hint=hint) from error

    def _told(self, error: OSError, name: str) -> errors.CgroupError:
        path = f"{self.path}/{name}"
        if error.errno in _MISSING and self._is_there():
            return errors.CgroupUnsupported(
                "this group has no such file",
                path=path,
                hint="Is its controller enabled for it (cgroup.subtree_control), and the kernel new enough?",
            )
        return errors.of_read(error, path=path if error.errno not in _MISSING else self.path)

    def _is_there(self) -> bool:
        try:
            os.stat(_IN_EVERY_GROUP, dir_fd=self._fd)
        except OSError:
            return False
        return True


_MISSING = (errno.ENOENT, errno.ENODEV)


# --- the interface ---------------------------------------------------------------------------------------------------


class Group(ABC):
    """One control group. Readings raise CgroupGone when it has ended, CgroupUnsupported where this machine does not
    have that, CgroupGarbled for what cannot be understood. Writings read back what they wrote."""

    path: str
    least_weight: int
    """The smallest that this version takes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of it; groups below that are open stay so."""

    @abstractmethod
    def child(self, name: str) -> Group:
        """A group below this one, which must stay open until that one was first asked."""

    @abstractmethod
    def children(self) -> list[str]:
        """The names of the groups below this one, sorted."""

    # --- readings ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def cpu_usage_ns(self) -> int:
        """CPU time used since the group was made."""

    @abstractmethod
    def cpu(self) -> Cpu:
        """The same, with how often it was held back."""

    @abstractmethod
    def quota(self) -> Quota:
        """How much CPU it may use."""

    @abstractmethod
    def weight(self) -> int:
        """Its part of a CPU that is short, as this version counts: cpu.shares (2 to 262144, 1024 by default) or
        cpu.weight (1 to 10000, 100 by default)."""

    @abstractmethod
    def shares(self) -> int:
        """The same as version 1's shares on either; of a weight what the kubelet would have made it from."""

    @abstractmethod
    def memory(self) -> Memory:
        """What memory it has."""

    @abstractmethod
    def memory_limit(self) -> int | None:
        """Above which it is killed."""

    @abstractmethod
    def memory_high(self) -> int | None:
        """Above which it is slowed down and reclaimed from. Version 2 alone."""

    @abstractmethod
    def oom_kills(self) -> int:
        """How many of its processes were killed for want of memory."""

    @abstractmethod
    def pressure(self, resource: Resource) -> Pressure:
        """What it waited for. Version 2 alone, or where its tree stands beside version 1's."""

    @abstractmethod
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes in it (not of those in groups below)."""

    # --- writings ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def set_quota(self, quota: Quota) -> None:
        """Let it use that much CPU. Raises CgroupRefused for a quota below 1000 or above the parent's (version 1)."""

    @abstractmethod
    def set_weight(self, weight: int) -> None:
        """As `weight` reads it."""

    @abstractmethod
    def set_memory_high(self, limit: int | None) -> None:
        """In whole pages, rounded down. Version 2 alone."""

    @abstractmethod
    def reclaim(self, wanted: int) -> int:
        """Take memory from it that can be had again from files, about `wanted` bytes (version 1 takes all there is);
        how much less it has afterwards, 0 at least. May take seconds."""


class Tree(ABC):
    """All groups of the machine."""

    @abstractmethod
    def open(self, path: str) -> Group:
        """The group at a path, which begins at the root of the tree. It may not be there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_back(wanted: T, found: T, *, path: str) -> None:
    """Raises CgroupUnapplied if the kernel has something else than what it was given."""
    if wanted != found:
        raise errors.CgroupUnapplied(
            f"{wanted!r} was written, and it is {found!r}", path=path, hint="Does somebody else write it too?"
        )
