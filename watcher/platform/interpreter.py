"""Settings of the Python interpreter for a process that serves requests while a thread computes."""

from __future__ import annotations

import gc
import sys

SWITCH_S = 0.0005
"""Seconds after which a computing thread lets the event loop run. A request needs the interpreter several times; with
Python's 5 ms it waits for 20 ms and more while a tick computes."""
GARBAGE_AFTER = 50_000
"""Container objects created since the last garbage collection that start the next one. Ranking thousands of nodes
creates thousands of objects, and none of them is garbage with cycles; with Python's 700 this is several collections per
request."""


def tune_for_serving() -> None:
    """Set the interpreter up for short requests beside a computing thread."""
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(GARBAGE_AFTER)


def freeze_objects() -> None:
    """Exclude all objects that exist now from garbage collections, which otherwise traverse every node and pod. They
    are still freed once nothing refers to them."""
    gc.collect()
    gc.freeze()
