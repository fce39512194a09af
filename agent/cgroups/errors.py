"""What can go wrong with a control group, in words that say what to do about it.

The kernel says it with an errno that means something else for each file; it is translated here, once, with the name of
the file and, where it was a write, what was to be written.
"""

from __future__ import annotations

import errno
import os

SHOWN_CHARACTERS = 60


class CgroupError(Exception):
    """A group did not do what was asked. `path` is the file or the directory, `hint` what can be done about it."""

    def __init__(self, message: str, *, path: str, hint: str = "") -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.hint = hint


class CgroupGone(CgroupError):
    """The group is not there (any more): its pod or container has ended."""


class CgroupUnsupported(CgroupError):
    """The group is there and has no such file: this kernel, this version of cgroups, or a controller not enabled."""


class CgroupRefused(CgroupError):
    """The kernel does not take the value (EINVAL, ERANGE): out of range, or against the groups above or below."""


class CgroupBusy(CgroupError):
    """The kernel cannot do it now (EBUSY): what is used is more than the new limit, or processes are still there."""


class CgroupDenied(CgroupError):
    """We may not (EACCES, EPERM, EROFS)."""


class CgroupGarbled(CgroupError):
    """A file holds what it never should: nothing, half a line, something that is no number."""


class CgroupUnapplied(CgroupError):
    """The kernel took a value without complaint, and has another one."""


def of_read(error: OSError, *, path: str) -> CgroupError:
    """What a failed reading means. That a file alone is missing and not the group is for who knows the group to say."""
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):
        return CgroupGone("there is no such group any more", path=path)
    if error.errno == errno.ELOOP:
        return CgroupDenied("is a symbolic link, which is not followed", path=path)
    if error.errno == errno.EOPNOTSUPP:
        return CgroupUnsupported(
            "this kernel does not keep it", path=path, hint="For pressure it must be booted with psi=1."
        )
    needs = "The agent needs to be root, with the host's cgroup file system mounted."
    return CgroupDenied(f"cannot be read: {_words(error)}", path=path, hint=needs)


def of_write(error: OSError, *, path: str, value: str, hint: str = "") -> CgroupError:
    """What a failed writing of `value` means; `hint` is what is known about this file's EINVAL."""
    what = f"{value!r} cannot be written"
    if error.errno in (errno.EINVAL, errno.ERANGE, errno.ENOSPC):
        return CgroupRefused(f"{what}: the kernel refuses it", path=path, hint=hint)
    if error.errno == errno.EBUSY:
        return CgroupBusy(f"{what}: it is busy", path=path, hint="More is used than that, and cannot be reclaimed.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        needs = "Writing needs root, and the host's cgroup file system mounted read-write (a privileged container)."
        return CgroupDenied(f"{what}: {_words(error)}", path=path, hint=needs)
    return CgroupError(f"{what}: {_words(error)}", path=path)


def garbled(content: bytes, *, path: str, expected: str) -> CgroupGarbled:
    """For a file whose content is not what it should be."""
    if not content.strip():
        return CgroupGarbled(f"is empty, not {expected}", path=path)
    shown = content[:SHOWN_CHARACTERS].decode("ascii", errors="backslashreplace")
    return CgroupGarbled(f"holds {shown!r}, not {expected}", path=path)


def _words(error: OSError) -> str:
    return os.strerror(error.errno or 0)
