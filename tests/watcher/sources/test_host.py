"""The load of this machine, sampled in the background: real readings, and unusual ones."""

import asyncio
import errno
import itertools
import math
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fetches import use
from tests.waiting import eventually
from watcher.core.config.settings import Settings
from watcher.model import METRIC_BY_KEY, METRIC_BY_NAME, SOURCE_UNITS, Finding, FindingKind, SeriesBatch
from watcher.sources import host
from watcher.sources.base import Fetch, Provider
from watcher.sources.errors import ProviderUnreachable
from watcher.sources.host import PLANS, HostProvider, HostReading, loads_between

EVER = (0.0, math.inf)
PRESSURE = "some avg10={} avg60=0.71 avg300=0.25 total=4267817\nfull avg10=9.00 avg60=0.00 avg300=0.00 total=0\n"


def made(**options: Any) -> HostProvider:
    """A provider with a short interval; any option may be set."""
    fast: dict[str, Any] = {"node_name": "me", "resolution": 0.1, "max_seconds": 900, "baseline_s": 0.02}
    return HostProvider(**fast | options)


def with_provider(check: Callable, **options) -> None:
    """Run `check(provider)` on a started provider and close it."""

    use(lambda: made(**options), check)


def of(fetch: Fetch, key: str) -> SeriesBatch:
    (batch,) = (batch for batch in fetch.batches if batch.metric.key == key)
    return batch


def reader(*readings: HostReading) -> Callable[[Path], HostReading]:
    """One text after the other; the last one is repeated."""
    waiting = list(readings)
    return lambda _root: waiting.pop(0) if len(waiting) > 1 else waiting[0]


# --- the real machine ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_this_machine_has_a_load_before_the_first_slot_ends():
    """With the slots of a real service, the first fetch does not wait for the next slot, and values are in range."""

    async def check(provider: Provider):
        fetch = await provider.fetch(*EVER)
        for key in ("CPU", "Memory"):
            batch = of(fetch, key)
            assert batch.nodes == ("me",)
            assert 0.0 <= batch.value[0] <= 100.0
            assert abs(batch.time[0] - time.time()) < 60
        assert fetch.failures == ()
        assert fetch.clock_offset_s == 0.0

    with_provider(check, resolution=15, baseline_s=host.BASELINE_S)


def test_the_machine_is_sampled_once_per_slot_independent_of_fetches():
    """Each sample is in its own slot, at its start, ascending."""

    async def check(provider: HostProvider):
        async def four():
            return len(of(await provider.fetch(*EVER), "Memory").time) >= 4

        await eventually(four, what="four samples")
        times = of(await provider.fetch(*EVER), "Memory").time
        slots = np.floor(times / 0.1)
        assert len(set(slots.tolist())) == len(slots)
        assert (np.diff(times) > 0).all()

    with_provider(check)


def test_each_plan_has_a_metric_of_the_model_and_its_unit():
    """Only the averages of the kernel are smoothed."""

    async def check(provider: HostProvider):
        fetch = await provider.fetch(*EVER)
        assert {batch.metric.name for batch in fetch.batches} <= fetch.plans.keys()
        for name, plan in fetch.plans.items():
            assert plan.metric == name
            unit, factor = SOURCE_UNITS[plan.unit]
            assert (unit, factor) == (METRIC_BY_NAME[name].unit, 1.0)
            assert plan.smoothing_s == (10.0 if "Pressure" in METRIC_BY_NAME[name].key else 0.0)

    with_provider(check)


def test_only_and_the_times_select_samples():
    """`only` has names of metrics; since and until are inclusive; without a sample in the range there is no batch."""

    async def check(provider: HostProvider):
        memory = METRIC_BY_KEY["Memory"]
        fetch = await provider.fetch(*EVER, only={memory.name})
        assert [batch.metric for batch in fetch.batches] == [memory]
        assert fetch.plans.keys() == {memory.name}
        first = float(of(fetch, "Memory").time[0])
        assert of(await provider.fetch(first, first), "Memory").time.tolist() == [first]
        assert (await provider.fetch(0.0, first - 1)).batches == ()

    with_provider(check)


@pytest.mark.slow
def test_old_samples_are_removed():
    """Samples of at most max_seconds are kept."""

    async def check(provider: HostProvider):
        async def grown():
            times = of(await provider.fetch(*EVER), "Memory").time
            assert times[-1] - times[0] <= 0.35
            return times[-1] > start + 0.8

        start = time.time()
        await eventually(grown, what="samples over 0.8 s")

    with_provider(check, max_seconds=0.3)


