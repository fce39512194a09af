"""What a replica that starts takes over from one that is ready: the samples of the longest window, as bytes.

metrics-server remembers nothing, so a new replica would have its 15-minute window only after half of that. Its siblings
have the samples. They stand by the same rule as those of our own database: samples go on only where they come from the
same source, expression, unit and resolution. And since bytes from the network are no file of our own, every number that
memory is allocated by is checked first.

No I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from watcher.model import CARRIED, METRIC_BY_NAME, Provenance, Restored, SampleBlock, Window
from watcher.store import codec
from watcher.store.codec import CodecError

FORMAT = 1
"""Grows with every change of the form, codec's included: replicas of two versions then start without each other."""


class NotTaken(Exception):
    """These samples are not for us; the message says why, as the end of "its samples are not taken: …"."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose samples they are: `instance` is another in every process, `fingerprint` the same for those who ask the same
    source."""

    instance: str
    fingerprint: str

    @classmethod
    def of(cls, *, instance: str, asked: Iterable[str]) -> Origin:
        """The origin of a process that asks what `asked` says (provider, address, cluster, …). Hashed, because whoever
        may read load need not learn addresses."""
        return cls(instance, hashlib.blake2s(msgspec.json.encode(list(asked)), digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True)
class Bounds:
    """What samples must keep to be of use to us at `now` (unix seconds): `windows` and `resolution` are our own, they
    may be `max_staleness` old and `max_ahead` in the future, both in seconds."""

    now: float
    windows: tuple[Window, ...]
    resolution: int
    max_staleness: float
    max_ahead: float
    max_cells: int = 1 << 27
    """Of all blocks together: 100,000 nodes with five metrics have a quarter of it. Each takes 10 bytes of memory."""

    @property
    def slots(self) -> range:
        """The slots that a sample may be in and matter."""
        oldest = self.now - self.max_staleness - self.windows[-1].seconds
        return range(int(oldest // self.resolution), int((self.now + self.max_ahead) // self.resolution) + 1)


class _Block(msgspec.Struct, array_like=True, frozen=True):
    metric: str
    first_slot: int
    slots: int
    nodes: int  # which of the lists
    payload: bytes


class _Handover(msgspec.Struct, frozen=True):
    instance: str
    fingerprint: str
    timestamp: float
    end: float
    source: str
    resolution: int
    provenance: dict[str, tuple[str, str, str, float]]
    nodes: list[bytes]
    blocks: list[_Block]
    lost: dict[str, float]


class _Envelope(msgspec.Struct, array_like=True, frozen=True):
    format: int
    content: msgspec.Raw


def encode(restored: Restored, origin: Origin) -> bytes:
    """Samples as bytes."""
    lists = list(dict.fromkeys(block.nodes for block in restored.blocks))
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
            _Block(block.metric, block.first_slot, len(block.values), number[block.nodes], codec.encode_samples(block))
            for block in restored.blocks
        ],
        lost=dict(restored.lost),
    )
    return msgspec.msgpack.encode(_Envelope(FORMAT, msgspec.Raw(msgspec.msgpack.encode(content))))


def decode(body: bytes, *, ours: Origin, bounds: Bounds) -> Restored:
    """Inverse of `encode`, with our own windows. Raises NotTaken for samples that are not what we would have measured
    ourselves, are our own, too old, of a clock that is ahead of ours, or no samples at all."""
    try:
        envelope = msgspec.msgpack.decode(body, type=_Envelope)
        if envelope.format != FORMAT:
            raise NotTaken(f"they are in form {envelope.format}, and this version reads form {FORMAT}")
        content = msgspec.msgpack.decode(envelope.content, type=_Handover)
        _check_origin(content, ours, bounds)
        lists = [codec.decode_names(names) for names in content.nodes]
        blocks = tuple(_blocks(content.blocks, lists, bounds))
    except (msgspec.DecodeError, CodecError, ValueError) as error:
        raise NotTaken(f"they cannot be read ({error})") from error
    return Restored(
        timestamp=content.timestamp,
        end=content.end,
        source=content.source,
        resolution=content.resolution,
        windows=bounds.windows,
        provenance={name: Provenance(*each) for name, each in content.provenance.items()},
        blocks=blocks,
        lost=content.lost,
    )


def _check_origin(content: _Handover, ours: Origin, bounds: Bounds) -> None:
    if content.instance == ours.instance:
        raise NotTaken("they are our own")
    if content.fingerprint != ours.fingerprint:
        raise NotTaken("they are of another source: the settings in [provider] differ")
    if content.resolution != bounds.resolution:
        raise NotTaken(f"its refresh.resolution is {content.resolution}s, ours {bounds.resolution}s")
    for time in (content.end, content.timestamp):
        age = bounds.now - time
        if not -bounds.max_ahead <= age <= bounds.max_staleness:  # NaN is neither
            raise NotTaken(f"they are {age:.0f} s old by our clock")


def _blocks(packed: Iterable[_Block], lists: Sequence[tuple[str, ...]], bounds: Bounds) -> Iterable[SampleBlock]:
    cells, slots = 0, bounds.slots
    for block in packed:
        if block.metric not in METRIC_BY_NAME or not 0 <= block.nodes < len(lists) or block.slots < 1:
            raise CodecError("a block is of a metric, of nodes or of a time that there is not")
        if block.first_slot + block.slots <= slots.start:
            continue  # all of it is too old to matter
        if block.first_slot >= slots.stop:
            raise CodecError("a block is of the future")
        names = lists[block.nodes]
        cells += block.slots * len(names)
        if cells > bounds.max_cells:
            raise CodecError(f"they are more than {bounds.max_cells}")
        values, offset_ms = codec.decode_samples(block.payload, slots=block.slots, nodes=len(names))
        # a block is a whole minute: the end of the newest may lie ahead of us, and is empty
        ahead = values[max(0, slots.stop - block.first_slot) :]
        beyond = (offset_ms >= 1000 * bounds.resolution) & (offset_ms != CARRIED)
        if np.isinf(values).any() or not np.isnan(ahead).all() or beyond.any():
            raise CodecError("a block has numbers that are no samples, or samples of the future")
        yield SampleBlock(block.metric, block.first_slot, names, values, offset_ms)


def laid_over(older: Restored | None, newer: Restored) -> Restored:
    """The newer samples, and beneath them those of the older that come from the same source in the same way."""
    if older is None or (older.source, older.resolution) != (newer.source, newer.resolution):
        return newer
    same = [block for block in older.blocks if older.provenance.get(block.metric) == newer.provenance.get(block.metric)]
    return replace(newer, blocks=(*same, *newer.blocks))
