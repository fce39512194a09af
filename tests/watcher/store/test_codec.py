"""Decoded bytes of the store: exact where the format is exact, otherwise within its precision; damaged bytes are
detected."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.watcher.store.ticks import (
    COLUMNS,
    CPU,
    FIFTEEN,
    FIVE,
    MEMORY,
    NODES,
    ORIGIN,
    RESOLUTION,
    START,
    block,
    minute,
    tick,
)
from watcher.core.windows.records import SampleBlock, TickRecord
from watcher.model import Operator
from watcher.store import codec
from watcher.store.codec import CodecError, Grid

f32 = st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True)
LARGEST = float(np.finfo(np.float32).max)


@settings(max_examples=100)
@given(npst.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 2), st.integers(1, 3)), elements=f32))
@example(np.array([[[LARGEST]], [[-LARGEST]], [[float("nan")]], [[float("inf")]]], dtype=np.float32))
@example(np.array([[[0x7FFFFFFF]], [[0xFFFFFFFF]], [[0x7FF00000]]], dtype=np.uint32).view(np.float32))  # other NaNs
def test_an_hour_is_decoded_within_a_millionth(values) -> None:
    """NaN, infinities and zero unchanged, other values within 1e-6; times, columns and names exactly."""
    times = START + 60 * np.arange(len(values))
    names = tuple(f"node-{i}" for i in range(values.shape[2]))
    found = codec.decode_chunk(codec.encode_chunk(Grid(times, COLUMNS[: values.shape[1]], names, values)))
    assert (COLUMNS[: values.shape[1]], names, times.tolist()) == (found.columns, found.names, found.times.tolist())
    finite = np.isfinite(values)
    np.testing.assert_array_equal(values[~finite], found.values[~finite])
    # below the smallest normal number, there are fewer than 20 bits of mantissa
    np.testing.assert_allclose(found.values[finite], values[finite], rtol=1e-6, atol=1.2e-44)
    again = codec.decode_chunk(codec.encode_chunk(found))
    np.testing.assert_array_equal(found.values, again.values)


@settings(max_examples=50)
@given(npst.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 4)), elements=f32))
def test_a_minute_is_decoded_exactly_as_a_whole_and_by_node(values) -> None:
    """The same bits."""
    record = replace(minute(0, when=START), values=values)
    payload = codec.encode_minute(record)
    columns, nodes = values.shape
    assert values.tobytes() == codec.decode_minute(payload, columns=columns, nodes=nodes).tobytes()
    for node in range(nodes):
        one = codec.decode_minute_of(payload, columns=columns, nodes=nodes, node=node)
        assert values[:, node].tobytes() == one.tobytes()


@given(st.lists(st.text(alphabet=st.characters(codec=None, categories=None), max_size=4)))
@example(["", "\0", "\ud800", "ä", "a" * 10_000])
def test_any_node_names_are_decoded_and_sorted_as_before(names) -> None:
    """A label may have any text of JSON, also half a surrogate pair."""
    assert tuple(names) == codec.decode_names(codec.encode_names(codec.pack_names(names)))
    assert sorted(names) == sorted(names, key=codec.node_key)


def chunk_as_tuple(payload: bytes) -> object:
    grid = codec.decode_chunk(payload)
    return grid.times.tolist(), grid.columns, grid.names, grid.values.tolist()


DECODERS: list[tuple[bytes, Callable[[bytes], object]]] = [
    (
        codec.encode_samples(block(1.5, slot=0)),
        lambda payload: [array.tolist() for array in codec.decode_samples(payload, slots=4, nodes=3)],
    ),
    (codec.encode_minute(minute(1, when=0)), lambda payload: codec.decode_minute(payload, columns=2, nodes=3).tolist()),
    (codec.encode_names(codec.pack_names(NODES)), codec.decode_names),
    (codec.encode_chunk(Grid(np.arange(3), COLUMNS, NODES, np.ones((3, 2, 3), dtype=np.float32))), chunk_as_tuple),
]


@settings(max_examples=300)
@given(st.sampled_from(DECODERS), st.data())
def test_damaged_bytes_are_detected_or_harmless(decoder, data) -> None:
    """One changed byte or a missing end: an error, or the stored values."""
    payload, decode = decoder
    at = data.draw(st.integers(0, len(payload) - 1))
    if data.draw(st.booleans()):
        damaged = payload[:at]
    else:
        damaged = payload[:at] + bytes([payload[at] ^ data.draw(st.integers(1, 255))]) + payload[at + 1 :]
    try:
        found = decode(damaged)
    except CodecError:
        return
    assert decode(payload) == found


def test_columns_that_cannot_be_read_are_an_error() -> None:
    """An unknown operator, and invalid JSON."""
    assert COLUMNS == codec.decode_columns(codec.encode_columns(COLUMNS))
    for text in ('[["CPU","MEDIAN"]]', "garbage"):
        with pytest.raises(CodecError):
            codec.decode_columns(text)


# --- merged ticks ----------------------------------------------------------------------------------------------------


def contents(*ticks: TickRecord) -> dict[object, bytes]:
    """The contents of a store after these ticks, by their keys."""
    kept: dict[object, bytes] = {}
    for one in ticks:
        kept |= {(each.metric, each.first_slot): each.values.tobytes() for each in one.blocks}
        kept |= {(each.window.label, each.time): each.values.tobytes() for each in one.records}
    return kept


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.sampled_from((CPU, MEMORY)), st.integers(0, 99)), min_size=2, max_size=6)
)
def test_merged_ticks_store_the_same_as_single_ones(parts) -> None:
    """Within the longest window, with repeated blocks and minutes, the newest last."""
    ticks = [
        tick(
            START + 60 * at,
            blocks=[block(value, slot=START // RESOLUTION + 4 * at, metric=metric)],
            records=[minute(value, when=START + 60 * at, window=window) for window in (FIVE, FIFTEEN)],
        )
        for at, metric, value in sorted(parts, key=lambda part: part[0])
    ]
    merged = ticks[0]
    for one in ticks[1:]:
        merged, given_up = codec.merge_ticks(merged, one, most_bytes=2**20)
        assert 0 == given_up
    assert contents(*ticks) == contents(merged)
    assert (ticks[-1].timestamp, ticks[-1].end) == (merged.timestamp, merged.end)
    assert len(merged.blocks) == len({(one.metric, one.first_slot) for one in merged.blocks})


def merged_metrics(older: TickRecord, newer: TickRecord) -> list[float]:
    merged, _ = codec.merge_ticks(older, newer, most_bytes=2**20)
    return [one.values[0, 0] for one in merged.blocks]


def test_merging_drops_samples_that_the_newer_tick_makes_obsolete() -> None:
    """Samples of another source, of another resolution, or from before the longest window."""
    older = tick(START, blocks=[block(1, slot=START // RESOLUTION - 3)])
    newer = tick(START + 60, blocks=[block(2, slot=START // RESOLUTION + 1)])
    assert [1, 2] == merged_metrics(older, newer)
    assert [2] == merged_metrics(older, replace(newer, provenance={CPU: replace(ORIGIN, source="Host")}))
    assert [2] == merged_metrics(older, replace(newer, resolution=30))
    assert [2] == merged_metrics(older, replace(newer, end=START + 901.0))


def test_the_queue_is_bounded_and_drops_its_oldest_minutes() -> None:
    """Both windows of a minute are dropped together."""
    size = minute(0, when=START).values.nbytes
    merged, lost = tick(START), 0
    for k in range(1, 10):
        merged, given_up = codec.merge_ticks(merged, tick(START + 60 * k), most_bytes=6 * size)
        lost += given_up
    assert 14 == lost
    assert [START + 60 * k for k in (7, 7, 8, 8, 9, 9)] == [one.time for one in merged.records]


def test_columns_and_nodes_of_an_hour_are_the_union_of_its_minutes() -> None:
    """In chunks of 128 nodes, sorted; a minute that is stored again replaces all of the earlier one."""
    first = Grid(np.array([0]), COLUMNS[:1], tuple(f"n{i:03}" for i in range(200)), np.ones((1, 1, 200), np.float32))
    other = Grid(np.array([60]), ((MEMORY, Operator.AVG),), ("z", "a"), np.full((1, 1, 2), 2, np.float32))
    again = Grid(np.array([60]), COLUMNS[:1], ("a",), np.full((1, 1, 1), 3, np.float32))
    grids = (first, other, again)
    builder = codec.HourBuilder(
        times=[0, 60], columns=[grid.columns for grid in grids], names=[grid.names for grid in grids]
    )
    builder.add(first)
    builder.add(other)
    builder.replace(again)
    low, high = builder.chunks()
    assert ("a", 128, 74, "z") == (low.names[0], len(low.names), len(high.names), high.names[-1])
    assert (*COLUMNS[:1], (MEMORY, Operator.AVG)) == low.columns
    assert [1.0, 3.0] == [low.values[0, 0, 1], low.values[1, 0, 0]]
    assert np.isnan([low.values[0, 0, 0], low.values[1, 1, 0], high.values[1, 1, -1]]).all()


def test_a_block_without_nodes_is_stored() -> None:
    """That of a source with an empty response."""
    nothing = SampleBlock(CPU, 0, (), np.empty((4, 0)), np.empty((4, 0), dtype=np.uint16))
    values, offsets = codec.decode_samples(codec.encode_samples(nothing), slots=4, nodes=0)
    assert (4, 0) == values.shape == offsets.shape
