"""Parsers of the files in /proc."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.state import proc_reader
from agent.state.rates import waited_ns
from watcher.core.cpu_use import CpuTimes


def test_seconds_of_each_cpu_with_iowait_as_idle_and_without_the_sum():
    stat = b"cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 100 200 300 4000 500 600 700 800 9 10\ncpu3 1 0 0 2\nintr 1\ncpufreq 9\n"
    assert proc_reader.parse_cpu_times(stat) == {"cpu0": CpuTimes(19.0, 45.0, 8.0), "cpu3": CpuTimes(0.01, 0.02)}


def test_memory_is_in_bytes():
    assert proc_reader.parse_memory(b"MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:  75 kB\n") == proc_reader.Memory(
        102_400, 76_800
    )


def test_disks_without_any_operation_are_left_out():
    lines = b"   7  0 loop0 0 0 0 0 0 0 0 0 0 0 0\n 259  0 nvme0n1 10 1 80 4 20 2 160 9 0 500 13 0 0 0 0 3 4\n"
    assert proc_reader.parse_disks(lines) == {"nvme0n1": proc_reader.Disk(10, 40_960, 20, 81_920, 500)}


def test_received_and_sent_values_of_interfaces():
    lines = b"Inter-| Receive\n face |bytes\n  eth0:1000 10 0 1 0 0 0 0 2000 20 0 2 0 0 0 0\n"
    assert proc_reader.parse_interfaces(lines) == {"eth0": proc_reader.Interface(1000, 10, 1, 2000, 20, 2)}


@pytest.mark.parametrize(
    ("text", "expected"), [("", set()), ("3", {3}), ("0-2,7", {0, 1, 2, 7}), (" 1, 4-5\n", {1, 4, 5})]
)
def test_lists_of_cpus(text: str, expected: set[int]):
    assert expected == proc_reader.exclusive_cpus({"uid": {"main": text}})


@pytest.mark.parametrize("parser", [proc_reader.parse_cpu_times, proc_reader.parse_memory, proc_reader.parse_loads])
@pytest.mark.parametrize("text", [b"", b"\n", b"garbage\n", b"\xff\x00", b"cpu\n", b"MemTotal: 5 MB\n"])
def test_invalid_contents_are_refused(parser, text: bytes):
    with pytest.raises((ValueError, IndexError)):
        parser(text)


@given(st.binary(max_size=200))
def test_any_text_is_parsed_or_raises_an_error_of_invalid_content(text: bytes):
    for parser in (
        proc_reader.parse_cpu_times,
        proc_reader.parse_memory,
        proc_reader.parse_loads,
        proc_reader.parse_disks,
        proc_reader.parse_interfaces,
        waited_ns,
    ):
        try:
            parser(text)
        except (ValueError, KeyError, IndexError):
            continue


def test_the_files_of_this_machine_are_parsed():
    there = Path("/proc")
    assert len(proc_reader.parse_cpu_times((there / "stat").read_bytes())) >= 2
    memory = proc_reader.parse_memory((there / "meminfo").read_bytes())
    assert 0 < memory.available <= memory.total
    assert len(proc_reader.parse_loads((there / "loadavg").read_bytes())) == 3
    proc_reader.parse_disks((there / "diskstats").read_bytes())
    assert "lo" in proc_reader.parse_interfaces((there / "net/dev").read_bytes())
