"""The only reader of response bodies: with a maximum number of bytes after decompression, and of JSON values.

The number of values is limited as well, because `[],[],[]` needs 30 times its size in memory once it is decoded.
Delimiters within strings count, so the number found is an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from watcher.platform.memory import memory_limit

SHARE_OF_MEMORY = 20
"""An answer may have this part of the memory limit: a source sends up to four at a time."""
BYTES_PER_VALUE = 10
"""Bytes of the largest answer per JSON value. A sample of Prometheus has three values in 20 to 30 bytes."""
ERROR_BYTES = 1 << 16
"""Bytes that are read of the body of an error response."""
TOO_LARGE_HINT = (
    "Check the address, and request less data. If the answer is correct, raise the memory limit of this process: one "
    f"answer may have a part of 1/{SHARE_OF_MEMORY} of it."
)
_DELIMITERS = b",[{"


class AnswerTooLarge(aiohttp.ClientPayloadError):
    """The answer exceeds its bound; the rest is not read. The message states the bound."""


@dataclass(frozen=True, slots=True)
class AnswerBound:
    """Maximum size of an answer in bytes, after decompression, and its maximum number of JSON values."""

    bytes: int
    values: int


def answer_bound(most: int | None = None) -> AnswerBound:
    """The bound that fits the memory limit of this process, with at most `most` bytes."""
    share = memory_limit() // SHARE_OF_MEMORY
    size = share if most is None else min(most, share)
    return AnswerBound(size, size // BYTES_PER_VALUE)


async def read_body(response: aiohttp.ClientResponse, bound: AnswerBound) -> bytes:
    """The decompressed body of a response. Raises AnswerTooLarge at the first chunk beyond the bound, and closes the
    connection on any failure."""
    chunks: list[bytes] = []
    size = values = 0
    try:
        async for chunk in response.content.iter_any():
            chunks.append(chunk)
            size += len(chunk)
            values += len(chunk) - len(chunk.translate(None, _DELIMITERS))
            if size > bound.bytes:
                raise AnswerTooLarge(f"the answer is larger than {bound.bytes >> 20} MiB")
            if values > bound.values:
                raise AnswerTooLarge(f"the answer has more than {bound.values:,} JSON values")
    except BaseException:
        chunks.clear()  # the error refers to these variables, and may be kept for long
        response.close()
        raise
    return b"".join(chunks)


async def read_start(response: aiohttp.ClientResponse, most: int = ERROR_BYTES) -> bytes:
    """The first bytes of the body of an error response, after decompression, at most `most`."""
    start = bytearray()
    async for chunk in response.content.iter_any():
        start += chunk[: most - len(start)]
        if len(start) >= most:
            response.close()
            break
    return bytes(start)


async def read_bounded(response: aiohttp.ClientResponse, bound: AnswerBound) -> bytes:
    """The decompressed body; of an error response, only its start. Raises AnswerTooLarge."""
    return await (read_body(response, bound) if response.status == 200 else read_start(response))
