"""How samples and windows become bytes that are small, and come back as they were.

A row a value would be 130 million rows a day at 5,000 nodes, so the store keeps arrays. Three shapes of array have to
be written, and each wants something else:

- *Samples*, slot by slot, must come back bit for bit, or the windows after a restart would differ from those before.
  Their float64 mantissas are mostly noise; what compresses are the bytes of sign and exponent, so bytes of equal rank
  are laid side by side. A node is scraped at the same offset in every slot, so offsets are stored as differences.
- *A minute* of a window, all nodes at once, is read back in hundreds by whoever asks for the history of the open hour.
- *An hour* of a window is cut into chunks of nodes, so that the history of one node touches one chunk an hour. Here
  time runs along, and neighbours in time are alike: 28 bits of the float32 (a relative error of at most 1e-6) as
  differences, each rank of bytes compressed by itself.

Pure: no I/O, no clock. What each was measured to give stands in docs/store.md. The forms belong to the schema's
revision: a change of form is a migration.
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
from watcher.model import Operator, SampleBlock, TickRecord, WindowRecord

Columns = tuple[tuple[str, Operator], ...]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]

HOUR = 3600
CHUNK_NODES = 128
_DROPPED_BITS = 4  # of a float32's 23 bits of mantissa: half a unit of what is left is 2**-20 of the value, 9.5e-7
_MOST_BYTES = 2**28  # of names, which nothing else bounds
_LEVEL = 1  # of zstd: 3 takes up to twice the time for a hundredth less


class CodecError(Exception):
    """These bytes are not what was written: the file was damaged."""


# --- bytes -----------------------------------------------------------------------------------------------------------


def _compress(raw: U8) -> bytes:
    """One zstd frame with its length and a checksum: SQLite itself keeps none for its pages."""
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(raw.data)


def _decompress(frame: bytes, *, size: int) -> U8:
    """The `size` bytes of a frame, read-only; CodecError if it holds anything else."""
    try:
        if zstandard.frame_content_size(frame) != size:  # before anything is allocated for a length that is garbage
            raise CodecError(f"a compressed block does not hold the expected {size} bytes")
        raw = zstandard.ZstdDecompressor().decompress(frame) if size else b""
    except zstandard.ZstdError as error:
        raise CodecError(f"a compressed block is damaged ({error})") from error
    return np.frombuffer(raw, dtype=np.uint8)


def _decompress_any(frame: bytes) -> bytes:
    """What a frame holds, at most `_MOST_BYTES`."""
    try:
        size = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        raise CodecError(f"a compressed block is damaged ({error})") from error
    if not 0 <= size <= _MOST_BYTES:
        raise CodecError(f"a compressed block claims to hold {size} bytes")
    return _decompress(frame, size=size).tobytes()


def _by_rank(array: NDArray[Any]) -> U8:
    """The bytes of an array, [itemsize, size]: first all bytes of the lowest rank, last all of the highest."""
    flat = np.ascontiguousarray(array).reshape(-1)
    ranks: U8 = np.ascontiguousarray(flat.view(np.uint8).reshape(-1, flat.itemsize).T)
    return ranks


def _from_ranks(ranks: U8, dtype: type[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Inverse of `_by_rank`, a new array."""
    array: NDArray[Any] = np.empty(shape, dtype=dtype)
    octets = array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    for rank, octet in enumerate(ranks.reshape(array.itemsize, -1)):  # half the time of one assignment of ranks.T
        octets[:, rank] = octet
    return array


def _zigzag(difference: NDArray[Any]) -> NDArray[Any]:
    """Signed differences as unsigned numbers that are small where the difference is: 0, -1, 1, -2 -> 0, 1, 2, 3."""
    signed = difference.view(f"i{difference.itemsize}")
    folded: NDArray[Any] = ((signed << 1) ^ (signed >> (8 * difference.itemsize - 1))).view(difference.dtype)
    return folded


def _unzigzag(folded: NDArray[Any]) -> NDArray[Any]:
    """Inverse of `_zigzag`."""
    one = folded.dtype.type(1)
    difference: NDArray[Any] = (folded >> one) ^ (~(folded & one) + one)
    return difference


class _Samples(msgspec.Struct, array_like=True, frozen=True):
    values: bytes
    offsets: bytes


class _Chunk(msgspec.Struct, array_like=True, frozen=True):
    head: bytes  # a _Head, compressed: what is compressed is also what has a checksum
    ranks: list[bytes]


class _Head(msgspec.Struct, array_like=True, frozen=True):
    times: list[int]
    columns: list[tuple[str, Operator]]
    names: list[bytes]


