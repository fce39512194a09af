"""/proc/stat and /proc/meminfo of a node, from the counters of its control groups, as LXCFS writes them.

The files of the kernel are those of the whole machine, also in the namespaces of a node. A thread writes these files of
constant size in place, because the node has mounted them over its own.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from statistics import mean

from tests.cluster.nodes.node import MEMORY

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
FIRST = 10**9
"""The counters begin with this number of ticks, so that their number of digits stays the same."""
PERIOD_S = 0.1
NAMES = ("stat", "meminfo")


class NodeProc:
    """Writes both files into `directory`, from the control groups `cpuacct` and `memory` of a node."""

    def __init__(self, directory: Path, cpuacct: Path, memory: Path):
        self._directory, self._cpuacct, self._memory = directory, cpuacct, memory
        self._began = time.monotonic()
        self._idle: dict[int, int] = {}
        self._history: list[tuple[float, int, int]] = []
        self.since = time.time()
        """Unix time from which the counters are known."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="node-proc", daemon=True)

    def start(self) -> None:
        """Write both files, and keep them current until `stop`."""
        self._directory.mkdir(exist_ok=True)
        for name in NAMES:
            (self._directory / name).touch()
        self._write()
        self._thread.start()

    def stop(self) -> None:
        """Stop writing. The control groups can be removed after that."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def cpus(self) -> int:
        """The number of CPUs of a node, those of this machine."""
        return len(self._idle)

    def used_millicores(self, start: float, end: float) -> float:
        """Return the mean CPU use between two unix times, from the counter of the kernel; at least a second."""
        (first, before, _), *_, (last, after, _) = self._between(start, end)
        return (after - before) / 1e6 / (last - first)

    def used_memory(self, start: float, end: float) -> float:
        """Return the mean of the memory without inactive page cache between two unix times, in percent."""
        return mean(100 * used / MEMORY for _, _, used in self._between(start, end))

    def _between(self, start: float, end: float) -> list[tuple[float, int, int]]:
        """Unix time, nanoseconds of CPU, and bytes of memory, each second."""
        return [each for each in self._history if start <= each[0] <= end]

    def _run(self) -> None:
        while not self._stopped.wait(PERIOD_S):
            self._write()
            now = time.time()
            if not self._history or now - self._history[-1][0] >= 1:
                used = int((self._cpuacct / "cpuacct.usage").read_text())
                inactive = int(self._memory_stat()["total_inactive_file"])
                self._history.append((now, used, self._memory_usage() - inactive))

    def _memory_stat(self) -> dict[str, str]:
        return dict(line.split() for line in (self._memory / "memory.stat").read_text().splitlines())

    def _memory_usage(self) -> int:
        return int((self._memory / "memory.usage_in_bytes").read_text())

    def _write(self) -> None:
        for name, text in zip(NAMES, (self._stat(), self._meminfo()), strict=True):
            descriptor = os.open(self._directory / name, os.O_WRONLY)
            try:
                os.pwrite(descriptor, text.encode(), 0)
            finally:
                os.close(descriptor)

    def _stat(self) -> str:
        user = _numbers(self._cpuacct / "cpuacct.usage_percpu_user")
        system = _numbers(self._cpuacct / "cpuacct.usage_percpu_sys")
        passed = int((time.monotonic() - self._began) * TICKS_PER_S)
        lines = []
        for number, of_one in enumerate(zip(user, system, strict=True)):
            used = [each * TICKS_PER_S // 10**9 for each in of_one]
            idle = self._idle[number] = max(self._idle.get(number, 0), passed - sum(used))
            lines.append([used[0], 0, used[1], idle, 0, 0, 0, 0, 0, 0])
        total = [sum(column) for column in zip(*lines, strict=True)]
        text = "".join(
            f"{name} {' '.join(str(FIRST + each) for each in times)}\n"
            for name, times in (("cpu ", total), *((f"cpu{number}", times) for number, times in enumerate(lines)))
        )
        rest = (line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return text + "".join(f"{line}\n" for line in rest)

    def _meminfo(self) -> str:
        stat, usage = self._memory_stat(), self._memory_usage()
        # Page cache is available, except that of tmpfs.
        cache = int(stat["total_cache"]) - int(stat.get("total_shmem", 0))
        values = {
            "MemTotal": MEMORY,
            "MemFree": MEMORY - usage,
            "MemAvailable": MEMORY - usage + cache,
            "Buffers": 0,
            "Cached": int(stat["total_cache"]),
            "Shmem": int(stat.get("total_shmem", 0)),
            "SwapTotal": 0,
            "SwapFree": 0,
        }
        return "".join(f"{name + ':':<16}{max(0, value) // 1024:>12} kB\n" for name, value in values.items())


def _numbers(path: Path) -> list[int]:
    return [int(each) for each in path.read_text().split()]
