"""A tree of control groups in a directory: the files in the format of the kernel, for either version and driver.

Plain files: they accept each value, and only change when a test writes them. Refusals of the kernel are tested with the
kernel (tests/real/test_cgroups_v1.py, test_cgroups_v2.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.cgroups.paths import Driver, group_path, pod_segments

PRESSURE = "some avg10={0:.2f} avg60=1.50 avg300=0.75 total=12345\nfull avg10=0.25 avg60=0.00 avg300=0.00 total=67\n"
SCOPES = {"containerd": "cri-containerd-{}.scope", "cri-o": "crio-{}.scope", "docker": "docker-{}.scope"}


@dataclass
class FakeCgroups:
    """`version` is v1, v2 or hybrid; a `together` v1 has cpu and cpuacct in one tree with two links."""

    root: Path
    version: str = "v2"
    driver: Driver = Driver.SYSTEMD
    together: bool = False
    nest: str = ""

    def __post_init__(self) -> None:
        self.root.mkdir(parents=True)
        if self.version == "v2":
            (self.root / "cgroup.controllers").write_text("cpu io memory pids\n")
        elif self.together:
            (self.root / "cpu,cpuacct").mkdir()
            for name in ("cpu", "cpuacct"):
                (self.root / name).symlink_to("cpu,cpuacct")
        else:
            (self.root / "cpu").mkdir()
            (self.root / "cpuacct").mkdir()
        if self.version != "v2":
            (self.root / "memory").mkdir()
        if self.version == "hybrid":
            (self.root / "unified").mkdir()
            (self.root / "unified" / "cgroup.controllers").write_text("\n")

    def directories(self, path: str) -> list[Path]:
        """The directories of a group, in all trees."""
        if self.version == "v2":
            return [self.root / path.lstrip("/")]
        trees = ["cpu", "cpuacct", "memory", *(["unified"] if self.version == "hybrid" else [])]
        return [self.root / tree / path.lstrip("/") for tree in trees]

    def pod_path(self, uid: str, qos: str = "BestEffort") -> str:
        segments = pod_segments(qos, uid)
        return group_path((self.nest, *segments) if self.nest else segments, self.driver)

    def container_path(self, uid: str, container: str, qos: str = "BestEffort", runtime: str = "containerd") -> str:
        name = SCOPES[runtime].format(container) if self.driver is Driver.SYSTEMD else container
        return f"{self.pod_path(uid, qos)}/{name}"

    def add(self, path: str, **values: Any) -> None:
        """Make a group, or give one other values (those of `files`)."""
        for directory in self.directories(path):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "cgroup.procs").write_text("")
        for name, text in self._files(**values).items():
            for directory in self.directories(path):
                if self._belongs(name, directory):
                    (directory / name).write_text(text)

    def write(self, path: str, name: str, text: str | bytes) -> None:
        """Write the content of a file of the group, in the tree that has it."""
        for directory in self.directories(path):
            if (directory / name).exists():
                (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    def read(self, path: str, name: str) -> str:
        (text,) = {(each / name).read_text() for each in self.directories(path) if (each / name).exists()}
        return text

    def remove(self, path: str) -> None:
        for directory in self.directories(path):
            shutil.rmtree(directory)

    def _belongs(self, name: str, directory: Path) -> bool:
        if self.version == "v2":
            return True
        tree = directory.relative_to(self.root).parts[0]
        if name.endswith(".pressure"):
            return tree == "unified"
        return tree == name.partition(".")[0] or (self.together and tree in ("cpu", "cpuacct") and "cpu" in name)

    def _files(
        self,
        *,
        cpu_ns: int = 0,
        quota: int | None = None,
        period: int = 100_000,
        burst: int | None = 0,
        weight: int | None = None,
        periods: int = 0,
        throttled: int = 0,
        memory: int = 0,
        inactive: int = 0,
        limit: int | None = None,
        pressure: float = 2.5,
    ) -> dict[str, str]:
        pressures = {f"{each}.pressure": PRESSURE.format(pressure) for each in ("cpu", "memory", "io")}
        if self.version == "v2":
            times = f"usage_usec {cpu_ns // 1000}\nuser_usec 1\nsystem_usec 2\n"
            throttling = f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {7 * throttled}\n"
            return {
                "cpu.stat": times + throttling,
                "cpu.max": f"{'max' if quota is None else quota} {period}\n",
                **({} if burst is None else {"cpu.max.burst": f"{burst}\n"}),
                "cpu.weight": f"{weight or 100}\n",
                "memory.current": f"{memory}\n",
                "memory.stat": f"anon {memory - inactive}\nfile {inactive}\ninactive_file {inactive}\n",
                "memory.max": "max\n" if limit is None else f"{limit}\n",
                "memory.high": "max\n",
                "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
                "memory.reclaim": "",
                **pressures,
            }
        return {
            "cpuacct.usage": f"{cpu_ns}\n",
            "cpu.cfs_quota_us": f"{-1 if quota is None else quota}\n",
            "cpu.cfs_period_us": f"{period}\n",
            **({} if burst is None else {"cpu.cfs_burst_us": f"{burst}\n"}),
            "cpu.shares": f"{weight or 1024}\n",
            "cpu.stat": f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time {7000 * throttled}\n",
            "memory.usage_in_bytes": f"{memory}\n",
            "memory.stat": f"cache {inactive}\ninactive_file 3\ntotal_inactive_file {inactive}\n",
            "memory.limit_in_bytes": f"{9223372036854771712 if limit is None else limit}\n",
            "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n",
            "memory.force_empty": "",
            **(pressures if self.version == "hybrid" else {}),
        }


def open_below(directory: Path) -> list[str]:
    """Open files and directories of this process below this one. The number of others varies: libraries have threads,
    and files of earlier tests are closed by garbage collection."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in found if path.startswith(f"{directory.resolve()}/"))
