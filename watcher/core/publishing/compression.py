"""Compression of response bodies: gzip and zstd of a document from compressed parts, without compressing it again
per request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np
import zstandard
from isal import isal_zlib

from watcher.core.publishing.selection import Shape
from watcher.model import Snapshot, Window

CHUNK_NODES = 1000
PLAIN_BYTES = 32 << 20  # a window that is not the default one is kept plain up to this size
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


class Encoding(StrEnum):
    """Content codings that bodies are kept in."""

    IDENTITY = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Deflated:
    """A text as a run of deflate blocks that ends on a byte and needs nothing before it, so that runs can be joined."""

    blocks: bytes
    crc: int
    length: int


def deflate(text: bytes | memoryview) -> Deflated:
    """Compress a piece of a gzip body on its own."""
    compressor = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -15)
    blocks = compressor.compress(text) + compressor.flush(isal_zlib.Z_FULL_FLUSH)
    return Deflated(blocks, isal_zlib.crc32(text), len(text))


def gzip_of(head: bytes, middle: Deflated, tail: bytes) -> bytes:
    """One gzip member of `head` + the compressed `middle` + `tail`, without compressing the middle again."""
    first = deflate(head)
    last = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -15)
    closing = last.compress(tail) + last.flush(isal_zlib.Z_FINISH)
    crc = isal_zlib.crc32_combine(first.crc, middle.crc, middle.length)
    crc = isal_zlib.crc32_combine(crc, isal_zlib.crc32(tail), len(tail))
    length = (len(head) + middle.length + len(tail)) & 0xFFFFFFFF
    trailer = crc.to_bytes(4, "little") + length.to_bytes(4, "little")
    return b"".join((_GZIP_HEADER, first.blocks, middle.blocks, closing, trailer))


def compressed(text: bytes, encoding: Encoding) -> bytes:
    """`text` in a content coding."""
    if encoding is Encoding.GZIP:
        return gzip_of(b"", deflate(text), b"")
    if encoding is Encoding.ZSTD:
        return zstandard.ZstdCompressor(level=1).compress(text)
    return text


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands before and behind the metrics of each node, [n] each: the same in every document of a snapshot."""

    openings: list[bytes]
    closings: list[bytes]


def ends_of(snapshot: Snapshot, start: int = 0, stop: int | None = None) -> Ends:
    """`"name":{"metrics":[` and, from the brace that closes the last metric, all that follows; of nodes start..stop."""
    close = b'}],"tags":{},"metadata":{"dataCenter":""},"sampled":%d}'
    aged = b'}],"tags":{},"metadata":{"dataCenter":""},"sampled":%d,"age_s":%.3f}'
    sampled = np.nan_to_num(snapshot.sampled[start:stop]).astype(np.int64).tolist()
    ages = snapshot.age_s[start:stop].tolist()
    return Ends(
        [msgspec.json.encode(name) + b':{"metrics":[' for name in snapshot.nodes[start:stop]],
        [close % at if age != age else aged % (at, age) for at, age in zip(sampled, ages, strict=True)],
    )


def _frames(snapshot: Snapshot, window: Window) -> tuple[dict[Shape, bytes], dict[Shape, bytes]]:
    end = int(snapshot.end)
    frame = b'{"timestamp":%d,"window":{"duration":%s,"start":%d,"end":%d},"source":%s,"data":{' % (
        int(snapshot.timestamp),
        msgspec.json.encode(window.label),
        end - window.seconds,
        end,
        msgspec.json.encode(snapshot.source),
    )
    heads = {Shape.WATCHER: frame + b'"NodeMetricsMap":{', Shape.KEP: frame}
    return heads, {Shape.WATCHER: b"}}}", Shape.KEP: b"}}"}