def _unpack(payload: bytes, kind: type[Any]) -> Any:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        raise CodecError(f"a stored block cannot be read ({error})") from error


# --- node names ------------------------------------------------------------------------------------------------------


def node_key(name: str) -> bytes:
    """A name as bytes that sort as the names do. A label may hold any character, half a surrogate pair included."""
    return name.encode("utf-8", "surrogatepass")


def _name_of(key: bytes) -> str:
    return key.decode("utf-8", "surrogatepass")


def pack_names(names: Sequence[str]) -> bytes:
    """Names as bytes, not compressed, the same for the same names: also what their hash is taken of."""
    return msgspec.msgpack.encode([node_key(name) for name in names])


def encode_names(packed: bytes) -> bytes:
    """Packed names, compressed."""
    return _compress(np.frombuffer(packed, dtype=np.uint8))


def decode_names(payload: bytes) -> tuple[str, ...]:
    """Inverse of `encode_names(pack_names(names))`."""
    return tuple(_name_of(key) for key in _unpack(_decompress_any(payload), list[bytes]))


def encode_columns(columns: Columns) -> str:
    """Columns as the JSON text that is stored beside a minute."""
    return msgspec.json.encode(columns).decode()


def decode_columns(text: str) -> Columns:
    """Inverse of `encode_columns`."""
    try:
        return msgspec.json.decode(text, type=tuple[tuple[str, Operator], ...])
    except msgspec.DecodeError as error:
        raise CodecError(f"the columns of a stored minute cannot be read ({error})") from error


# --- samples ---------------------------------------------------------------------------------------------------------


def encode_samples(block: SampleBlock) -> bytes:
    """Values and offsets of a block, exactly."""
    offsets = block.offset_ms.astype(np.uint16)
    offsets[1:] -= block.offset_ms[:-1]
    packed = _Samples(
        values=_compress(_by_rank(block.values.astype(np.float64, copy=False))),
        offsets=_compress(_by_rank(_zigzag(offsets))),
    )
    return msgspec.msgpack.encode(packed)


def decode_samples(payload: bytes, *, slots: int, nodes: int) -> tuple[F64, U16]:
    """Values and offsets, each [slots, nodes]."""
    packed: _Samples = _unpack(payload, _Samples)
    values = _from_ranks(_decompress(packed.values, size=8 * slots * nodes), np.float64, (slots, nodes))
    folded = _from_ranks(_decompress(packed.offsets, size=2 * slots * nodes), np.uint16, (slots, nodes))
    return values, np.cumsum(_unzigzag(folded), axis=0, dtype=np.uint16)


# --- windows ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Grid:
    """Some minutes of one window: `values` [times, columns, names], NaN where nothing is known."""

    times: I64
    columns: Columns
    names: tuple[str, ...]
    values: F32


def encode_minute(record: WindowRecord) -> bytes:
    """The values of one minute, exactly."""
    return _compress(_by_rank(record.values.astype(np.float32, copy=False)))


def decode_minute(payload: bytes, *, columns: int, nodes: int) -> F32:
    """Inverse of `encode_minute`: [columns, nodes]."""
    return _from_ranks(_decompress(payload, size=4 * columns * nodes), np.float32, (columns, nodes))


def decode_minute_of(payload: bytes, *, columns: int, nodes: int, node: int) -> F32:
    """The same for one node, [columns], without putting the others' bytes back in order."""
    ranks = _decompress(payload, size=4 * columns * nodes).reshape(4, columns, nodes)
    return _from_ranks(ranks[:, :, node], np.float32, (columns,))


def encode_chunk(grid: Grid) -> bytes:
    """A chunk of an hour, self-contained. A value comes back with a relative error of at most 1e-6."""
    series = np.ascontiguousarray(grid.values.transpose(1, 2, 0))
    bits = _shorten(series)
    bits[..., 1:] -= bits[..., :-1].copy()
    head = _Head(grid.times.tolist(), list(grid.columns), [node_key(name) for name in grid.names])
    packed = _Chunk(
        head=_compress(np.frombuffer(msgspec.msgpack.encode(head), dtype=np.uint8)),
        ranks=[_compress(rank) for rank in _by_rank(_zigzag(bits))],
    )
    return msgspec.msgpack.encode(packed)


