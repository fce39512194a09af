"""Encodes samples and windows as compressed bytes.

One row per value would be 130 million rows per day at 5,000 nodes, so the store writes arrays. Three kinds of arrays
have different formats:

- *Samples* are restored bit for bit, because otherwise windows would change after a restart. Their float64 mantissas
  are mostly noise, but the bytes of sign and exponent compress well, so bytes of equal rank are stored together. A node
  is scraped at the same offset in every slot, so offsets are stored as differences.
- *A minute* of a window contains all nodes. A query for the current hour reads up to 60 of them per window.
- *An hour* of a window is split into chunks of nodes, so that the history of one node needs one chunk per hour. Values
  of successive minutes are similar: 28 bits of each float32 (relative error of at most 1e-6) are stored as differences
  in time, and each rank of bytes is compressed separately.

Pure: no I/O, no clock. docs/reference/store.md contains measured sizes and times. The formats belong to the schema
revision: a change of format needs a migration.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from watcher.arrays import F32, F64, I64, U16
from watcher.core.forecast.maxima import HOUR_SLOTS
from watcher.core.publishing.compression import zstd_frame
from watcher.core.windows.records import MaximaHour, SampleBlock, TickRecord, WindowRecord
from watcher.decoding.json_text import decode_json, decode_msgpack
from watcher.model import Operator

Columns = tuple[tuple[str, Operator], ...]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

HOUR = 3600
CHUNK_NODES = 128
_DROPPED_BITS = 4  # of a float32's 23 mantissa bits: half a unit of the last remaining bit is 2**-20 (9.5e-7)
_MOST_BYTES = 2**28  # limit for decompressed names, which have no other size limit


class CodecError(Exception):
    """Stored bytes cannot be decoded: the database is damaged."""


# --- bytes -----------------------------------------------------------------------------------------------------------


def _compress(raw: U8) -> bytes:
    """Compress to one zstd frame with a checksum, because SQLite pages have no checksums."""
    return zstd_frame(raw.data, checksum=True)


def _decompress(frame: bytes, *, size: int) -> U8:
    """The `size` bytes of a frame, read-only. Raises CodecError for any other content."""
    try:
        if zstandard.frame_content_size(frame) != size:  # checked before memory is allocated for an invalid length
            raise CodecError(f"a compressed block does not hold the expected {size} bytes")
        raw = zstandard.ZstdDecompressor().decompress(frame) if size else b""
    except zstandard.ZstdError as error:
        raise CodecError(f"a compressed block is damaged ({error})") from error
    return np.frombuffer(raw, dtype=np.uint8)


def _decompress_any(frame: bytes) -> bytes:
    """The content of a frame, at most `_MOST_BYTES`. Raises CodecError."""
    try:
        size = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise CodecError(f"a compressed block is damaged ({error})") from error
    if not 0 <= size <= _MOST_BYTES:
        raise CodecError(f"a compressed block claims to hold {size} bytes")
    return _decompress(frame, size=size).tobytes()


def _by_rank(array: NDArray[Any]) -> U8:
    """The bytes of an array as [itemsize, size]: all bytes of the lowest rank first, all of the highest rank last."""
    flat = np.ascontiguousarray(array).reshape(-1)
    ranks: U8 = np.ascontiguousarray(flat.view(np.uint8).reshape(-1, flat.itemsize).T)
    return ranks


def _from_ranks(ranks: U8, dtype: type[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Inverse of `_by_rank`; returns a new array."""
    array: NDArray[Any] = np.empty(shape, dtype=dtype)
    octets = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    for rank, octet in enumerate(ranks.reshape(array.itemsize, -1)):  # twice as fast as assigning ranks.T
        octets[:, rank] = octet
    return array


def _zigzag(difference: NDArray[Any]) -> NDArray[Any]:
    """Zigzag encoding of signed differences as small unsigned numbers: 0, -1, 1, -2 -> 0, 1, 2, 3."""
    signed = difference.view(f"i{difference.itemsize}")
    folded: NDArray[Any] = ((signed << 1) ^ (signed >> (8 * difference.itemsize - 1))).view(difference.dtype)
    return folded


