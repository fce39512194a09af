"""A /proc of a node in a directory, with the files in the format of the kernel; tests set its counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PRESSURE = "some avg10={0:.2f} avg60=1.50 avg300=0.75 total=12345\nfull avg10={1:.2f} avg60=0.00 avg300=0.00 total=67\n"


@dataclass
class FakeProc:
    """Set its fields, then `write()`. CPU times are ticks: `cpus[i]` is (busy, idle) of CPU i, busy in user mode."""

    root: Path
    cpus: list[tuple[int, int]] = field(default_factory=lambda: [(1000, 9000), (1000, 9000)])
    total_kb: int = 8_000_000
    available_kb: int = 6_000_000
    load: tuple[float, float, float] = (0.5, 0.4, 0.3)
    disks: dict[str, tuple[int, int, int, int, int]] = field(default_factory=lambda: {"sda": (10, 80, 20, 160, 500)})
    """reads, sectors read, writes, sectors written, milliseconds busy"""
    interfaces: dict[str, tuple[int, int, int, int, int, int]] = field(
        default_factory=lambda: {"lo": (1, 1, 0, 1, 1, 0), "eth0": (1000, 10, 1, 2000, 20, 2)}
    )
    """bytes, packets, drops in; the same out"""
    default_routes: tuple[str, ...] = ("eth0",)
    pressure: float | None = 2.5
    of_process_1: bool = False
    """Whether the network is that of process 1, as in the host's /proc."""

    _passed: bytes = b""

    def __post_init__(self) -> None:
        self.write()
        self._passed = self._stat().encode()

    def write(self) -> None:
        """Write all files."""
        self._put("stat", self._stat())
        memory = (
            f"MemTotal: {self.total_kb} kB\nMemFree: 1 kB\nMemAvailable: {self.available_kb} kB\nHugePages_Total: 0\n"
        )
        self._put("meminfo", memory)
        self._put("loadavg", "{:.2f} {:.2f} {:.2f} 1/234 5678\n".format(*self.load))
        self._put("diskstats", "".join(map(self._disk, enumerate(self.disks))) + "   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n")
        route = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        for name in self.default_routes:
            route += f"{name}\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        self._put(f"{'1/' if self.of_process_1 else ''}net/route", route)
        header = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop …|bytes packets errs drop …\n"
        place = "1/net/dev" if self.of_process_1 else "net/dev"
        self._put(place, header + "".join(map(self._interface, self.interfaces)))
        if self.pressure is not None:
            for name in ("cpu", "memory", "io"):
                self._put(f"pressure/{name}", PRESSURE.format(self.pressure, self.pressure / 2))

    def pass_time(self, seconds: float) -> None:
        """The CPUs are idle for this time, unless a test changed their times or the file."""
        if (self.root / "stat").exists() and self.path("stat").read_bytes() == self._stat().encode() == self._passed:
            self.cpus = [(busy, idle + round(100 * seconds)) for busy, idle in self.cpus]
            self._put("stat", self._stat())
        self._passed = self._stat().encode()

    def _stat(self) -> str:
        busy, idle = (sum(each) for each in zip(*self.cpus, strict=True))
        lines = [f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0"]
        lines += [f"cpu{index} {busy} 0 0 {idle} 0 0 0 0 0 0" for index, (busy, idle) in enumerate(self.cpus)]
        return "\n".join([*lines, "intr 12345 1 2 3", "ctxt 99", "btime 1700000000", ""])

    def path(self, name: str) -> Path:
        return self.root / name

    def _put(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _disk(self, numbered: tuple[int, str]) -> str:
        index, name = numbered
        reads, sectors_read, writes, sectors_written, busy = self.disks[name]
        return f"   8 {index} {name} {reads} 0 {sectors_read} 5 {writes} 0 {sectors_written} 5 0 {busy} 10 0 0 0 0\n"

    def _interface(self, name: str) -> str:
        received, packets_in, drops_in, sent, packets_out, drops_out = self.interfaces[name]
        return f"{name:>6}: {received} {packets_in} 0 {drops_in} 0 0 0 0 {sent} {packets_out} 0 {drops_out} 0 0 0 0\n"
