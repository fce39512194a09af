"""Which slices are fetched, and in which order. tick/test_tick.py tests the same in ticks."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watcher.core.windows.backfill import HOLE_CADENCES, OVERLAP_S, SLICE_S, Backfill, gaps, slices
from watcher.core.windows.records import CARRIED, SampleBlock

NOW = 1_700_000_000.0


def drained(spans: Backfill, now: float) -> list[tuple[float, float]]:
    found = []
    while (piece := spans.next_slice(now)) is not None:
        found.append((piece.since, piece.until))
        spans.slice_fetched()
    return found


@given(st.floats(0, 5000), st.floats(0, 5000))
def test_slices_cover_the_span_once_newest_first(since: float, length: float) -> None:
    """Without gaps and overlaps, each at most two minutes long."""
    pieces = slices(since, since + length)
    if not pieces:
        assert since + length <= since
        return
    assert (since + length, since) == (pieces[0].until, pieces[-1].since)
    assert all(later.since == earlier.until for later, earlier in itertools.pairwise(pieces))
    assert all(0 < piece.until - piece.since <= SLICE_S + 1e-6 for piece in pieces)


@given(st.lists(st.tuples(st.floats(1, 2000), st.booleans()), min_size=1, max_size=12))
def test_the_whole_reach_is_fetched_after_any_failures(steps: list[tuple[float, bool]]) -> None:
    """After a successful fetch and its slices, each second of the last 900 was in a successful fetch, for any time
    without the source before."""
    spans = Backfill(reach=900.0, interval=60.0, remembers=True)
    now, had = NOW, []
    for seconds, succeeds in steps:
        now += seconds
        since = spans.begin(now, overlap=120.0)
        if not succeeds:
            continue
        spans.fetched(now)
        had += [(since, now), *drained(spans, now)]
        reached = now
        for begin, end in sorted(had, key=lambda span: span[1], reverse=True):
            if end >= reached:
                reached = min(reached, begin)
        assert reached <= now - 900.0


def test_a_source_without_a_history_is_asked_for_no_slices() -> None:
    """Only for the time from the start of the reach."""
    spans = Backfill(reach=900.0, interval=60.0, remembers=False)
    assert NOW - 900.0 == spans.begin(NOW, overlap=120.0)
    spans.mark_behind("cpu", since=NOW - 900.0)
    assert ["cpu"] == spans.catch_up(["cpu"], now=NOW, since=NOW - 60.0, overlap=120.0)
    assert [] == drained(spans, NOW)


def test_a_metric_that_is_behind_is_fetched_from_its_earliest_missing_time() -> None:
    """A metric that returns is fetched once for its past, not at each tick."""
    spans = Backfill(reach=900.0, interval=60.0, remembers=True)
    spans.resume_from(NOW)
    spans.mark_still_missing(["cpu"], since=NOW - 400.0)
    assert spans.complete
    spans.mark_behind("cpu", since=NOW - 100.0)
    spans.mark_still_missing(["cpu"], since=NOW - 300.0)
    spans.mark_behind("cpu", since=NOW - 50.0)
    spans.catch_up(["cpu"], now=NOW, since=NOW - 60.0, overlap=0.0)
    assert NOW - 300.0 == min(since for since, _ in drained(spans, NOW))


def test_metrics_that_fell_behind_together_are_fetched_together() -> None:
    """One query per slice for all of them, none for others."""
    spans = Backfill(reach=900.0, interval=60.0, remembers=True)
    spans.resume_from(NOW)
    assert spans.mark_behind("cpu", since=NOW)
    assert not spans.mark_behind("cpu", since=NOW + 60.0)
    assert spans.mark_behind("memory", since=NOW)
    assert spans.complete is False
    assert ["cpu", "memory"] == spans.catch_up(["memory", "cpu", "disk"], now=NOW + 300, since=NOW + 180, overlap=120.0)
    piece = spans.next_slice(NOW + 300)
    assert piece is not None
    assert frozenset({"cpu", "memory"}) == piece.only
    assert [] == spans.catch_up(["cpu", "memory"], now=NOW + 300, since=NOW + 180, overlap=120.0)
    assert [(NOW + 60, NOW + 180), (NOW - 60, NOW + 60), (NOW - 120, NOW - 60)] == drained(spans, NOW + 300)


def stored(slots: set[int], *, first: int, last: int, metric: str = "cpu", carried: int | None = None) -> SampleBlock:
    """A block of one metric for two nodes; the second has samples in `slots`, the first has none."""
    values = np.full((last - first + 1, 2), np.nan)
    offsets = np.zeros(values.shape, dtype=np.uint16)
    for slot in slots:
        values[slot - first, 1] = 1.0
    if carried is not None:
        values[carried - first, 1], offsets[carried - first, 1] = 1.0, CARRIED
    return SampleBlock(metric, first, ("a", "b"), values, offsets)


@given(st.sets(st.integers(0, 59), min_size=1))
def test_holes_and_stored_samples_cover_the_whole_span(slots: set[int]) -> None:
    """Outside of holes, samples are at most three cadences apart; within a hole there is none."""
    found = gaps([stored(slots, first=0, last=59)], resolution=15, since=0.0, until=900.0)
    ends = [(piece.since, piece.until) for piece in found]
    assert ends == sorted(ends, key=lambda span: -span[1])
    assert all(piece.only == {"cpu"} for piece in found)
    edges = sorted({0.0, 900.0, *(15.0 * slot for slot in slots)})
    longest = HOLE_CADENCES * min(max(15.0, float(np.median(np.diff(edges)))), 120.0)
    for earlier, later in itertools.pairwise(edges):
        within = sum(until - since for since, until in ends if earlier <= since and until <= later)
        assert within == (later - earlier if later - earlier > longest else 0.0)


def test_metrics_with_the_same_hole_are_fetched_together_and_a_carried_value_leaves_a_hole() -> None:
    """One query per slice for both metrics; the third has no hole, the fourth was never stored."""
    some, every = set(range(40, 61)), set(range(61))
    blocks = [
        stored(some, first=0, last=60, carried=30),
        stored(set(), first=0, last=41, metric="memory"),
        stored(some, first=30, last=60, metric="memory"),
        stored(every, first=0, last=60, metric="disk"),
    ]
    found = gaps(blocks, resolution=15, since=300.0, until=900.0)
    assert [(piece.since, piece.until, piece.only) for piece in found] == [
        (480.0, 600.0, {"cpu", "memory"}),
        (360.0, 480.0, {"cpu", "memory"}),
        (300.0, 360.0, {"cpu", "memory"}),
    ]


def test_only_a_distance_of_more_than_three_cadences_is_a_hole() -> None:
    """Samples each 15 s: 45 s do not make a hole, 60 s do."""
    slots = set(range(10)) | set(range(12, 30)) | set(range(33, 61))
    found = gaps([stored(slots, first=0, last=60)], resolution=15, since=0.0, until=900.0)
    assert [(29 * 15.0, 33 * 15.0)] == [(piece.since, piece.until) for piece in found]


def test_a_delay_of_more_than_two_intervals_is_fetched_in_slices_of_two_minutes() -> None:
    for delay, begin, missing in (
        (120.0, NOW - 120.0, []),
        (121.0, NOW + 1.0, [(NOW - 119.0, NOW + 1.0), (NOW - 120.0, NOW - 119.0)]),
    ):
        spans = Backfill(reach=900.0, interval=60.0, remembers=True)
        spans.resume_from(NOW)
        assert begin == spans.begin(NOW + delay, overlap=OVERLAP_S)
        assert missing == drained(spans, NOW + delay)


def test_after_a_reset_the_whole_reach_is_fetched() -> None:
    """No slice of the time before is left, and no metric is behind."""
    spans = Backfill(reach=900.0, interval=60.0, remembers=True)
    spans.resume_from(NOW, missing=slices(NOW - 500.0, NOW - 400.0))
    spans.mark_behind("cpu", since=NOW)
    spans.forget()
    assert (False, True, None) == (spans.begun, spans.complete, spans.next_slice(NOW))
    spans.begin(NOW, overlap=OVERLAP_S)
    assert NOW - 900.0 == min(since for since, _ in drained(spans, NOW))