def _unzigzag(folded: NDArray[Any]) -> NDArray[Any]:
    """Inverse of `_zigzag`: unsigned numbers to signed differences."""
    one = folded.dtype.type(1)
    difference: NDArray[Any] = (folded >> one) ^ (~(folded & one) + one)
    return difference


class _Samples(msgspec.Struct, array_like=True, frozen=True):
    values: bytes
    offsets: bytes


class _Chunk(msgspec.Struct, array_like=True, frozen=True):
    head: bytes  # a compressed _Head; compressing it also adds a checksum
    ranks: list[bytes]


class _Head(msgspec.Struct, array_like=True, frozen=True):
    times: list[int]
    columns: list[tuple[str, Operator]]
    names: list[bytes]


def _unpack(payload: bytes, kind: type[Any]) -> Any:
    try:
        return decode_msgpack(payload, type=kind)
    except msgspec.DecodeError as error:
        raise CodecError(f"a stored block cannot be read ({error})") from error


# --- node names ------------------------------------------------------------------------------------------------------


def node_key(name: str) -> bytes:
    """A name as bytes that sort like the names. Label values may contain unpaired surrogates."""
    return name.encode("utf-8", "surrogatepass")


def _name_of(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def pack_names(names: Sequence[str]) -> bytes:
    """Names as uncompressed bytes, equal for equal names; their hash identifies the list."""
    return msgspec.msgpack.encode([node_key(name) for name in names])


def encode_names(packed: bytes) -> bytes:
    """Compress the result of `pack_names`."""
    return _compress(np.frombuffer(packed, dtype=np.uint8))


def decode_names(payload: bytes) -> tuple[str, ...]:
    """Inverse of `encode_names(pack_names(names))`. Raises CodecError."""
    return tuple(_name_of(key) for key in _unpack(_decompress_any(payload), list[bytes]))


def encode_columns(columns: Columns) -> str:
    """Columns as the JSON text that is stored with a minute."""
    return msgspec.json.encode(columns).decode()


def decode_columns(text: str) -> Columns:
    """Inverse of `encode_columns`. Raises CodecError."""
    try:
        return decode_json(text, type=tuple[tuple[str, Operator], ...])
    except msgspec.DecodeError as error:
        raise CodecError(f"the columns of a stored minute cannot be read ({error})") from error


# --- samples ---------------------------------------------------------------------------------------------------------


def encode_samples(block: SampleBlock) -> bytes:
    """Values and offsets of a block, without loss."""
    offsets = block.offset_ms.astype(np.uint16)
    offsets[1:] -= block.offset_ms[:-1]
    packed = _Samples(
        values=_compress(_by_rank(block.values.astype(np.float64, copy=False))),
        offsets=_compress(_by_rank(_zigzag(offsets))),
    )
    return msgspec.msgpack.encode(packed)


def decode_samples(payload: bytes, *, slots: int, nodes: int) -> tuple[F64, U16]:
    """Values and offsets (milliseconds within the slot), each [slots, nodes]."""
    packed: _Samples = _unpack(payload, _Samples)
    values = _from_ranks(_decompress(packed.values, size=8 * slots * nodes), np.float64, (slots, nodes))
    folded = _from_ranks(_decompress(packed.offsets, size=2 * slots * nodes), np.uint16, (slots, nodes))
    return values, np.cumsum(_unzigzag(folded), axis=0, dtype=np.uint16)


# --- windows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grid:
    """Several minutes of one window: `times` in unix seconds, `values` [times, columns, names], NaN where unknown."""

    times: I64
    columns: Columns
    names: tuple[str, ...]
    values: F32


def encode_minute(record: WindowRecord) -> bytes:
    """The values of one minute, without loss."""
    return _compress(_by_rank(record.values.astype(np.float32, copy=False)))


def decode_minute(payload: bytes, *, columns: int, nodes: int) -> F32:
    """Inverse of `encode_minute`; the result is [columns, nodes]."""
    return _from_ranks(_decompress(payload, size=4 * columns * nodes), np.float32, (columns, nodes))


def decode_minute_of(payload: bytes, *, columns: int, nodes: int, node: int) -> F32:
    """Like `decode_minute` for the node at index `node` only; the result is [columns]."""
    ranks = _decompress(payload, size=4 * columns * nodes).reshape(4, columns, nodes)
    return _from_ranks(ranks[:, :, node], np.float32, (columns,))


def encode_chunk(grid: Grid) -> bytes:
    """Encode a self-contained chunk of an hour. Values are rounded with a relative error of at most 1e-6."""
    series = np.ascontiguousarray(grid.values.transpose(1, 2, 0))
    bits = _shorten(series)
    bits[..., 1:] -= bits[..., :-1].copy()
    head = _Head(grid.times.tolist(), list(grid.columns), [node_key(name) for name in grid.names])
    packed = _Chunk(
        head=_compress(np.frombuffer(msgspec.msgpack.encode(head), dtype=np.uint8)),
        ranks=[_compress(rank) for rank in _by_rank(_zigzag(bits))],
    )
    return msgspec.msgpack.encode(packed)


def decode_chunk(payload: bytes, *, operator: Operator | None = None) -> Grid:
    """Inverse of `encode_chunk`, except for rounding; only the columns of an operator, None for all."""
    packed: _Chunk = _unpack(payload, _Chunk)
    head: _Head = _unpack(_decompress_any(packed.head), _Head)
    shape = (len(head.columns), len(head.names), len(head.times))
    ranks = [_decompress(rank, size=int(np.prod(shape))) for rank in packed.ranks]
    if len(ranks) != 4:
        raise CodecError("a stored chunk of an hour is incomplete")
    wanted = [row for row, column in enumerate(head.columns) if operator in (None, column[1])]
    parts = np.stack([rank.reshape(shape)[wanted] for rank in ranks])
    bits = np.cumsum(_unzigzag(_from_ranks(parts, np.uint32, parts.shape[1:])), axis=2, dtype=np.uint32)
    values = (bits << np.uint32(_DROPPED_BITS)).view(np.float32)
    names = tuple(_name_of(key) for key in head.names)
    columns = tuple(head.columns[row] for row in wanted)
    return Grid(np.array(head.times, dtype=np.int64), columns, names, values.transpose(2, 0, 1))


def _shorten(values: F32) -> U32:
    """float32 bits rounded to nearest and shifted right by `_DROPPED_BITS`. NaN stays NaN; values that would become
    infinite are rounded down."""
    values = np.where(np.isnan(values), np.float32(np.nan), values)  # one canonical NaN, which cannot overflow
    bits = values.view(np.uint32)
    short = (bits + np.uint32(1 << (_DROPPED_BITS - 1))) >> np.uint32(_DROPPED_BITS)
    overflowed = np.isfinite(values) & ~np.isfinite((short << np.uint32(_DROPPED_BITS)).view(np.float32))
    shortened: U32 = np.where(overflowed, bits >> np.uint32(_DROPPED_BITS), short)
    return shortened


class HourBuilder:
    """Merges the minutes of an hour: the union of their times, nodes and columns, NaN where a minute lacks a value.
    Nodes and columns may change within the hour."""

    def __init__(self, *, times: Iterable[int], columns: Iterable[Columns], names: Iterable[tuple[str, ...]]) -> None:
        self.times = np.unique(np.fromiter(times, dtype=np.int64))
        self.columns: Columns = tuple(dict.fromkeys(column for some in columns for column in some))
        distinct = {id(some): some for some in names}.values()  # by id: minutes share lists, and hashing takes longer
        self.names = tuple(sorted(set().union(*distinct)))
        self.values: F32 = np.full((len(self.times), len(self.columns), len(self.names)), np.nan, dtype=np.float32)
        self._name_row = {name: row for row, name in enumerate(self.names)}
        self._column_row = {column: row for row, column in enumerate(self.columns)}
        self._rows: dict[tuple[str, ...], I64] = {}

    def add(self, grid: Grid) -> None:
        """Write the cells of a grid over existing ones."""
        rows = self._rows.get(grid.names)
        if rows is None:
            rows = self._rows[grid.names] = np.array([self._name_row[name] for name in grid.names], dtype=np.int64)
        columns = np.array([self._column_row[column] for column in grid.columns], dtype=np.int64)
        times = np.searchsorted(self.times, grid.times)
        self.values[np.ix_(times, columns, rows)] = grid.values

    def replace(self, grid: Grid) -> None:
        """Write a grid and clear all other cells at its times."""
        self.values[np.searchsorted(self.times, grid.times)] = np.nan
        self.add(grid)

    def chunks(self) -> Iterator[Grid]:
        """The hour in chunks of nodes, sorted by name."""
        edges = [*range(0, len(self.names), CHUNK_NODES), len(self.names)]
        for first, last in pairwise(edges):
            yield Grid(self.times, self.columns, self.names[first:last], self.values[:, :, first:last])


# --- maxima ----------------------------------------------------------------------------------------------------------


def encode_maxima(hour: MaximaHour) -> bytes:
    """The codes of an hour of maxima as differences in time, because those of successive slots are similar."""
    codes = hour.codes.copy()
    codes[1:] -= hour.codes[:-1]
    return _compress(np.ascontiguousarray(codes).reshape(-1))


def decode_maxima(payload: bytes, *, nodes: int) -> U8:
    """Inverse of `encode_maxima`; the result is [12, nodes]. Raises CodecError."""
    codes = _decompress(payload, size=HOUR_SLOTS * nodes).reshape(HOUR_SLOTS, nodes)
    return np.cumsum(codes, axis=0, dtype=np.uint8)


# --- queued ticks ----------------------------------------------------------------------------------------------------


def horizon_slot(*, end: float, longest: int, resolution: int) -> int:
    """The newest slot that is too old for every window ending at `end` (unix seconds); `longest` window and
    `resolution` in seconds."""
    return int(end // resolution) - -(-longest // resolution)


def merge_ticks(older: TickRecord, newer: TickRecord, *, most_bytes: int) -> tuple[TickRecord, int]:
    """Merge two ticks into one to be stored. Returns it and the number of window records that were dropped, oldest
    first, to limit their values to `most_bytes`.

    Samples of the older tick are omitted if the newer one replaces them, no longer needs them, or has another
    provenance for the metric.
    """
    longest = max((window.seconds for window in newer.windows), default=0)
    horizon = horizon_slot(end=newer.end, longest=longest, resolution=newer.resolution)
    kept = [
        block
        for block in older.blocks
        if older.resolution == newer.resolution
        and block.first_slot + len(block.values) - 1 > horizon
        and newer.provenance.get(block.metric, older.provenance.get(block.metric)) == older.provenance.get(block.metric)
        and not any(_covers(new, block) for new in newer.blocks)
    ]
    by_minute = {(record.window.label, record.time): record for record in (*older.records, *newer.records)}
    records, given_up = _newest(list(by_minute.values()), most_bytes=most_bytes)
    merged = replace(
        newer,
        provenance={**older.provenance, **newer.provenance},
        blocks=(*kept, *newer.blocks),
        records=tuple(records),
        maxima=_merged_maxima(older, newer),
    )
    return merged, given_up


def _merged_maxima(older: TickRecord, newer: TickRecord) -> tuple[MaximaHour, ...]:
    """The changed hours of both ticks, without older ones that the newer tick has or whose samples are of another
    origin."""
    new = {(hour.metric, hour.hour) for hour in newer.maxima}
    origins = older.provenance
    kept = (
        hour
        for hour in older.maxima
        if (hour.metric, hour.hour) not in new
        and newer.provenance.get(hour.metric, origins.get(hour.metric)) == origins.get(hour.metric)
    )
    return (*kept, *newer.maxima)


def _covers(new: SampleBlock, old: SampleBlock) -> bool:
    return (
        new.metric == old.metric
        and new.first_slot <= old.first_slot
        and new.first_slot + len(new.values) >= old.first_slot + len(old.values)
    )


def _newest(records: list[WindowRecord], *, most_bytes: int) -> tuple[list[WindowRecord], int]:
    """The newest records that fit into `most_bytes`, in order of time, and the number of the others."""
    kept: list[WindowRecord] = []
    for record in sorted(records, key=lambda record: record.time, reverse=True):
        most_bytes -= record.values.nbytes
        if most_bytes < 0:
            break
        kept.append(record)
    return kept[::-1], len(records) - len(kept)
