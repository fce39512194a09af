"""The limit of a response, by size and by number of values."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import aiohttp
import pytest

from watcher.platform.memory import memory_limit
from watcher.platform.net.http_body import SHARE_OF_MEMORY, AnswerBound, AnswerTooLarge, answer_bound, read_body


class ChunkedResponse:
    """A response whose body arrives in these chunks."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.content, self.left, self.is_closed = self, chunks, False

    async def iter_any(self) -> AsyncIterator[bytes]:
        while self.left:
            yield self.left.pop(0)

    def close(self) -> None:
        self.is_closed = True


def body_of(response: ChunkedResponse, bound: AnswerBound) -> bytes:
    return asyncio.run(read_body(cast(aiohttp.ClientResponse, response), bound))


def test_a_body_within_the_limit_is_complete():
    response = ChunkedResponse([b"[1,2", b",3]", b" "])
    assert body_of(response, AnswerBound(bytes=8, values=4)) == b"[1,2,3] "
    assert not response.is_closed


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([b"x" * 8, b"x"], "larger than 0 MiB"),
        ([b"[1,2", b",,,"], "more than 4 JSON values"),
        ([b"[[[[["], "more than 4 JSON values"),
        ([b"{", b'"', b"{{{{"], "more than 4 JSON values"),
    ],
    ids=["bytes", "values", "lists", "objects"],
)
def test_a_body_above_the_limit_is_refused_at_the_first_chunk_above(chunks: list[bytes], message: str):
    response = ChunkedResponse([*chunks, b"the rest"])
    with pytest.raises(AnswerTooLarge, match=message):
        body_of(response, AnswerBound(bytes=8, values=4))
    assert response.is_closed
    assert response.left == [b"the rest"]


def test_the_limit_is_a_share_of_the_memory_limit_and_may_be_smaller():
    whole = answer_bound()
    assert whole.bytes * SHARE_OF_MEMORY <= memory_limit()
    assert answer_bound(1 << 10).bytes == 1 << 10
    assert answer_bound(1 << 60) == whole
