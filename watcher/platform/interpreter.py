"""Settings of the Python interpreter and of malloc for a process that serves requests while a thread computes."""

from __future__ import annotations

import ctypes
import gc
import sys

SWITCH_S = 0.0005
"""Seconds after which a computing thread lets the event loop run. A request needs the interpreter several times; with
Python's 5 ms it waits for 20 ms and more while a tick computes."""
GARBAGE_AFTER = 50_000
"""Container objects created since the last garbage collection that start the next one. Ranking thousands of nodes
creates thousands of objects, and none of them is garbage with cycles; with Python's 700 this is several collections per
request."""
_M_ARENA_MAX = -8  # malloc.h of glibc


def tune_for_serving() -> None:
    """Set the interpreter up for short requests beside a computing thread."""
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(GARBAGE_AFTER)


def freeze_objects() -> None:
    """Exclude all objects that exist now from garbage collections, which otherwise traverse every node and pod. They
    are still freed once nothing refers to them."""
    gc.collect()
    gc.freeze()


def limit_malloc_arenas() -> None:
    """Let all threads that are started after this call allocate from the main arena. Does nothing if the C library is
    not glibc.

    By default, threads have arenas of their own, to avoid lock contention, and free memory in one arena is not
    available in another. A tick uses several threads (fetch, processing, storing), each of which briefly needs a
    hundred megabytes with tens of thousands of nodes, and the GIL lets only one of them run Python code at a time. With
    one arena, the peak for 50,000 nodes is 940 MB instead of 1,170 MB, at the same CPU usage
    (benchmarks/bench_size.py).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


def release_free_memory() -> None:
    """Return the free memory of malloc to the system. Does nothing if the C library is not glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
