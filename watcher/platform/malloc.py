"""Memory that one thread gave back, for the next thread to use.

glibc gives each thread a heap of its own, so that they need not wait for each other, and what is free in one heap is
of no use to another. A tick passes through several threads (asking, digesting, storing), each of which needs a hundred
megabytes for a moment at tens of thousands of nodes; Python lets one run at a time anyway. With one heap for all,
50,000 nodes take 940 MB at most instead of 1,170, at the same CPU (benchmarks/bench_size.py).
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8  # malloc.h of glibc


def share_one_heap() -> None:
    """Have all threads that are started from now on allocate from the main heap. Does nothing where the C library is
    another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
