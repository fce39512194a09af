"""The interface to control groups, and what cgroup versions 1 and 2 have in common: open directories and files.

A `Tree` opens groups by path ("/kubepods/besteffort/podUID"); a `Group` reads and writes the files of one group. Use a
group as a context manager, like a file. Opening a group does not check that it exists; the first read or write does.
All failures are CgroupErrors.

Directories are entered one at a time, and symbolic links are not followed, so the group that is opened is always the
one that the path names.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Literal, Self, TypeVar

from agent.cgroups import errors
from agent.cgroups.values import (
    CPU_MAX,
    CPU_WEIGHT,
    CpuUsage,
    CpuWeight,
    Knob,
    MemoryHigh,
    MemoryUsage,
    Pressure,
    Quota,
    Value,
)

T = TypeVar("T")

Resource = Literal["cpu", "memory", "io"]

_READ_BYTES = 1 << 13
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_IN_EVERY_GROUP = "cgroup.procs"


# --- directories and files -------------------------------------------------------------------------------------------


class CgroupDirectory:
    """An open directory, and its path for error messages. With `keep_files`, files that are read stay open: reading
    them again takes one system call instead of three."""

    __slots__ = ("_fd", "_files", "path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._files: dict[str, int] | None = None
        self.path = path

    @classmethod
    def at(cls, path: str) -> CgroupDirectory:
        """Open the root of a tree. Only a root may be reached through symbolic links (/sys/fs/cgroup/cpu is often
        one)."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), path)
        except OSError as error:
            raise errors.of_read(error, path=path) from error

    def close(self) -> None:
        """Close the file descriptors. Idempotent."""
        for fd in (self._files or {}).values():
            os.close(fd)
        self._files = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def keep_files(self) -> None:
        """Keep files open from now on, until `close`."""
        if self._files is None:
            self._files = {}

    def is_removed(self) -> bool:
        """Whether the directory was removed. Where links are not counted, reads of its files fail instead."""
        return os.fstat(self._fd).st_nlink == 0

    def child(self, name: str) -> CgroupDirectory:
        """Open a subdirectory. Raises CgroupDenied for an invalid name or a symbolic link."""
        path = f"{self.path}/{name}"
        if not name or "/" in name or name in (".", ".."):
            raise errors.CgroupDenied("not a valid group name", path=path)
        try:
            return CgroupDirectory(os.open(name, _DIRECTORY, dir_fd=self._fd), path)
        except OSError as error:
            if os.path.islink(path):
                raise errors.CgroupDenied("symbolic links are not followed", path=path) from error
            raise errors.of_read(error, path=path) from error

    def walk(self, path: str) -> CgroupDirectory:
        """Open the directory at a path relative to this directory."""
        here, names = self, [name for name in path.split("/") if name]
        for name in names:
            try:
                there = here.child(name)
            finally:
                if here is not self:
                    here.close()
            here = there
        return here if names else CgroupDirectory(os.dup(self._fd), self.path)

    def directories(self) -> list[str]:
        """The names of the subdirectories, sorted."""
        try:
            with os.scandir(self._fd) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            raise errors.of_read(error, path=self.path) from error

    def parse(self, name: str, parser: Callable[[bytes], T], *, expected: str, whole: bool = False) -> T:
        """Read a file and parse its content. One read returns the complete content of most files; lists of processes
        can be longer and need `whole`."""
        try:
            content = (
                self._read(name, whole=whole)
                if self._files is None or whole
                else _read_kept(self._fd, name, self._files)
            )
        except OSError as error:
            raise self._read_error(error, name) from error
        try:
            return parser(content)
        except (ValueError, KeyError) as error:
            raise errors.garbled(content, path=f"{self.path}/{name}", expected=expected) from error

    def _read(self, name: str, *, whole: bool) -> bytes:
        fd = os.open(name, _READ, dir_fd=self._fd)
        try:
            content = os.read(fd, _READ_BYTES)
            while whole and (more := os.read(fd, _READ_BYTES)):
                content += more
            return content
        finally:
            os.close(fd)

    def write(self, name: str, value: str, *, hint: str = "") -> None:
        """Write a value with a single write call. Raises CgroupError."""
        try:
            fd = os.open(name, _WRITE, dir_fd=self._fd)
            try:
                os.write(fd, value.encode("ascii"))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in _MISSING:
                raise self._read_error(error, name) from error
            raise errors.of_write(error, path=f"{self.path}/{name}", value=value, hint=hint) from error

    def _read_error(self, error: OSError, name: str) -> errors.CgroupError:
        path = f"{self.path}/{name}"
        if error.errno in _MISSING and self._is_there():
            return errors.CgroupUnsupported(
                "this group has no such file",
                path=path,
                hint="Enable the controller (cgroup.subtree_control), and check that the kernel is recent enough.",
            )
        return errors.of_read(error, path=path if error.errno not in _MISSING else self.path)

    def _is_there(self) -> bool:
        try:
            os.stat(_IN_EVERY_GROUP, dir_fd=self._fd)
        except OSError:
            return False
        return True


