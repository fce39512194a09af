"""Reading what a far side sends, as far as there is room for it."""

from __future__ import annotations

import aiohttp


async def read_at_most(content: aiohttp.StreamReader, most: int) -> bytes | None:
    """The whole body, None where it is larger than `most` bytes; what comes after that is not read."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > most:
            return None
    return b"".join(chunks)
