"""Exceptions for cgroup operations.

The meaning of an errno depends on the cgroup file. This module translates each errno once, into an exception that names
the file, the value of a failed write, and the remedy.
"""

from __future__ import annotations

import errno
import os

SHOWN_CHARACTERS = 60


class CgroupError(Exception):
    """A cgroup operation failed. `path` is the file or the directory, `hint` is the remedy."""

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.hint = hint


class CgroupGone(CgroupError):
    """The group does not exist, usually because its pod or container has ended."""


class CgroupUnsupported(CgroupError):
    """The group exists but has no such file: the kernel or the cgroup version does not provide it, or the controller is
    not enabled."""


class CgroupRefused(CgroupError):
    """The kernel rejected the value (EINVAL, ERANGE, ENOSPC): out of range, or in conflict with a parent or child
    group."""


class CgroupBusy(CgroupError):
    """The kernel cannot apply the value now (EBUSY): current usage exceeds the new limit, or processes are still in the
    group."""


class CgroupDenied(CgroupError):
    """This process lacks the permission (EACCES, EPERM, EROFS), or the path is not allowed."""


class CgroupGarbled(CgroupError):
    """A file has invalid content: empty, truncated, or not a number."""


class CgroupUnapplied(CgroupError):
    """The kernel accepted a write, but reports a different value."""


def of_read(error: OSError, *, path: str) -> CgroupError:
    """The exception for a failed read. A missing file in an existing group cannot be distinguished here; the caller,
    which knows the group, checks for it."""
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
        return CgroupGone("the group no longer exists", path=path)
    if error.errno == errno.ELOOP:
        return CgroupDenied("symbolic links are not followed", path=path)
    if error.errno == errno.EOPNOTSUPP:
        return CgroupUnsupported(
            "this kernel does not provide it", path=path, hint="For pressure, boot the kernel with psi=1."
        )
    needs = "Run the agent as root, with the host's cgroup file system mounted."
    return CgroupDenied(f"cannot be read: {_words(error)}", path=path, hint=needs)


def of_write(error: OSError, *, path: str, value: str, hint: str = "") -> CgroupError:
    """The exception for a failed write of `value`; `hint` explains an EINVAL of this file."""
    what = f"{value!r} cannot be written"
    if error.errno in (errno.EINVAL, errno.ERANGE, errno.ENOSPC):
        return CgroupRefused(f"{what}: the kernel rejects the value", path=path, hint=hint)
    if error.errno == errno.EBUSY:
        return CgroupBusy(f"{what}: busy", path=path, hint="Current usage exceeds the value and cannot be reclaimed.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        needs = "Writing needs root and the host's cgroup file system mounted read-write (a privileged container)."
        return CgroupDenied(f"{what}: {_words(error)}", path=path, hint=needs)
    return CgroupError(f"{what}: {_words(error)}", path=path)


def garbled(content: bytes, *, path: str, expected: str) -> CgroupGarbled:
    """The exception for a file with invalid content."""
    if not content.strip():
        return CgroupGarbled(f"the file is empty, expected {expected}", path=path)
    shown = content[:SHOWN_CHARACTERS].decode("ascii", errors="backslashreplace")
    return CgroupGarbled(f"contains {shown!r}, expected {expected}", path=path)


def _words(error: OSError) -> str:
    return os.strerror(error.errno or 0)