async def test_close_leaves_no_task():
    """Afterwards, no sample is taken and fetch is an error. A second close, or one without a start, is valid."""
    provider = made()
    await provider.close()
    await provider.start()
    await provider.fetch(*EVER)
    await provider.close()
    await provider.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(ProviderUnreachable, match="not being sampled"):
        await provider.fetch(*EVER)


@pytest.mark.slow
async def test_a_fetch_may_be_cancelled_during_its_wait():
    """Other fetches of the first sample continue."""
    provider = made(baseline_s=0.5, resolution=1)
    await provider.start()
    waiting = asyncio.create_task(provider.fetch(*EVER))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await provider.fetch(*EVER)).batches
    await provider.close()


# --- pressure and disks under another root ---------------------------------------------------------------------------


def test_pressure_is_read_if_the_kernel_has_it(tmp_path: Path):
    """The `some avg10` of each file, and the `full avg10` if all tasks can wait; without the file, the metric is
    absent."""
    folder = tmp_path / "proc" / "pressure"
    folder.mkdir(parents=True)
    (folder / "cpu").write_text(PRESSURE.format("12.34"))
    (folder / "memory").write_text(PRESSURE.format("0.00"))

    async def check(provider: HostProvider):
        fetch = await provider.fetch(*EVER)
        assert of(fetch, "PressureCPU").value[0] == 12.34
        assert of(fetch, "PressureMemory").value[0] == 0.0
        assert of(fetch, "PressureMemoryFull").value[0] == 9.0
        assert "PressureIO" not in [batch.metric.key for batch in fetch.batches]
        assert fetch.failures == ()
        absent = [f for f in fetch.findings if f.metric == METRIC_BY_KEY["PressureIO"].name]
        assert [(f.kind, f.node) for f in absent] == [(FindingKind.NO_SERIES, "me")]
        assert "psi=1" in absent[0].reason

        async def more():
            fetch = await provider.fetch(*EVER)
            assert fetch.findings == ()  # reported once
            return len(of(fetch, "Memory").time) >= 3

        await eventually(more, what="three samples")

    with_provider(check, root=tmp_path)


class Unpressed(type(Path())):  # type: ignore[misc]
    """A root whose /proc/pressure files exist and whose reads fail because pressure is disabled."""

    def read_text(self, *_arguments: Any, **_options: Any) -> str:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


def test_disabled_pressure_is_absent_and_not_a_failure():
    """A kernel booted with psi=0 has the files and refuses to read them."""
    reading = host.read_host(Unpressed("/"))
    assert not [key for key, _ in reading.values if key.startswith("Pressure")]
    assert reading.failed == {}


@pytest.mark.parametrize("text", ["", "full avg10=1.00\n", "some avg60=1.00\n", "some avg10=much\n", "some\n"])
def test_an_invalid_pressure_file_affects_only_its_metric(tmp_path: Path, text: str):
    """A failure with its reason."""
    folder = tmp_path / "proc" / "pressure"
    folder.mkdir(parents=True)
    (folder / "cpu").write_text(text)

    async def check(provider: HostProvider):
        fetch = await provider.fetch(*EVER)
        assert [failure.metric for failure in fetch.failures] == [METRIC_BY_KEY["PressureCPU"].name]
        assert "/proc/pressure/cpu" in str(fetch.failures[0].error)
        assert of(fetch, "CPU").value.size

    with_provider(check, root=tmp_path)


def test_only_physical_disks_count(tmp_path: Path):
    """A disk is a block device with a device behind it: neither partitions nor loop devices; without sysfs all
    count."""
    everything = {part for key, part in host.read_host(tmp_path).values if key == "Storage"}
    for name in everything:
        (tmp_path / "sys" / "block" / name).mkdir(parents=True)
    assert not [key for key, _ in host.read_host(tmp_path).values if key == "Storage"] or not everything
    for name in sorted(everything)[:1]:
        (tmp_path / "sys" / "block" / name / "device").mkdir()
    assert {part for key, part in host.read_host(tmp_path).values if key == "Storage"} == set(sorted(everything)[:1])


# --- arithmetic ------------------------------------------------------------------------------------------------------

IDLE = {"user": 100.0, "nice": 0.0, "system": 50.0, "irq": 0.0, "softirq": 1.0, "idle": 900.0, "iowait": 9.0}
IDLE |= {"steal": 3.0}


