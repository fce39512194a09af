"""A separate Linux for a test: User-Mode Linux, a kernel that runs as a program of its user.

Its control groups are all of version 2 with each controller, independent of those of the machine. It boots in a second
with the machine's files as its root, read only, as the user `nobody`: the files that it runs are copied to a place that
this user may read.

About processors that are newer than its kernel (6.1): the kernel saves all vector registers, in space for those that it
knows. A machine with more of them (AMX) refuses that (EFAULT), and the kernel panics at once. So a seccomp filter
refuses the question whether all can be saved, and the kernel only saves those of SSE. Then programs in it must not use
wider ones: GLIBC_TUNABLES disables them in the C library, and the Python is one that a distribution built for all
processors.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.real.parts import REPOSITORY, find_program

NOBODY = 65534
BOOT_SECONDS = 180
"""Two are sufficient on an idle machine."""
RESULT = "RESULT "
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable)

_INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LD_BIND_NOW=1
export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-AVX_Fast_Unaligned_Load,-XSAVEC,-XSAVE,\
-ERMS,-RTM
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
cd {directory}
exec {python} -S {script}
"""

# For BPF: offsets in seccomp_data, and the numbers of x86-64.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _FIRST_ARGUMENT, _THIRD_ARGUMENT = 0, 16, 32
_PTRACE, _GETREGSET, _XSTATE = 101, 0x4204, 0x202
_REFUSED, _ALLOWED = 0x00050000 | 22, 0x7FFF0000  # with EINVAL
FILTER = b"".join(
    struct.pack("HBBI", *instruction)
    for instruction in (
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_IF_EQUAL, 0, 5, _PTRACE),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 3, _GETREGSET),
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_JUMP_IF_EQUAL, 0, 1, _XSTATE),
        (_RETURN, 0, 0, _REFUSED),
        (_RETURN, 0, 0, _ALLOWED),
    )
)
_LAUNCH = """
import ctypes, os, signal, sys
libc, (program, *command) = ctypes.CDLL(None, use_errno=True), sys.argv[1:]
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
instructions = bytes.fromhex(program)
libc.prctl(1, signal.SIGKILL)
assert libc.prctl(38, 1, 0, 0, 0) == 0, "no new privileges"
assert libc.prctl(22, 2, ctypes.byref(Program(len(instructions) // 8, instructions))) == 0, "seccomp"
os.execv(command[0], command)
"""


def run_in_uml(script: Path, *, packages: Iterable[str]) -> Mapping[str, Any]:
    """Run a script as the only program in a new Linux, beside copies of `packages` (files and directories here).

    Returns the JSON object that it printed after RESULT. Without User-Mode Linux the test is skipped, or fails if real
    parts are required.
    """
    program, python = find_program("linux.uml"), _python()
    place = Path(tempfile.mkdtemp(prefix="load-watcher-uml-", dir="/tmp"))
    try:
        for package in packages:
            target = place / package
            target.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (REPOSITORY / package).is_dir() else shutil.copy
            copy(REPOSITORY / package, target)
        shutil.copy(script, place / script.name)
        shutil.copy(program, place / "linux")
        init = place / "init"
        init.write_text(_INIT.format(directory=place, python=python, script=script.name))
        (place / "tmp").mkdir()
        _let_nobody_in(place)
        return _boot(place, init)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _boot(place: Path, init: Path) -> Mapping[str, Any]:
    kernel = ["mem=192M", "rootfstype=hostfs", "rootflags=/", "ro", "quiet", f"init={init}"]
    console = ["con=null", "con0=fd:0,fd:1", f"uml_dir={place / 'tmp'}"]
    machine = subprocess.Popen(
        [_python(), "-S", "-c", _LAUNCH, FILTER.hex(), place / "linux", *kernel, *console],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"HOME": "/tmp", "TMPDIR": str(place / "tmp"), "PATH": "/usr/bin:/bin"},
        cwd=place,
        start_new_session=True,
        **_as_nobody(),
    )
    # Each process in it is a process outside, which holds the pipe and must not outlive it.
    watch = threading.Timer(BOOT_SECONDS, _end, [machine.pid])
    watch.start()
    with machine:
        assert machine.stdout is not None
        said = machine.stdout.read().decode(errors="replace").replace("\r", "")
    watch.cancel()
    _end(machine.pid)
    for line in said.splitlines():
        if line.startswith(RESULT):
            result: Mapping[str, Any] = json.loads(line.removeprefix(RESULT))
            return result
    pytest.fail(f"User-Mode Linux ended with code {machine.returncode} and no result:\n{said[-4000:]}")


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _python() -> str:
    """A Python that the user `nobody` may start: that of the tests may be in a home directory."""
    for path in PYTHONS:
        real = os.path.realpath(path)
        if not os.path.exists(real):
            continue
        check = "import sys, ctypes, dataclasses; sys.exit(sys.version_info < (3, 11))"
        try:
            done = subprocess.run([real, "-S", "-c", check], env={}, cwd="/", capture_output=True, **_as_nobody())
        except OSError:  # this user may not even enter it
            continue
        if done.returncode == 0:
            return real
    reason = f"none of {', '.join(PYTHONS)} is a Python 3.11 that the user nobody may start"
    if os.environ.get("LOAD_WATCHER_REQUIRE_REAL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def _as_nobody() -> dict[str, Any]:
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def _let_nobody_in(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        path.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(place / "tmp", NOBODY, NOBODY)
