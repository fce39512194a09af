"""Reads HTTP response bodies up to a maximum size."""

from __future__ import annotations

import aiohttp


async def read_at_most(content: aiohttp.StreamReader, most: int) -> bytes | None:
    """Return the whole body, None if it is larger than `most` bytes; the rest is then not read."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            return None
    return b"".join(chunks)
