"""Frames of NRI as bytes, and invalid bytes."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.runtime.nri.ttrpc import (
    MAX_DATA,
    MAX_PAYLOAD,
    BadFrame,
    CallFailed,
    CallRequest,
    Code,
    FrameDecoder,
    Message,
    decode_request,
    decode_response,
    encode,
    encode_failure,
    encode_request,
    encode_response,
)

EXAMPLES = [
    (Message(1, 1, 1, b""), "00000001 0000000a 00000000 00000001 01 00"),
    (Message(2, 3, 2, b"ab"), "00000002 0000000c 00000002 00000003 02 00 6162"),
    (Message(1, 0x01020305, 3, b"x", 5), "00000001 0000000b 00000001 01020305 03 05 78"),
]
messages = st.builds(
    Message,
    st.sampled_from([1, 2]),
    st.integers(0, 2**32 - 1),
    st.integers(0, 255),
    st.one_of(st.binary(max_size=64), st.binary(min_size=4000, max_size=9000)),
    st.integers(0, 255),
)


def decoded(*pieces: bytes) -> list[Message]:
    decoder = FrameDecoder()
    found = [message for piece in pieces for message in decoder.feed(piece)]
    assert not decoder.incomplete
    return found


@pytest.mark.parametrize(("message", "text"), EXAMPLES)
def test_a_message_in_bytes(message: Message, text: str):
    assert encode(message) == bytes.fromhex(text)
    assert decoded(bytes.fromhex(text)) == [message]


@pytest.mark.parametrize(("size", "frames"), [(4086, [4096]), (4087, [4096, 1]), (9000, [4096, 4914])])
def test_a_long_message_has_two_frames_because_the_runtime_reads_4096_bytes_first(size: int, frames: list[int]):
    data, found = encode(Message(1, 1, 2, b"x" * size)), []
    while data:
        connection, length = struct.unpack(">II", data[:8])
        assert connection == 1
        found.append(length)
        data = data[8 + length :]
    assert found == frames


@given(st.lists(messages, max_size=4), st.integers(1, 5000))
def test_messages_survive_in_pieces_of_any_size(sent: list[Message], size: int):
    data = b"".join(map(encode, sent))
    assert decoded(*(data[at : at + size] for at in range(0, len(data), size))) == sent


def test_messages_of_two_connections_may_interleave_between_frames():
    whole = {each: struct.pack(">IIBB", 4, 1, 1, 0) + b"data" for each in (1, 2)}
    pieces = [(each, whole[each][at : at + 7]) for at in (0, 7) for each in (1, 2)]
    data = b"".join(struct.pack(">II", each, len(piece)) + piece for each, piece in pieces)
    assert decoded(data) == [Message(1, 1, 1, b"data"), Message(2, 1, 1, b"data")]


def test_frames_of_unknown_connections_are_skipped():
    unknown = struct.pack(">II", 7, 5) + b"\xff" * 5
    assert decoded(unknown + encode(Message(1, 1, 1, b"x"))) == [Message(1, 1, 1, b"x")]


def test_a_message_above_the_maximum_is_skipped_and_named():
    data = struct.pack(">IIBB", MAX_DATA + 1, 9, 1, 0) + bytes(MAX_DATA + 1)
    frames = [data[at : at + MAX_PAYLOAD] for at in range(0, len(data), MAX_PAYLOAD)]
    whole = b"".join(struct.pack(">II", 1, len(each)) + each for each in frames)
    assert decoded(whole + encode(Message(1, 11, 1, b"x"))) == [Message(1, 9, 1, None), Message(1, 11, 1, b"x")]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">II", 1, MAX_PAYLOAD + 1), f"a frame of {MAX_PAYLOAD + 1} bytes"),
        (b"GET / HTTP/1.1\r\n", "exceeds the maximum"),
        (struct.pack(">IIIIBB", 1, 10, 1 << 24, 1, 1, 0), "is not that of a ttrpc message"),
    ],
)
def test_garbage_ends_the_stream(data: bytes, why: str):
    with pytest.raises(BadFrame, match=why):
        list(FrameDecoder().feed(data))


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_an_invalid_frame(data: bytes):
    with contextlib.suppress(BadFrame):
        list(FrameDecoder().feed(data))


def test_a_message_above_the_maximum_is_not_sent():
    with pytest.raises(BadFrame, match=f"exceeds the maximum of {MAX_DATA} bytes"):
        encode(Message(1, 1, 2, bytes(MAX_DATA + 1)))


def test_a_request_in_bytes():
    request = CallRequest("S", "M", b"p", 2.0)
    data = bytes.fromhex("0a0153 12014d 1a0170 2080a8d6b907".replace(" ", ""))
    assert encode_request(request) == data
    assert decode_request(data) == request


def test_a_response_in_bytes():
    assert encode_response(b"p") == bytes.fromhex("0a00120170")
    assert decode_response(bytes.fromhex("120170")) == b"p"


def test_a_failure_in_bytes():
    data = encode_failure(CallFailed(Code.UNIMPLEMENTED, "no"))
    assert data == bytes.fromhex("0a06080c12026e6f")
    with pytest.raises(CallFailed, match="no") as caught:
        decode_response(data)
    assert caught.value.code == Code.UNIMPLEMENTED


@pytest.mark.parametrize(("decode", "code"), [(decode_request, Code.INVALID_ARGUMENT), (decode_response, 13)])
def test_invalid_messages_have_a_status(decode, code: int):
    with pytest.raises(CallFailed) as caught:
        decode(b"\xff\xff")
    assert caught.value.code == code


def test_a_response_above_the_maximum_becomes_a_failure():
    with pytest.raises(CallFailed, match=r"the response has \d+ bytes"):
        decode_response(encode_response(bytes(MAX_DATA)))
