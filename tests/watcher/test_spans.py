"""What is asked for, and in which order: the tick's stories (test_refresh.py) seen without a tick."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from watcher.spans import SLICE_S, Spans, slices

NOW = 1_700_000_000.0


def drained(spans: Spans, now: float) -> list[tuple[float, float]]:
    found = []
    while (piece := spans.next_slice(now)) is not None:
        found.append((piece.since, piece.until))
        spans.slice_fetched()
    return found


@given(st.floats(0, 5000), st.floats(0, 5000))
def test_slices_cover_the_span_once_newest_first(since: float, length: float) -> None:
    """No gap, no overlap, none longer than two minutes."""
    pieces = slices(since, since + length)
    if not pieces:
        assert since + length <= since
        return
    assert (since + length, since) == (pieces[0].until, pieces[-1].since)
    assert all(later.since == earlier.until for later, earlier in itertools.pairwise(pieces))
    assert all(0 < piece.until - piece.since <= SLICE_S + 1e-6 for piece in pieces)


@given(st.lists(st.tuples(st.floats(1, 2000), st.booleans()), min_size=1, max_size=12))
def test_all_of_the_reach_is_asked_for_whatever_fails_in_between(steps: list[tuple[float, bool]]) -> None:
    """After a fetch that succeeds and its slices, every second of the last 900 has been asked for by a fetch that
    succeeded, however long the source was away before."""
    spans = Spans(reach=900.0, interval=60.0, remembers=True)
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


def test_a_source_without_memory_has_no_past() -> None:
    """It is asked from the start of the reach, and for no slices."""
    spans = Spans(reach=900.0, interval=60.0, remembers=False)
    assert NOW - 900.0 == spans.begin(NOW, overlap=120.0)
    spans.falls_behind("cpu", since=NOW - 900.0)
    assert ["cpu"] == spans.catch_up(["cpu"], now=NOW, since=NOW - 60.0, overlap=120.0)
    assert [] == drained(spans, NOW)


def test_metrics_that_fell_behind_together_catch_up_together() -> None:
    """One query per slice for all of them, none for the others."""
    spans = Spans(reach=900.0, interval=60.0, remembers=True)
    spans.go_on_from(NOW)
    assert spans.falls_behind("cpu", since=NOW)
    assert not spans.falls_behind("cpu", since=NOW + 60.0)
    assert spans.falls_behind("memory", since=NOW)
    assert spans.complete is False
    assert ["cpu", "memory"] == spans.catch_up(["memory", "cpu", "disk"], now=NOW + 300, since=NOW + 180, overlap=120.0)
    piece = spans.next_slice(NOW + 300)
    assert piece is not None
    assert frozenset({"cpu", "memory"}) == piece.only
    assert [] == spans.catch_up(["cpu", "memory"], now=NOW + 300, since=NOW + 180, overlap=120.0)
    assert [(NOW + 60, NOW + 180), (NOW - 60, NOW + 60), (NOW - 120, NOW - 60)] == drained(spans, NOW + 300)