def _read_kept(directory: int, name: str, files: dict[str, int]) -> bytes:
    """Read a file whose descriptor is kept in `files`. The kernel makes the content again for a read at its start."""
    fd = files.get(name)
    if fd is None:
        fd = files[name] = os.open(name, _READ, dir_fd=directory)
    return os.pread(fd, _READ_BYTES, 0)


_MISSING = (errno.ENOENT, errno.ENODEV)


# --- the interface ---------------------------------------------------------------------------------------------------


class Group(ABC):
    """One control group. Its directories are opened at the first use: `roots` are the trees by controller, of which
    several can be the same. Reads raise CgroupGone if the group no longer exists, CgroupUnsupported if this machine
    does not provide the value, and CgroupGarbled if the content is invalid. Writes read the value back to verify it."""

    __slots__ = ("_above", "_keeps", "_open", "_roots", "_step", "path")
    least_weight: int
    """The smallest weight that this cgroup version accepts."""
    most_descriptors: int
    """File descriptors of a group whose files are kept open."""

    def __init__(
        self, roots: Mapping[str, CgroupDirectory], path: str, *, above: Self | None = None, step: str = ""
    ) -> None:
        self.path = path
        self._roots = roots
        self._above = above
        self._step = step
        self._open: dict[str, CgroupDirectory] = {}
        self._keeps = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this group. Open child groups remain open."""
        for directory in self._open.values():
            directory.close()
        self._open.clear()

    def keep_open(self) -> None:
        """Keep the files that are read open from now on, until `close`, for a group that is read again and again. If
        such a group is removed, `is_removed` is true or reads raise CgroupGone, also if a new group has its path."""
        self._keeps = True

    def is_removed(self) -> bool:
        """Whether an open directory of this group was removed."""
        return any(directory.is_removed() for directory in self._open.values())

    def child(self, name: str) -> Self:
        """A group below this group. This group must remain open until the first access to the child."""
        return type(self)(self._roots, f"{self.path}/{name}", above=self, step=name)

    def _in(self, controller: str) -> CgroupDirectory:
        """The directory of this group in the tree of a controller."""
        root = self._roots.get(controller)
        if root is None:
            raise errors.CgroupUnsupported(
                "this machine does not have this controller", path=f"{controller}:{self.path}"
            )
        found = self._open.get(root.path)
        if found is None:
            above = self._above
            found = root.walk(self.path) if above is None else above._in(controller).child(self._step)
            self._open[root.path] = found
            if self._keeps:
                found.keep_files()
        return found

    @abstractmethod
    def children(self) -> list[str]:
        """The names of the groups directly below this group, sorted."""

    # --- reads -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def cpu_usage_ns(self) -> int:
        """CPU time used since the group was created, in nanoseconds."""

    @abstractmethod
    def cpu(self) -> CpuUsage:
        """CPU time used since the group was created, and how often the group was throttled."""

    @abstractmethod
    def quota(self) -> Quota:
        """The CPU quota and its period."""

    @abstractmethod
    def burst(self) -> int:
        """The burst of the CPU quota in microseconds; 0 on a kernel without bursts."""

    @abstractmethod
    def weight(self) -> int:
        """The CPU weight in the unit of this cgroup version: cpu.shares (2 to 262144, default 1024) or cpu.weight (1 to
        10000, default 100)."""

    @abstractmethod
    def shares(self) -> int:
        """The CPU weight as cpu.shares on both versions; a cpu.weight is converted back with the kubelet's formula."""

    @abstractmethod
    def memory(self) -> MemoryUsage:
        """Memory usage and working set in bytes."""

    @abstractmethod
    def memory_high(self) -> int | None:
        """Bytes above which the group is throttled and its memory reclaimed; None if unlimited. Version 2 only."""

    @abstractmethod
    def pressure(self, resource: Resource) -> Pressure:
        """Pressure stall information. Available on version 2 and on hybrid machines."""

    @abstractmethod
    def processes(self) -> tuple[int, ...]:
        """The ids of the processes in this group, without processes of child groups."""

    # --- writes ------------------------------------------------------------------------------------------------------

    def set_quota(self, quota: Quota) -> None:
        """Set the CPU quota and the burst, in the order that the kernel accepts. Raises CgroupRefused for a quota below
        1000 µs or, on version 1, above the parent's quota; the burst is then unchanged."""
        burst = self.burst()
        if quota.burst < burst:
            self.set_burst(quota.burst)
        try:
            self.set_only_quota(quota)
        except errors.CgroupError:
            if quota.burst < burst:
                with contextlib.suppress(errors.CgroupError):
                    self.set_burst(burst)
            raise
        if quota.burst > burst:
            self.set_burst(quota.burst)

    @abstractmethod
    def set_only_quota(self, quota: Quota) -> None:
        """Set the CPU quota without its burst."""

    @abstractmethod
    def set_burst(self, burst: int) -> None:
        """Set the burst in microseconds."""

    @abstractmethod
    def set_weight(self, weight: int) -> None:
        """Set the CPU weight, in the same unit as `weight`."""

    @abstractmethod
    def set_memory_high(self, limit: int | None) -> None:
        """Set memory.high in bytes, rounded down to whole pages; None removes the limit. Version 2 only."""

    @abstractmethod
    def reclaim(self, wanted: int) -> int:
        """Reclaim about `wanted` bytes from the file cache of the group (version 1 reclaims as much as possible).
        Returns by how many bytes the usage fell, at least 0. Can take several seconds."""


