"""Code that all providers share, without their requests."""

import numpy as np
import pytest

from watcher.core.windows.settings import RefreshSettings
from watcher.model import METRIC_BY_KEY
from watcher.sources.base import QueryFailure
from watcher.sources.errors import ProviderRefused, ProviderUnreachable
from watcher.sources.fetching import FetchContext, FetchTracker, Outcome, gather_outcomes, in_unit

CPU, MEMORY = METRIC_BY_KEY["CPU"].name, METRIC_BY_KEY["Memory"].name


def test_a_value_beyond_the_range_of_floats_becomes_infinite_without_a_warning():
    """The review drops it; a warning of NumPy would be an error in this test."""
    assert [np.inf, -np.inf, 50.0] == in_unit(np.array([1.7e308, -1.7e308, 0.5]), 100.0).tolist()


@pytest.mark.parametrize(
    ("seen", "offset"),
    [
        ([], None),
        ([(None, 0.1)], None),
        ([(9.0, 0.3), (-2.0, 0.1), (1.0, 0.2), (None, 0.01)], -2.0),
        ([(9.0, None), (-2.0, None), (3.0, None)], -2.0),
    ],
    ids=["no response", "no date", "round trips", "no round trips"],
)
def test_the_clock_is_that_of_the_best_response(seen: list[tuple[float | None, float | None]], offset: float | None):
    """A response is late by up to its round trip, so that of the shortest one is the most precise."""
    fetching = FetchContext(0.0, 60.0, 10.0, present=True)
    for offset_s, round_trip_s in seen:
        fetching.note_clock(offset_s, round_trip_s=round_trip_s)
    assert offset == fetching.clock_offset_s


async def test_a_fetch_fails_if_all_queried_metrics_failed():
    """A metric that was not queried has no outcome, so it does not show that the source answers."""

    async def outcomes(*given: Outcome) -> list[Outcome]:
        return list(given)

    refused = QueryFailure(CPU, ProviderRefused("the query was rejected"))
    unreachable = QueryFailure(MEMORY, ProviderUnreachable("no response in time"))
    with pytest.raises(ProviderUnreachable):
        await gather_outcomes([outcomes(refused), outcomes(), outcomes(unreachable)])
    assert [refused, None] == await gather_outcomes([outcomes(refused), outcomes(None)])


async def test_a_backfill_has_the_number_of_the_last_fetch_and_no_gaps():
    """The second fetch of newest samples counts, the past before it does not."""
    tracker = FetchTracker(RefreshSettings())
    tracker.begin(0.0, 60.0)
    newest, slice_, maxima = tracker.begin(60.0, 120.0), tracker.begin(-9000.0, 60.0), tracker.begin_past(-9000.0, 0.0)
    assert (2, True, 120.0) == (newest.number, newest.present, newest.latest)
    assert (2, False, -840.0) == (slice_.number, slice_.present, slice_.since)
    assert (2, False, -9000.0, 120.0) == (maxima.number, maxima.present, maxima.since, maxima.latest)
