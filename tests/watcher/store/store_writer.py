"""A process that stores ticks, for tests that kill it.

`python -m tests.watcher.store.store_writer DATABASE` imports all modules once. For each line that it reads, it forks a
child that opens the database, continues after its last tick, and prints the end of each tick once it is stored.
"""

import asyncio
import os
import sys
import time

from tests.watcher.store.ticks import CPU, FIFTEEN, FIVE, MEMORY, RESOLUTION, START, block, minute, store_at, tick
from watcher.core.windows.records import TickRecord
from watcher.store.store import Store

STEP = 420  # seconds between two ticks: every nine ticks, an hour is closed and compacted
NODES = tuple(f"node-{i:04}" for i in range(400))


def numbered(number: int) -> TickRecord:
    """Tick `number`: each sample and each window in it has this number."""
    when = START + STEP * number
    slot = when // RESOLUTION - 3
    blocks = [block(number, slot=slot, metric=metric, nodes=NODES) for metric in (CPU, MEMORY)]
    records = [minute(number, when=when, window=window, nodes=NODES) for window in (FIVE, FIFTEEN)]
    return tick(when, blocks=blocks, records=records)


def number_of(end: float) -> int:
    """The number of the tick with this end."""
    return (int(end) - START) // STEP


def wait_until_stored(store: Store, end: float) -> None:
    """With such a short pause that ticks follow each other closely, while the writing thread still gets the
    interpreter."""
    while store.status.last_saved != end:
        time.sleep(0.0002)


async def write(place: str) -> None:
    """Store ticks until the process is killed."""
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
