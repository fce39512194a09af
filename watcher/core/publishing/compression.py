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
PLAIN_BYTES = 4 << 20  # largest size in bytes at which a window other than the longest is kept uncompressed
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


class Encoding(StrEnum):
    """Content codings in which bodies are stored."""

    IDENTITY = "identity"
    GZIP = "gzip"
    ZSTD = "zstd"


@dataclass(frozen=True, slots=True)
class Deflated:
    """A text as deflate blocks that end on a byte boundary and refer to no earlier data, so that they can be joined."""

    blocks: bytes
    crc: int
    length: int


def deflate(text: bytes | memoryview) -> Deflated:
    """Compress a part of a gzip body independently of the other parts."""
    compressor = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -15)
    blocks = compressor.compress(text) + compressor.flush(isal_zlib.Z_FULL_FLUSH)
    return Deflated(blocks, isal_zlib.crc32(text), len(text))


def gzip_of(head: bytes, middle: Deflated, tail: bytes) -> bytes:
    """Return one gzip member of `head`, the compressed `middle` and `tail`, without compressing the middle again."""
    first = deflate(head)
    last = isal_zlib.compressobj(1, isal_zlib.DEFLATED, -15)
    closing = last.compress(tail) + last.flush(isal_zlib.Z_FINISH)
    crc = isal_zlib.crc32_combine(first.crc, middle.crc, middle.length)
    crc = isal_zlib.crc32_combine(crc, isal_zlib.crc32(tail), len(tail))
    length = (len(head) + middle.length + len(tail)) & 0xFFFFFFFF
    trailer = crc.to_bytes(4, "little") + length.to_bytes(4, "little")
    return b"".join((_GZIP_HEADER, first.blocks, middle.blocks, closing, trailer))


def zstd_frame(data: bytes | memoryview, *, level: int = 1, checksum: bool = False) -> bytes:
    """Compress to one zstd frame that states the length of its content."""
    frame = zstandard.ZstdCompressor(level=level, write_checksum=checksum).compress(data)
    # The library keeps a buffer of the largest possible size behind its result; the copy has the size of the frame.
    return bytes(memoryview(frame))


def compressed(text: bytes, encoding: Encoding) -> bytes:
    """Return `text` encoded with a content coding."""
    if encoding is Encoding.GZIP:
        return gzip_of(b"", deflate(text), b"")
    if encoding is Encoding.ZSTD:
        return zstd_frame(text)
    return text


@dataclass(frozen=True, slots=True)
class NodeFrames:
    """Text before and after the metrics of each node, each [n]: identical in all documents of a snapshot."""

    openings: list[bytes]
    closings: list[bytes]


def node_frames(snapshot: Snapshot, start: int = 0, stop: int | None = None) -> NodeFrames:
    """Return, for nodes start..stop, `"name":{"metrics":[` and the text from the closing brace of the last metric."""
    close = b'}],"tags":{},"metadata":{"dataCenter":""},"sampled":%d}'
    aged = b'}],"tags":{},"metadata":{"dataCenter":""},"sampled":%d,"age_s":%.3f}'
    sampled = np.nan_to_num(snapshot.sampled[start:stop]).astype(np.int64).tolist()
    ages = snapshot.age_s[start:stop].tolist()
    return NodeFrames(
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
