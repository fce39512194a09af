"""The interface to control groups that cgroup versions 1 and 2 share, and the values that it returns:
quotas, weights, memory limits and usage.

A `Tree` opens groups by path ("/kubepods/besteffort/podUID"); a `Group` reads and writes the files of one group. Use a
group as a context manager, like a file. Opening a group does not check that it exists; the first read or write does.
All failures are CgroupErrors.

Directories are entered one at a time, and symbolic links are not followed, so the group that is opened is always the
one that the path names.

Units: CPU time in nanoseconds, quotas and periods in microseconds, memory in bytes. None means unlimited.
"""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

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
    """CPU limit of a group: `quota` microseconds in each `period` (microseconds); a quota of None is unlimited. `burst`
    microseconds of unused quota may be used later; the kernel refuses a burst above the quota."""

    quota: int | None
    period: int = 100_000
    burst: int = 0

    @property
    def cores(self) -> float:
        """The quota in cores; infinity if unlimited."""
        return float("inf") if self.quota is None else self.quota / self.period


@dataclass(frozen=True, slots=True)
class CpuUsage:
    """CPU usage of a group since its creation, and its throttling: the number of periods in which it ran, the number of
    periods in which it used up its quota, and the throttled time. The throttling values are None if the cpu controller
    is not enabled for the group."""

    usage_ns: int
    periods: int | None = None
    throttled_periods: int | None = None
    throttled_ns: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryUsage:
    """Current memory usage of a group in bytes. The working set excludes the inactive file cache, as in the kubelet's
    eviction signals."""

    usage: int
    working_set: int


@dataclass(frozen=True, slots=True)
class PressureAverages:
    """Percentage of time (0–100) lost to waiting, averaged over 10, 60 and 300 seconds, and its total in
    microseconds."""

    avg10: float
    avg60: float
    avg300: float
    total_us: int


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure stall information of one resource: time in which some tasks, or all tasks (`full`), waited for it.
    `full` is None if the kernel does not report it."""

    some: PressureAverages
    full: PressureAverages | None


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
    """One control group. Reads raise CgroupGone if the group no longer exists, CgroupUnsupported if this machine does
    not provide the value, and CgroupGarbled if the content is invalid. Writes read the value back to verify it."""

    path: str
    least_weight: int
    """The smallest weight that this cgroup version accepts."""
    most_descriptors: int
    """File descriptors of a group whose files are kept open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close this group. Open child groups remain open."""

    @abstractmethod
    def keep_open(self) -> None:
        """Keep the files that are read open from now on, until `close`, for a group that is read again and again. If
        such a group is removed, `is_removed` is true or reads raise CgroupGone, also if a new group has its path."""

    @abstractmethod
    def is_removed(self) -> bool:
        """Whether an open directory of this group was removed."""

    @abstractmethod
    def child(self, name: str) -> Group:
        """A group below this group. This group must remain open until the first access to the child."""

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


class Tree(ABC):
    """The cgroup hierarchy of the machine."""

    @abstractmethod
    def open(self, path: str) -> Group:
        """The group at a path relative to the root of the tree. The group may not exist."""

    @abstractmethod
    def close(self) -> None:
        """Close the root directories of the tree."""

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


Knob = Literal["cpu.max", "cpu.weight", "memory.high"]
CPU_MAX: Knob = "cpu.max"
CPU_WEIGHT: Knob = "cpu.weight"
MEMORY_HIGH: Knob = "memory.high"
NOUNS: Mapping[Knob, str] = {CPU_MAX: "quota", CPU_WEIGHT: CPU_WEIGHT, MEMORY_HIGH: MEMORY_HIGH}


@dataclass(frozen=True, slots=True)
class CpuWeight:
    """A CPU weight in the unit of the cgroup version: cpu.weight or cpu.shares."""

    weight: int


@dataclass(frozen=True, slots=True)
class MemoryHigh:
    """Bytes above which a group is throttled and its memory reclaimed; None is unlimited."""

    limit: int | None


Value = Quota | CpuWeight | MemoryHigh


def knob_of(value: Value) -> Knob:
    """The name of the limit that a value belongs to."""
    return CPU_MAX if isinstance(value, Quota) else CPU_WEIGHT if isinstance(value, CpuWeight) else MEMORY_HIGH


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


def same_quota(value: Value, other: Value | None) -> bool:
    """Whether two values are equal, but for the burst of a quota."""
    if isinstance(value, Quota) and isinstance(other, Quota):
        return replace(value, burst=0) == replace(other, burst=0)
    return value == other


def at_least(value: Value, other: Value) -> bool:
    """Whether `value` restricts a group no more than `other`. False for values of different limits."""
    if isinstance(value, Quota) and isinstance(other, Quota):
        if value.quota is None or other.quota is None:
            return value.quota is None
        return value.quota * other.period >= other.quota * value.period
    if isinstance(value, CpuWeight) and isinstance(other, CpuWeight):
        return value.weight >= other.weight
    if isinstance(value, MemoryHigh) and isinstance(other, MemoryHigh):
        return value.limit is None or (other.limit is not None and value.limit >= other.limit)
    return False


def as_text(value: Value) -> str:
    """The value in the text format of the version 2 file."""
    if isinstance(value, Quota):
        return f"{_or_max(value.quota)} {value.period}" + (f" {value.burst}" if value.burst else "")
    return str(value.weight) if isinstance(value, CpuWeight) else _or_max(value.limit)


def from_text(knob: Knob, text: str) -> Value:
    """Parse the format of `as_text`. Raises ValueError."""
    if knob == CPU_MAX:
        quota, period, *burst = text.split()
        return Quota(None if quota == "max" else int(quota), int(period), int(burst[0]) if burst else 0)
    if knob == CPU_WEIGHT:
        return CpuWeight(int(text))
    return MemoryHigh(None if text == "max" else int(text))


def _or_max(number: int | None) -> str:
    return "max" if number is None else str(number)


def as_json(value: Value) -> Mapping[str, Any]:
    """The value as it appears in the audit log."""
    if isinstance(value, Quota):
        return {"quota": value.quota, "period": value.period} | ({"burst": value.burst} if value.burst else {})
    return {CPU_WEIGHT: value.weight} if isinstance(value, CpuWeight) else {MEMORY_HIGH: value.limit}


def in_words(value: Value) -> str:
    """The value with its unit, for log and error messages."""
    if isinstance(value, Quota):
        text = "unlimited" if value.quota is None else f"{value.quota} of {value.period} µs"
        return f"{text} with a burst of {value.burst} µs" if value.burst else text
    if isinstance(value, CpuWeight):
        return str(value.weight)
    return "unlimited" if value.limit is None else f"{value.limit} bytes"