def decode_chunk(payload: bytes) -> Grid:
    """Inverse of `encode_chunk`, but for the rounding."""
    packed: _Chunk = _unpack(payload, _Chunk)
    head: _Head = _unpack(_decompress_any(packed.head), _Head)
    shape = (len(head.columns), len(head.names), len(head.times))
    ranks = [_decompress(rank, size=int(np.prod(shape))) for rank in packed.ranks]
    if len(ranks) != 4:
        raise CodecError("a stored chunk of an hour is incomplete")
    bits = np.cumsum(_unzigzag(_from_ranks(np.stack(ranks), np.uint32, shape)), axis=2, dtype=np.uint32)
    values = (bits << np.uint32(_DROPPED_BITS)).view(np.float32)
    names = tuple(_name_of(key) for key in head.names)
    return Grid(np.array(head.times, dtype=np.int64), tuple(head.columns), names, values.transpose(2, 0, 1))


def _shorten(values: F32) -> U32:
    """float32 bits rounded to nearest without the last `_DROPPED_BITS`, moved down by as many. NaN stays NaN, and what
    rounding up would make infinite is rounded down."""
    values = np.where(np.isnan(values), np.float32(np.nan), values)  # one NaN of all its many, away from overflow
    bits = values.view(np.uint32)
    short = (bits + np.uint32(1 << (_DROPPED_BITS - 1))) >> np.uint32(_DROPPED_BITS)
    overflowed = np.isfinite(values) & ~np.isfinite((short << np.uint32(_DROPPED_BITS)).view(np.float32))
    shortened: U32 = np.where(overflowed, bits >> np.uint32(_DROPPED_BITS), short)
    return shortened


class HourBuilder:
    """Puts the minutes of an hour together: the union of their times, nodes and columns, NaN where a minute has not got
    one of them. Nodes and columns may change within the hour."""

    def __init__(self, *, times: Iterable[int], columns: Iterable[Columns], names: Iterable[tuple[str, ...]]) -> None:
        self.times = np.unique(np.fromiter(times, dtype=np.int64))
        self.columns: Columns = tuple(dict.fromkeys(column for some in columns for column in some))
        distinct = {id(some): some for some in names}.values()  # minutes share their lists; hashing them takes longer
        self.names = tuple(sorted(set().union(*distinct)))
        self.values: F32 = np.full((len(self.times), len(self.columns), len(self.names)), np.nan, dtype=np.float32)
        self._name_row = {name: row for row, name in enumerate(self.names)}
        self._column_row = {column: row for row, column in enumerate(self.columns)}
        self._rows: dict[tuple[str, ...], I64] = {}

    def add(self, grid: Grid) -> None:
        """Lay a grid over what is there, cell by cell."""
        rows = self._rows.get(grid.names)
        if rows is None:
            rows = self._rows[grid.names] = np.array([self._name_row[name] for name in grid.names], dtype=np.int64)
        columns = np.array([self._column_row[column] for column in grid.columns], dtype=np.int64)
        times = np.searchsorted(self.times, grid.times)
        self.values[np.ix_(times, columns, rows)] = grid.values

    def replace(self, grid: Grid) -> None:
        """Lay a grid over what is there; of its times nothing else stays."""
        self.values[np.searchsorted(self.times, grid.times)] = np.nan
        self.add(grid)

    def chunks(self) -> Iterator[Grid]:
        """The hour in chunks of nodes, sorted by name."""
        edges = [*range(0, len(self.names), CHUNK_NODES), len(self.names)]
        for first, last in pairwise(edges):
            yield Grid(self.times, self.columns, self.names[first:last], self.values[:, :, first:last])


# --- ticks that wait -------------------------------------------------------------------------------------------------


def needless_before(*, end: float, longest: int, resolution: int) -> int:
    """The slot at or before which no window that ends at `end` reaches; `longest` window in seconds."""
    return int(end // resolution) - -(-longest // resolution)


def merge_ticks(older: TickRecord, newer: TickRecord, *, most_bytes: int) -> tuple[TickRecord, int]:
    """One tick that stores what both would have, and how many window records were given up, oldest first, to keep
    their values within `most_bytes`.

    Of the older tick's samples go those that the newer one replaces, outdates, or has from elsewhere.
    """
    longest = max((window.seconds for window in newer.windows), default=0)
    horizon = needless_before(end=newer.end, longest=longest, resolution=newer.resolution)
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
    )
    return merged, given_up


def _covers(new: SampleBlock, old: SampleBlock) -> bool:
    return (
        new.metric == old.metric
        and new.first_slot <= old.first_slot
        and new.first_slot + len(new.values) >= old.first_slot + len(old.values)
    )


def _newest(records: list[WindowRecord], *, most_bytes: int) -> tuple[list[WindowRecord], int]:
    """The newest records whose values fit, in the order of time, and how many did not fit."""
    kept: list[WindowRecord] = []
    for record in sorted(records, key=lambda record: record.time, reverse=True):
        most_bytes -= record.values.nbytes
        if most_bytes < 0:
            break
        kept.append(record)
    return kept[::-1], len(records) - len(kept)
