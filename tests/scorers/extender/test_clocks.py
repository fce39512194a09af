"""The clock of an extender that differs from the clock of its watcher: what is used, and what is logged."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from scorers.extender.clocks import ClockComparison
from scorers.extender.remote import RemoteHost
from scorers.extender.service import SchedulingService
from tests.fakes.decisions import DecisionList
from tests.fakes.service import FakeService, Live
from tests.scorers.extender.test_hosting import (
    PROFILES,
    Steady,
    Watcher,
    has_load,
    load,
    replace_age,
    running,
    settings_of,
)
from tests.waiting import eventually
from watcher.client.arrays import columns_of_snapshot
from watcher.core.publishing.selection import Selection

STEPS = [5.0, 60.0, 600.0, 3600.0, 86400.0]


def service_looked_after(service: SchedulingService, before: float) -> bool:
    return service.looked > before


class Apart(Steady):
    """The clocks of another machine: its wall clock differs by `offset` seconds."""

    def __init__(self, service: FakeService, offset: float) -> None:
        super().__init__(service)
        self.offset = offset

    def now(self) -> float:
        return super().now() + self.offset


@pytest.mark.slow
@pytest.mark.parametrize("offset", [sign * step for step in STEPS for sign in (1, -1)])
async def test_a_difference_of_clocks_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, offset: float
) -> None:
    """Up to a bound, the load is used; beyond it, no document is used until the clock is correct."""
    caplog.set_level(logging.INFO, logger="scorers.extender.service")
    watcher = Watcher(published=load())
    with Live(watcher) as live:
        clock = Apart(watcher, offset)
        host = RemoteHost(settings_of(live, tmp_path), DecisionList(kept=0.0), clock=clock)
        used = -30.0 <= offset <= watcher.max_staleness
        async with running({"default": PROFILES["packing"]}, host) as service:
            await eventually(lambda: service.load_error or has_load(service), what="the first document")
            for number in range(3):
                watcher.published, before = replace_age(load(f"x{number}"), watcher.clock), service.looked
                watcher.clock += 0.5
                await eventually(partial(service_looked_after, service, before), what="another look")
                assert used == has_load(service)
                if used:
                    assert np.isfinite(service.table.load.sampled()).any()
            assert bool(service.load_error) is not used
            clock.offset = 0.0
            await eventually(partial(has_load, service), what="the load")
            looked = service.looked
            watcher.clock += 0.5
            await eventually(lambda: service.looked > looked, what="another look")
            assert not service.load_error
    said = [record.getMessage() for record in caplog.records]
    side = "ahead of" if offset > 0 else "behind"
    about = [text for text in said if f"s {side} the clock of the watcher" in text]
    assert len(about) == (abs(offset) > 10)
    assert sum("clocks of this process and of the watcher agree again" in text for text in said) == len(about)
    assert sum("load is unavailable" in text and "the clocks differ" in text for text in said) == (not used)
    assert sum("load is available" in text for text in said) == (not used)


@pytest.mark.slow
@pytest.mark.parametrize("step", [600.0, -600.0])
async def test_a_clock_that_is_set_while_the_extender_runs(tmp_path: Path, step: float) -> None:
    """In both directions; the load returns with the right clock."""
    watcher = Watcher(published=load())
    with Live(watcher) as live:
        clock = Apart(watcher, 0.0)
        host = RemoteHost(settings_of(live, tmp_path), DecisionList(kept=0.0), clock=clock)
        async with running({"default": PROFILES["packing"]}, host) as service:
            await eventually(partial(has_load, service), what="the load")
            clock.offset = step
            await eventually(lambda: not has_load(service), what="the load to be unused")
            assert "the clocks differ" in service.load_error
            clock.offset = 0.0
            await eventually(partial(has_load, service), what="the load again")


def test_a_difference_near_its_bound_does_not_flip() -> None:
    """The age in a header is in whole seconds."""
    snapshot = load().snapshot
    columns = columns_of_snapshot(snapshot, Selection(snapshot.windows[0]), received=0.0, age_at_receipt=0.0)
    clocks, problems, differences = ClockComparison(), [], []
    for offset in (9.0, 11.0, 9.0, 11.0, 4.0, 299.0, 301.0, 299.0, 301.0, 149.0):
        clocks.compare(columns, now=columns.window_end + offset, monotonic=0.0, max_staleness=300.0)
        differences.append(bool(clocks.difference))
        problems.append(bool(clocks.problem))
    assert differences == [False, True, True, True, False, True, True, True, True, True]
    assert problems == [False] * 6 + [True] * 3 + [False]
