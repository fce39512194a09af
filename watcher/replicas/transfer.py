"""Replica transfer: encoding of the samples that a starting replica takes over from a ready replica.

metrics-server has no history, so a new replica would have its 15-minute window only after half of that time. The other
replicas have the samples. As for samples from the database, transferred samples are used only if they come from the
same source, expression and unit. Because the bytes come from the network, every number that determines a
memory allocation is checked first.

No I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Annotated

import msgspec
import numpy as np

from watcher.core.forecast.maxima import HOUR_SLOTS
from watcher.core.windows.resolution import resample
from watcher.decoding.json_text import decode_msgpack
from watcher.model import (
    CARRIED,
    METRIC_BY_NAME,
    LastSample,
    MaximaHour,
    Provenance,
    RestoredSamples,
    SampleBlock,
    StoredMaxima,
    Window,
)
from watcher.store import codec
from watcher.store.codec import CodecError

MAX_RESOLUTION_S = 60
FORMAT = 1
"""Format version; increment it with every change of the format, including codec's. Replicas with different formats do
not exchange samples."""

MAX_LISTS = 1_000
MAX_BLOCKS = 10_000
"""A block has the samples of one metric and minute: eleven metrics have 1,320 blocks in two hours."""
MAX_NODES = 500_000


class TransferRejected(Exception):
    """The samples of a peer are rejected; the message is the reason."""


@dataclass(frozen=True, slots=True)
class TransferOrigin:
    """Origin of transferred samples: `instance` differs in every process; `fingerprint` is the same for all replicas
    that query the same source."""

    instance: str
    fingerprint: str

    @classmethod
    def of(cls, *, instance: str, asked: Iterable[str]) -> TransferOrigin:
        """Return the origin of this process; `asked` identifies its source (provider, address, cluster, …). It is
        hashed, so that clients with read access do not learn addresses."""
        return cls(instance, hashlib.blake2s(msgspec.json.encode(list(asked)), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True)
class TransferBounds:
    """Limits for transferred samples at `now` (unix seconds): `windows` are this replica's settings; samples may be
    `max_staleness` seconds old and `max_ahead` seconds in the future."""

    now: float
    windows: tuple[Window, ...]
    max_staleness: float
    max_ahead: float
    max_cells: int = 1 << 27
    """Maximum number of cells of all blocks. A cell takes 10 bytes of memory; 50,000 nodes with five metrics in slots
    of 15 s have 15 million cells in 15 minutes."""

    def slots(self, resolution: int) -> range:
        """The slots of `resolution` seconds in which samples are accepted."""
        oldest = self.now - self.max_staleness - self.windows[-1].seconds
        return range(int(oldest // resolution), int((self.now + self.max_ahead) // resolution) + 1)


class _TransferBlock(msgspec.Struct, array_like=True, frozen=True):
    metric: str
    first_slot: int
    slots: int
    nodes: int  # index of the list of names
    payload: bytes


class _TransferMaxima(msgspec.Struct, array_like=True, frozen=True):
    metric: str
    hour: int
    nodes: int  # index of the list of names
    payload: bytes


class _Handover(msgspec.Struct, frozen=True):
    instance: str
    fingerprint: str
    timestamp: float
    end: float
    source: str
    resolution: int
    provenance: Annotated[dict[str, tuple[str, str, str, float]], msgspec.Meta(max_length=MAX_BLOCKS)]
    # A msgpack array has its length at the beginning: longer ones fail before the elements are created.
    nodes: Annotated[list[bytes], msgspec.Meta(max_length=MAX_LISTS)]
    blocks: Annotated[list[_TransferBlock], msgspec.Meta(max_length=MAX_BLOCKS)]
    lost: Annotated[dict[str, float], msgspec.Meta(max_length=MAX_NODES)]
    silent: Annotated[dict[str, tuple[float, float | None, float | None]], msgspec.Meta(max_length=MAX_NODES)] = {}
    maxima: Annotated[list[_TransferMaxima], msgspec.Meta(max_length=MAX_BLOCKS)] = []


class _Envelope(msgspec.Struct, array_like=True, frozen=True):
    format: int
    content: msgspec.Raw


def encode(restored: RestoredSamples, origin: TransferOrigin) -> bytes:
    """Encode samples and their origin for transfer to another replica."""
    hours = [each.hour for each in restored.maxima]
    lists = list(dict.fromkeys([*(block.nodes for block in restored.blocks), *(hour.nodes for hour in hours)]))
    number = {names: index for index, names in enumerate(lists)}
    content = _Handover(
        instance=origin.instance,
        fingerprint=origin.fingerprint,
        timestamp=restored.timestamp,
        end=restored.end,
        source=restored.source,
        resolution=restored.resolution,
        provenance={
            name: (one.source, one.expression, one.unit, one.smoothing_s) for name, one in restored.provenance.items()
        },
        nodes=[codec.encode_names(codec.pack_names(names)) for names in lists],
        blocks=[
            _TransferBlock(
                block.metric, block.first_slot, len(block.values), number[block.nodes], codec.encode_samples(block)
            )
            for block in restored.blocks
        ],
        lost=dict(restored.lost),
        silent={name: astuple(last) for name, last in restored.silent.items()},
        maxima=[
            _TransferMaxima(hour.metric, hour.hour, number[hour.nodes], codec.encode_maxima(hour)) for hour in hours
        ],
    )
    return msgspec.msgpack.encode(_Envelope(FORMAT, msgspec.Raw(msgspec.msgpack.encode(content))))


def decode(body: bytes, *, own_origin: TransferOrigin, bounds: TransferBounds) -> RestoredSamples:
    """Decode the result of `encode`; the windows are this replica's. Raises TransferRejected for samples that come from
    another source or from this process, are too old or in the future, or cannot be decoded."""
    try:
        envelope = decode_msgpack(body, type=_Envelope)
        if envelope.format != FORMAT:
            raise TransferRejected(f"format {envelope.format}, but this version supports only format {FORMAT}")
        content = decode_msgpack(envelope.content, type=_Handover)
        _check_origin(content, own_origin, bounds)
        lists = [codec.decode_names(names) for names in content.nodes]
        blocks = tuple(_blocks(content.blocks, lists, bounds, resolution=content.resolution))
        maxima = tuple(_maxima(content, lists, bounds))
    except (CodecError, ValueError) as error:
        raise TransferRejected(f"cannot decode them ({error})") from error
    return RestoredSamples(
        timestamp=content.timestamp,
        end=content.end,
        source=content.source,
        resolution=content.resolution,
        windows=bounds.windows,
        provenance={name: Provenance(*each) for name, each in content.provenance.items()},
        blocks=blocks,
        lost=content.lost,
        silent={name: LastSample(*last) for name, last in content.silent.items()},
        maxima=maxima,
    )


def _maxima(content: _Handover, lists: Sequence[tuple[str, ...]], bounds: TransferBounds) -> Iterable[StoredMaxima]:
    """Decode the hours of maxima. Raises CodecError if they are of unknown metrics or nodes, in the future, or too
    many."""
    cells = 0
    for each in content.maxima:
        origin = content.provenance.get(each.metric)
        if origin is None or not 0 <= each.nodes < len(lists):
            raise CodecError("an hour of maxima has an unknown metric or an invalid list of nodes")
        if not 0 <= each.hour <= (bounds.now + bounds.max_ahead) // codec.HOUR:
            raise CodecError("an hour of maxima is in the future")
        names = lists[each.nodes]
        cells += HOUR_SLOTS * len(names)
        if cells > bounds.max_cells:
            raise CodecError(f"more than {bounds.max_cells} maxima")
        codes = codec.decode_maxima(each.payload, nodes=len(names))
        yield StoredMaxima(MaximaHour(each.metric, each.hour, names, codes), Provenance(*origin), own=False)


def _check_origin(content: _Handover, own_origin: TransferOrigin, bounds: TransferBounds) -> None:
    if content.instance == own_origin.instance:
        raise TransferRejected("they are from this process")
    if content.fingerprint != own_origin.fingerprint:
        raise TransferRejected("they are from another source: the settings in [provider] differ")
    if not 1 <= content.resolution <= MAX_RESOLUTION_S:
        raise TransferRejected(f"their resolution is {content.resolution} s, not 1 to {MAX_RESOLUTION_S} s")
    if not all(0.0 <= sampled <= bounds.now + bounds.max_ahead for sampled, _, _ in content.silent.values()):
        raise TransferRejected("the last sample of a silent node has an invalid time, or is in the future")
    for time in (content.end, content.timestamp):
        age = bounds.now - time
        if not -bounds.max_ahead <= age <= bounds.max_staleness:  # NaN is neither
            raise TransferRejected(f"they are {age:.0f} s old by the clock of this replica")


def _blocks(
    packed: Iterable[_TransferBlock], lists: Sequence[tuple[str, ...]], bounds: TransferBounds, *, resolution: int
) -> Iterable[SampleBlock]:
    cells, slots = 0, bounds.slots(resolution)
    for block in packed:
        if block.metric not in METRIC_BY_NAME or not 0 <= block.nodes < len(lists) or block.slots < 1:
            raise CodecError("a block has an unknown metric, an invalid list of nodes or no slots")
        if block.first_slot + block.slots <= slots.start:
            continue  # the whole block is too old
        if block.first_slot >= slots.stop:
            raise CodecError("a block is in the future")
        names = lists[block.nodes]
        cells += block.slots * len(names)
        if cells > bounds.max_cells:
            raise CodecError(f"more than {bounds.max_cells} cells")
        values, offset_ms = codec.decode_samples(block.payload, slots=block.slots, nodes=len(names))
        # a block is a whole minute: the end of the newest block may be in the future, and is empty
        ahead = values[max(0, slots.stop - block.first_slot) :]
        beyond = (offset_ms >= 1000 * resolution) & (offset_ms != CARRIED)
        if np.isinf(values).any() or not np.isnan(ahead).all() or beyond.any():
            raise CodecError("a block has invalid samples, or samples in the future")
        yield SampleBlock(block.metric, block.first_slot, names, values, offset_ms)


def merge_samples(older: RestoredSamples | None, newer: RestoredSamples) -> RestoredSamples:
    """Merge samples, in the resolution of the newer ones: newer samples override older samples, which are used only for
    metrics with the same provenance."""
    if older is None or older.source != newer.source:
        return newer
    blocks = resample(older.blocks, before=older.resolution, after=newer.resolution)
    same = [block for block in blocks if older.provenance.get(block.metric) == newer.provenance.get(block.metric)]
    return replace(
        newer,
        blocks=(*same, *newer.blocks),
        silent={**older.silent, **newer.silent},
        maxima=(*older.maxima, *newer.maxima),
    )