def cpu(**added: float) -> HostReading:
    return HostReading({("CPU", f"0 {mode}"): value + added.get(mode, 0.0) for mode, value in IDLE.items()})


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ({"user": 2.0, "idle": 8.0}, 20.0),
        ({"user": 1.0, "system": 1.0, "nice": 1.0, "irq": 1.0, "softirq": 1.0, "idle": 5.0}, 50.0),
        ({"user": 5.0, "iowait": 3.0, "steal": 2.0}, 50.0),
        ({"idle": 10.0}, 0.0),
        ({"user": 10.0}, 100.0),
        ({"user": 5.0, "idle": 6.0, "iowait": -1.0}, 50.0),
        ({"user": 5.0, "idle": -0.01}, 100.0),
    ],
)
def test_idle_iowait_and_stolen_time_are_not_used_cpu(added, expected):
    """As kube-prometheus computes it. Idle may decrease by a tick without a reset, and iowait by the growth of idle."""
    values, unknown = loads_between(cpu(), cpu(**added), elapsed_s=5.0)
    assert values == {("CPU", ""): pytest.approx(expected)}
    assert unknown == {}


def test_a_cpu_that_goes_online_gives_no_sample():
    """Its idle time has the time from before it was offline."""
    new = {("CPU", f"1 {mode}"): value for mode, value in IDLE.items()}
    before, after = cpu(), cpu(user=2.0, idle=8.0)
    assert loads_between(before, HostReading({**after.values, **new}), elapsed_s=10.0) == (
        {},
        {"CPU": "the CPUs changed: CPU 1 is new"},
    )


def test_no_cpu_time_gives_no_sample():
    """Two readings within one tick do not mean zero."""
    values, unknown = loads_between(cpu(), cpu(), elapsed_s=0.001)
    assert (values, unknown.keys()) == ({}, {"CPU"})


def test_traffic_is_summed_over_devices_in_both_readings():
    """A new card counts from the next reading on."""
    key = "NetworkReceive"
    before = HostReading({(key, "eth0"): 1000.0, (key, "eth1"): 0.0, (key, "gone"): 7.0})
    after = HostReading({(key, "eth0"): 2000.0, (key, "eth1"): 500.0, (key, "new"): 1e9})
    assert loads_between(before, after, elapsed_s=10.0) == ({(key, ""): 150.0}, {})


def test_each_disk_is_a_series_with_at_most_100_percent():
    """Milliseconds per second are per mille; a long request that is counted at its end is limited to 100."""
    before = HostReading({("Storage", "sda"): 1000.0, ("Storage", "sdb"): 0.0})
    after = HostReading({("Storage", "sda"): 3500.0, ("Storage", "sdb"): 90_000.0})
    assert loads_between(before, after, elapsed_s=10.0) == ({("Storage", "sda"): 25.0, ("Storage", "sdb"): 100.0}, {})


@pytest.mark.parametrize("key", ["CPU", "Storage", "NetworkTransmit", "NetworkReceiveDrop"])
def test_a_decreasing_counter_is_a_reset_and_not_a_load(key):
    """The whole metric has no sample until the next slot: the sum of the other counters would be too low."""
    parts = {f"0 {mode}": value for mode, value in IDLE.items()} if key == "CPU" else {"a": 10.0, "b": 10.0}
    before = HostReading({(key, part): value for part, value in parts.items()} | {("Memory", ""): 40.0})
    broken = "0 user" if key == "CPU" else "a"
    after = HostReading({**before.values, **{(key, part): 20.0 for part in parts}, (key, broken): 1.0})
    values, unknown = loads_between(before, after, elapsed_s=1.0)
    assert (values, unknown.keys()) == ({("Memory", ""): 40.0}, {key})
    assert "decreased" in unknown[key]


def test_a_reset_is_a_finding_of_the_next_fetch():
    """With node and metric, once; the metric has samples again a slot later."""
    key = "NetworkReceive"
    counts = [10_000.0, 20_000.0, 5.0, 1_000_005.0]
    readings = [HostReading({(key, "eth0"): count, ("Memory", ""): 1.0}) for count in counts]
    findings: list[Finding] = []

    async def check(provider: HostProvider):
        async def twice():
            fetch = await provider.fetch(*EVER)
            findings.extend(f for f in fetch.findings if f.kind is FindingKind.COUNTER_RESET)
            return len(of(fetch, "Memory").time) >= 4

        await eventually(twice, what="four samples")
        fetch = await provider.fetch(*EVER)
        missing = set(of(fetch, "Memory").time) - set(of(fetch, key).time)
        assert [(f.node, f.metric) for f in findings] == [("me", METRIC_BY_KEY[key].name)]
        assert missing == {findings[0].time}
        assert (of(fetch, key).value >= 0).all()

    # With this clock each reading is a second after the previous one. With the real one, a reading right after the
    # start of a slot would be skipped, and with it perhaps the one with the reset.
    seconds = itertools.count()
    with_provider(check, read=reader(*readings), monotonic=lambda: float(next(seconds)), metrics=[key, "Memory"])


