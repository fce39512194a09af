"""The limit of a response, by size and by number of values."""

import pytest

from watcher.platform.memory import memory_limit
from watcher.platform.net.http_body import SHARE_OF_MEMORY, AnswerBound, AnswerTooLarge, BoundedBody, answer_bound


def body_of(chunks: list[bytes], bound: AnswerBound) -> bytes:
    body = BoundedBody(bound)
    for chunk in chunks:
        body.add(chunk)
    return body.content()


def test_a_body_within_the_limit_is_complete():
    bound = AnswerBound(bytes=8, values=4)
    assert body_of([b"[1,2", b",3]", b" "], bound) == b"[1,2,3] "


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
    with pytest.raises(AnswerTooLarge, match=message):
        body_of(chunks, AnswerBound(bytes=8, values=4))


def test_the_limit_is_a_share_of_the_memory_limit_and_may_be_smaller():
    whole = answer_bound()
    assert whole.bytes * SHARE_OF_MEMORY <= memory_limit()
    assert answer_bound(1 << 10).bytes == 1 << 10
    assert answer_bound(1 << 60) == whole
