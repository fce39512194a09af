"""Threads share one heap, as the C library itself counts them."""

import os
import subprocess
import sys

import pytest

from tests.real.parts import REPOSITORY

PROGRAM = """
import ctypes, sys, threading
from watcher.platform.interpreter import limit_malloc_arenas
if sys.argv[1] == "shared":
    limit_malloc_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
def allocate():  # through ctypes, which lets the others run meanwhile
    for _ in range(1000):
        libc.malloc(ctypes.c_size_t(1000))
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
file = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, ctypes.c_void_p(file))
libc.fclose(ctypes.c_void_p(file))
"""


def heaps(mode: str) -> int:
    """The number of heaps after the work of four threads."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", PROGRAM, mode]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.count("<heap nr=")


@pytest.mark.skipif(os.confstr_names.get("CS_GNU_LIBC_VERSION") is None, reason="another C library than glibc")
def test_threads_limit_malloc_arenas() -> None:
    """Without it there are several, so the count is real."""
    assert heaps("own") > 1
    assert heaps("shared") == 1