def test_a_metric_that_fails_is_a_failure_until_it_can_be_read_again(caplog: pytest.LogCaptureFixture):
    """Only this metric; logged when it begins and when it ends, not at each sample."""
    caplog.set_level("INFO", logger=host.__name__)
    good = HostReading({("Memory", ""): 40.0, ("PressureCPU", ""): 1.0})
    bad = HostReading({("Memory", ""): 40.0}, {"PressureCPU": "OSError: no"})
    reading = good
    seen: list[str] = []

    async def check(provider: HostProvider):
        nonlocal reading

        async def failing():
            seen.extend(str(failure.error) for failure in (await provider.fetch(*EVER)).failures)
            return len(seen) >= 3

        async def back():
            return not (await provider.fetch(*EVER)).failures

        await eventually(back, what="a first sample")
        reading = bad
        await eventually(failing, what="a failure in three fetches")
        reading = good
        await eventually(back, what="a fetch without failure")

    with_provider(check, read=lambda _root: reading, metrics=["Memory", "PressureCPU"])
    assert set(seen) == {"/proc/pressure/cpu: OSError: no"}
    assert [record.message for record in caplog.records] == [
        "PressureCPU of this host cannot be read, samples are missing: OSError: no",
        "PressureCPU of this host can be read again",
    ]


def test_without_any_reading_the_source_is_down_with_a_hint():
    def fail(_root: Path) -> HostReading:
        raise PermissionError("/proc is not for you")

    async def check(provider: HostProvider):
        with pytest.raises(ProviderUnreachable, match="/proc is not for you") as caught:
            await provider.fetch(*EVER)
        assert caught.value.hint

    with_provider(check, read=fail)


def test_a_clock_that_is_set_back_keeps_times_ascending():
    """Samples in the future are removed, and sampling continues at once."""
    shift = 0.0

    async def check(provider: HostProvider):
        nonlocal shift
        await provider.fetch(*EVER)
        shift = -3600.0

        async def again():
            times = of(await provider.fetch(*EVER), "Memory").time
            assert (np.diff(times) > 0).all()
            return times[-1] < time.time() - 3000 and len(times) >= 2

        await eventually(again, what="two samples by the new clock")

    with_provider(check, clock=lambda: time.time() + shift)


def test_a_metric_that_a_machine_does_not_have_is_a_finding():
    """For example power: not a failure at each tick."""

    async def check(provider: HostProvider):
        fetch = await provider.fetch(*EVER)
        assert [(f.kind, f.metric) for f in fetch.findings] == [
            (FindingKind.NO_SERIES, METRIC_BY_KEY["EnergyPackage"].name)
        ]
        assert fetch.failures == ()

    with_provider(check, metrics=["Memory", "EnergyPackage"])


# --- from settings ---------------------------------------------------------------------------------------------------


def built(settings: Settings) -> HostProvider:
    async def run():
        return host.from_settings(settings)

    return asyncio.run(run())


def test_the_name_of_the_node_is_that_of_kubernetes_or_the_host_name(monkeypatch: pytest.MonkeyPatch):
    """NODE_NAME of the downward API, otherwise the host name."""
    assert built(Settings()).node_name == socket.gethostname()
    monkeypatch.setenv("NODE_NAME", "worker-7")
    assert built(Settings()).node_name == "worker-7"
    assert os.environ["NODE_NAME"] == "worker-7"


def test_by_default_all_metrics_are_fetched():
    """Including pressure, which other sources have only on request; windows and resolution come from the refresh."""
    provider = built(Settings())
    assert tuple(provider.metrics) == tuple(PLANS)
    assert (provider.resolution, provider.max_seconds) == (15, 900)
    chosen = Settings(origins={"provider.metrics": "flag"})
    assert provider.metrics != built(chosen).metrics == ("CPU", "Memory", "Storage", *tuple(PLANS)[3:7])
