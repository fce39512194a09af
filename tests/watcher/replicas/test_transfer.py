"""What one replica hands to another: it comes back exactly, or not at all and with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.watcher.store.ticks import CPU, FIFTEEN, FIVE, MEMORY, NODES, ORIGIN, RESOLUTION, block
from watcher.core.windows.history import History
from watcher.core.windows.resolution import resample
from watcher.model import CARRIED, LastSample, MaximaHour, Provenance, RestoredSamples, StoredMaxima
from watcher.replicas import transfer
from watcher.replicas.transfer import TransferBounds, TransferOrigin, TransferRejected, merge_samples

NOW = 1_700_000_010.0
SLOT = int(NOW // RESOLUTION)
HERE = TransferOrigin.of(instance="here", asked=["metrics-server", ""])
THERE = TransferOrigin.of(instance="there", asked=["metrics-server", ""])
BOUNDS = TransferBounds(now=NOW, windows=(FIVE, FIFTEEN), max_staleness=300.0, max_ahead=30.0)
SAMPLES = RestoredSamples(
    timestamp=NOW - 9.5,
    end=NOW - 10.0,
    source="KubernetesMetricsServer",
    resolution=RESOLUTION,
    windows=(FIVE, FIFTEEN),
    provenance={CPU: ORIGIN, MEMORY: ORIGIN},
    blocks=(block(12.5, slot=SLOT - 8), block(0.1, slot=SLOT - 4, metric=MEMORY, nodes=("ü", "node-b"))),
    lost={"node-z": NOW - 100.0},
)


def handed_over(
    given: RestoredSamples = SAMPLES, *, bounds: TransferBounds = BOUNDS, origin: TransferOrigin = THERE
) -> RestoredSamples:
    """What arrives here of what was given there."""
    return transfer.decode(transfer.encode(given, origin), own_origin=HERE, bounds=bounds)


def refused(given: RestoredSamples = SAMPLES, **options: Any) -> str:
    with pytest.raises(TransferRejected) as caught:
        handed_over(given, **options)
    return str(caught.value)


def cells(restored: RestoredSamples) -> list[Any]:
    return [
        (each.metric, each.first_slot, each.nodes, each.values.tolist(), each.offset_ms.tolist())
        for each in restored.blocks
    ]


MAXIMA = StoredMaxima(MaximaHour(CPU, int(NOW // 3600), NODES, np.full((12, 3), 77, dtype=np.uint8)), ORIGIN)


def test_maxima_arrive_with_the_samples_as_those_of_another_watcher() -> None:
    (got,) = handed_over(replace(SAMPLES, maxima=(MAXIMA,))).maxima
    assert (CPU, MAXIMA.hour.hour, NODES, ORIGIN, False) == (
        got.hour.metric,
        got.hour.hour,
        got.hour.nodes,
        got.provenance,
        got.own,
    )
    assert (MAXIMA.hour.codes == got.hour.codes).all()
    merged = merge_samples(SAMPLES, handed_over(replace(SAMPLES, maxima=(MAXIMA,))))
    assert 1 == len(merged.maxima)


@pytest.mark.parametrize(
    ("hour", "bounds", "reason"),
    [
        (replace(MAXIMA.hour, hour=int(NOW // 3600) + 2), BOUNDS, "in the future"),
        (replace(MAXIMA.hour, metric="unknown"), BOUNDS, "unknown metric"),
        (MAXIMA.hour, replace(BOUNDS, max_cells=30), "more than 30 maxima"),
    ],
)
def test_maxima_that_cannot_be_are_refused(hour: MaximaHour, bounds: TransferBounds, reason: str) -> None:
    given = replace(SAMPLES, maxima=(replace(MAXIMA, hour=hour),))
    assert reason in refused(given, bounds=bounds)


def test_samples_arrive_as_they_left() -> None:
    """Bit for bit, with the windows that the receiver wants."""
    got = handed_over(bounds=replace(BOUNDS, windows=(FIVE,)))
    assert cells(SAMPLES) == cells(got)
    assert (FIVE,) == got.windows
    assert replace(SAMPLES, windows=(), blocks=()) == replace(got, windows=(), blocks=())


def test_a_hole_and_a_carried_value_stay_what_they_are() -> None:
    """Neither may come back as a sample."""
    given = block(5.0, slot=SLOT - 8)
    given.values[0, 0], given.offset_ms[1, 1] = np.nan, CARRIED
    got = handed_over(replace(SAMPLES, blocks=(given,))).blocks[0]
    assert np.isnan(got.values[0, 0])
    assert got.offset_ms[1, 1] == CARRIED


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        (SAMPLES, {"origin": TransferOrigin("here", THERE.fingerprint)}, "from this process"),
        (SAMPLES, {"origin": TransferOrigin.of(instance="there", asked=["metrics-server", "other"])}, "another source"),
        (replace(SAMPLES, resolution=61), {}, "their resolution is 61 s"),
        (replace(SAMPLES, silent={"x": LastSample(NOW + 31.0, None, None)}), {}, "silent node"),
        (replace(SAMPLES, silent={"x": LastSample(float("nan"), None, None)}), {}, "silent node"),
        (SAMPLES, {"bounds": replace(BOUNDS, now=NOW + 291.0)}, "301 s old"),
        (SAMPLES, {"bounds": replace(BOUNDS, now=NOW - 41.0)}, "-31 s old"),
        (replace(SAMPLES, timestamp=NOW + 1e6), {}, "s old"),
        (replace(SAMPLES, end=float("nan")), {}, "nan s old"),
        (replace(SAMPLES, blocks=(block(np.inf, slot=SLOT - 8),)), {}, "invalid samples"),
        (replace(SAMPLES, blocks=(block(1.0, slot=SLOT),)), {}, "samples in the future"),
        (replace(SAMPLES, blocks=(block(np.nan, slot=SLOT + 4),)), {}, "a block is in the future"),
        (SAMPLES, {"bounds": replace(BOUNDS, max_cells=19)}, "more than 19"),
        (replace(SAMPLES, blocks=(block(1.0, slot=SLOT - 4, metric="a rule of a later version"),)), {}, "unknown"),
    ],
)
def test_what_is_not_ours_to_take_is_refused(given: RestoredSamples, options: dict[str, Any], reason: str) -> None:
    """Another source, another time, an impossible resolution."""
    assert reason in refused(given, **options)


def test_the_empty_end_of_the_newest_minute_may_lie_ahead() -> None:
    """Blocks are whole minutes, also the one that has only begun."""
    begun = block(1.0, slot=SLOT)
    begun.values[1:] = np.nan
    assert 1 == len(handed_over(replace(SAMPLES, blocks=(begun,))).blocks)


def test_what_is_too_old_to_matter_is_left_out() -> None:
    """A longer memory there is no reason to refuse what fits here."""
    old = block(1.0, slot=SLOT - 4000)
    assert cells(SAMPLES) == cells(handed_over(replace(SAMPLES, blocks=(old, *SAMPLES.blocks))))


def test_another_form_is_refused_before_it_is_read() -> None:
    """Versions may differ while a Deployment rolls."""
    body = msgspec.msgpack.encode([transfer.FORMAT + 1, {"whatever": True}])
    with pytest.raises(TransferRejected, match=f"format {transfer.FORMAT + 1}"):
        transfer.decode(body, own_origin=HERE, bounds=BOUNDS)


@given(st.binary(max_size=200))
def test_garbage_is_refused(body: bytes) -> None:
    """Any bytes whatever: refused, and nothing else is raised."""
    with pytest.raises(TransferRejected):
        transfer.decode(body, own_origin=HERE, bounds=BOUNDS)


@given(st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """A byte changed, or the end cut off: a checksum notices, or what it changes is not in a sample."""
    body = bytearray(transfer.encode(SAMPLES, THERE))
    place = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        del body[place:]
    else:
        body[place] ^= data.draw(st.integers(1, 255))
    try:
        got = transfer.decode(bytes(body), own_origin=HERE, bounds=BOUNDS)
    except TransferRejected:
        return
    assert {each.nodes for each in got.blocks} <= {each.nodes for each in SAMPLES.blocks}


METRIC, FIRST, SLOTS, NODES_AT, PAYLOAD = range(5)  # of a block on the wire


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("blocks", 0, SLOTS), 1 << 62),
        (("blocks", 0, SLOTS), 1_000_000),
        (("blocks", 0, SLOTS), -4),
        (("blocks", 0, FIRST), 1 << 62),
        (("blocks", 0, NODES_AT), -1),
        (("blocks", 0, NODES_AT), 7),
        (("blocks", 0, PAYLOAD), b"\xc0"),
        (("nodes", 0), b""),
        (("provenance", CPU), ["a", "b"]),
        (("blocks",), None),
    ],
    ids=str,
)
def test_numbers_that_memory_would_be_allocated_by_are_checked(place: tuple[Any, ...], value: object) -> None:
    """Before anything is: this comes from the network."""
    form, content = msgspec.msgpack.decode(transfer.encode(SAMPLES, THERE))
    *way, last = place
    inner = content
    for step in way:
        inner = inner[step]
    inner[last] = value
    with pytest.raises(TransferRejected):
        transfer.decode(msgspec.msgpack.encode([form, content]), own_origin=HERE, bounds=BOUNDS)


def test_ours_stay_beneath_theirs_where_both_come_from_the_same() -> None:
    """Theirs count where both have a sample, so they come last; ours fill what they lack."""
    newer = replace(SAMPLES, blocks=(block(7.0, slot=SLOT - 4),), end=NOW)
    both = merge_samples(SAMPLES, newer)
    assert [*cells(SAMPLES), *cells(newer)] == cells(both)
    assert NOW == both.end


def test_samples_of_another_resolution_are_merged_at_their_times() -> None:
    """The newer samples determine the resolution; a sample keeps its time."""
    fine = resample(SAMPLES.blocks, before=RESOLUTION, after=5)
    newer = replace(SAMPLES, blocks=(block(7.0, slot=SLOT - 4),), end=NOW)
    both = merge_samples(replace(SAMPLES, resolution=5, blocks=fine), newer)
    assert RESOLUTION == both.resolution
    history = History(resolution=RESOLUTION, windows=(FIVE, FIFTEEN))
    history.load(both.blocks)
    assert (NODES, [12.5] * 4 + [7.0] * 4) == (
        history.names[: len(NODES)],
        [each for part in history.blocks() if part.metric == CPU for each in part.values[:, 0] if each == each],
    )


def test_silent_nodes_arrive_and_are_merged() -> None:
    """With their last values; the newer replica counts."""
    last = {"x": LastSample(NOW - 5000.0, 12.5, None), "y": LastSample(NOW - 9000.0, None, 3.0)}
    got = handed_over(replace(SAMPLES, silent=last))
    assert last == got.silent
    newer = {"x": LastSample(NOW - 4000.0, 13.5, None)}
    assert last | newer == merge_samples(got, replace(SAMPLES, silent=newer)).silent


@pytest.mark.parametrize(
    "older",
    [
        None,
        replace(SAMPLES, source="Prometheus"),
        replace(SAMPLES, provenance={CPU: Provenance("KubernetesMetricsServer", "another", "percent", 0.0)}),
    ],
)
def test_ours_go_where_they_come_from_elsewhere(older: RestoredSamples | None) -> None:
    """They may not share a window with theirs."""
    newer = replace(SAMPLES, blocks=(block(7.0, slot=SLOT - 4, nodes=NODES),), end=NOW)
    assert cells(newer) == cells(merge_samples(older, newer))


def test_a_body_that_is_nested_deeply_is_rejected():
    """The decoder would otherwise raise RecursionError, which is no error of the body for its callers."""
    with pytest.raises(TransferRejected, match="nested too deeply"):
        transfer.decode(b"\x92\x01" + b"\x91" * 1_000_000, own_origin=HERE, bounds=BOUNDS)
