"""A process that does nothing but store ticks, for tests that kill it.

`python -m tests.watcher.store.store_writer DATABASE` imports everything once, and then, for every line that it reads,
forks a child that opens the database, continues after its last tick and prints the end of each tick once it is stored.
"""

import asyncio
import os
import sys
import time

from tests.watcher.store.ticks import CPU, FIFTEEN, FIVE, MEMORY, RESOLUTION, START, block, minute, store_at, tick
from watcher.core.windows.records import TickRecord
from watcher.store.store import Store

STEP = 420  # seconds between two ticks: an hour closes, and is rewritten, every nine ticks
NODES = tuple(f"node-{i:04}" for i in range(400))


def numbered(number: int) -> TickRecord:
    """Tick `number`: every sample and every window in it says so."""
    when = START + STEP * number
    slot = when // RESOLUTION - 3
    blocks = [block(number, slot=slot, metric=metric, nodes=NODES) for metric in (CPU, MEMORY)]
    records = [minute(number, when=when, window=window, nodes=NODES) for window in (FIVE, FIFTEEN)]
    return tick(when, blocks=blocks, records=records)


def number_of(end: float) -> int:
    """Which tick has this end."""
    return (int(end) - START) // STEP


def wait_until_stored(store: Store, end: float) -> None:
    """With so short a pause that ticks follow each other closely, and the writing thread still has the interpreter."""
    while store.status.last_saved != end:
        time.sleep(0.0002)


async def write(place: str) -> None:
    """Store tick after tick, for ever."""
    store = store_at(place, owner="the writer")
    restored = await store.open()
    number = 0 if restored is None else number_of(restored.end) + 1
    while True:
        record = numbered(number)
        store.save(record)
        wait_until_stored(store, record.end)
        os.write(1, f"{number}\n".encode())
        number += 1


def main() -> None:
    place = sys.argv[1]
    for _ in sys.stdin:
        child = os.fork()
        if not child:
            asyncio.run(write(place))
        os.write(1, f"pid {child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"ended\n")


if __name__ == "__main__":
    main()
