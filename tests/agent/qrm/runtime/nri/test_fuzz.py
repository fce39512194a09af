"""Recordings with errors, and random bytes instead of messages: the decoders end with a message or with their own
errors."""

import contextlib

from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from agent.qrm.runtime.nri.protos import qrm_nri_v1alpha1_pb2 as pb
from agent.qrm.runtime.nri.ttrpc import (
    BadFrame,
    CallFailed,
    CallRequest,
    FrameDecoder,
    decode_request,
    decode_response,
    encode,
    encode_request,
)
from tests.fakes.nri import recorded

LIFE = b"".join(recorded("life"))
NAMES = ("ConfigureRequest", "SynchronizeRequest", "CreateContainerRequest", "UpdateContainerRequest")


@given(st.integers(0, len(LIFE) - 1), st.integers(0, 255))
def test_one_changed_byte_of_a_recording(at: int, value: int):
    changed = LIFE[:at] + bytes([value]) + LIFE[at + 1 :]
    decoder = FrameDecoder()
    with contextlib.suppress(BadFrame):
        for message in decoder.feed(changed):
            _decode(message.data or b"")


@given(st.integers(0, len(LIFE) - 1))
def test_a_recording_that_ends_early_is_incomplete_or_whole(at: int):
    decoder = FrameDecoder()
    found = list(decoder.feed(LIFE[:at]))
    whole = list(FrameDecoder().feed(LIFE))
    assert found == whole[: len(found)]
    assert decoder.incomplete or b"".join(map(encode, found)) == LIFE[:at]


@given(st.binary(max_size=300))
def test_random_bytes_instead_of_a_call(data: bytes):
    _decode(data)


def _decode(data: bytes) -> None:
    with contextlib.suppress(CallFailed):
        decode_response(data)
    try:
        request = decode_request(data)
    except CallFailed:
        return
    for name in NAMES:
        with contextlib.suppress(DecodeError):
            getattr(pb, name).FromString(request.payload)


@given(
    st.text(max_size=50),
    st.text(max_size=50),
    st.binary(max_size=200),
    st.integers(0, 3600 * 1000).map(lambda milliseconds: milliseconds / 1000),
)
def test_calls_survive_encoding(service: str, method: str, payload: bytes, timeout: float):
    request = CallRequest(service, method, payload, timeout)
    assert decode_request(encode_request(request)) == request