class Tree:
    """The cgroup hierarchy of the machine: groups of the class `kind`, in the directories `roots` by controller.
    Controllers that are mounted together, usually cpu and cpuacct, share one directory."""

    def __init__(self, roots: Mapping[str, str], kind: type[Group]) -> None:
        trees = {path: CgroupDirectory.at(path) for path in dict.fromkeys(roots.values())}
        self._roots = {name: trees[path] for name, path in roots.items()}
        self._kind = kind

    def open(self, path: str) -> Group:
        """The group at a path relative to the root of the tree. The group may not exist."""
        return self._kind(self._roots, path)

    def close(self) -> None:
        """Close the root directories of the tree."""
        for root in self._roots.values():
            root.close()  # idempotent: controllers can share a root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_back(wanted: T, found: T, *, path: str) -> None:
    """Raises CgroupUnapplied if the value that the kernel reports differs from the value that was written."""
    if wanted != found:
        raise errors.CgroupUnapplied(
            f"{wanted!r} was written, but the file contains {found!r}", path=path, hint="Another process may write it."
        )


def read(group: Group, knob: Knob) -> Value:
    """The current value of a group's limit, for a quota with its burst. Raises CgroupError."""
    if knob == CPU_MAX:
        return replace(group.quota(), burst=group.burst())
    return CpuWeight(group.weight()) if knob == CPU_WEIGHT else MemoryHigh(group.memory_high())


def write(group: Group, value: Value) -> None:
    """Set a limit of a group. Raises CgroupError."""
    if isinstance(value, Quota):
        group.set_quota(value)
    elif isinstance(value, CpuWeight):
        group.set_weight(value.weight)
    else:
        group.set_memory_high(value.limit)
